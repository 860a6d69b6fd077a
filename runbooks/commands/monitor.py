"""The tasks that keep an eye on a server: a live screen, Prometheus and its alerts, and the site that alerts name."""

from __future__ import annotations

from invoke.context import Context

from runbooks.options import CHECK, WHERE, open_session
from runbooks.paths import home
from runbooks.surface import command


@command(
    looks=True,
    iterable=["hosts"],
    help={
        **WHERE,
        "every": "seconds between two looks",
        "times": "leave after so many looks (default: at Ctrl-C)",
    },
)
def watch(
    context: Context,
    hosts: list[str],
    every: float = 5.0,
    times: int = 0,
    inventory: str | None = None,
    json: bool = False,
    plain: bool = False,
) -> int:
    """Live: tokens, queue, KV, GPUs, canary, journal."""
    from runbooks.watch import watch_hosts

    with open_session(inventory=inventory, hosts=hosts, json=json, plain=plain) as session:
        return watch_hosts(session, every=every, times=times, live=not (json or plain))


@command(iterable=["hosts"], help={**WHERE, **CHECK, "diff": "show the text that changes", "yes": "do not ask"})
def install(
    context: Context,
    hosts: list[str],
    inventory: str | None = None,
    check: bool = False,
    diff: bool = False,
    yes: bool = False,
    json: bool = False,
    plain: bool = False,
) -> int:
    """Prometheus on each host, with our alerts."""
    from runbooks.monitor import install_hosts

    with open_session(inventory=inventory, hosts=hosts, json=json, plain=plain, yes=yes) as session:
        return install_hosts(session, check=check, diff=diff)


@command(looks=True, word="out", iterable=["hosts"], help={**WHERE, "out": "the folder for them"})
def files(
    context: Context,
    hosts: list[str],
    out: str = home("monitor"),
    inventory: str | None = None,
    json: bool = False,
    plain: bool = False,
) -> int:
    """Rules, scrape and dashboard as files, for your own."""
    from runbooks.monitor import write_files

    with open_session(inventory=inventory, hosts=hosts, json=json, plain=plain) as session:
        return write_files(session.loaded.inventory, session.hosts, out, session.report)


@command(
    looks=True,
    word="out",
    help={"out": "the folder for the site", "serve": "show it at http://127.0.0.1:8000 until Ctrl-C"},
)
def docs(context: Context, out: str = home("site"), serve: bool = False) -> int:
    """The on-call pages as a searchable site."""
    from runbooks.oncall.site import build, show

    return show(out) if serve else build(out)
