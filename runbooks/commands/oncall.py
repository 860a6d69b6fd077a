"""What people type when something is wrong: `invoke diagnose`, `invoke runbook`, `invoke canary.install`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from invoke.context import Context

from runbooks.options import CHECK, WHERE, open_session
from runbooks.surface import command

if TYPE_CHECKING:
    from runbooks.engine.report import Reporter

YES = {"yes": "do not ask: consent to what the page's blocks change"}
BATTERY = {"battery": "quick (under 90 s), gate (with 64 streams at once) or full"}


def _reporter(json: bool, plain: bool) -> Reporter:
    """For commands that need no host."""
    from runbooks.engine.printers import printer
    from runbooks.engine.report import Reporter

    return Reporter(printer(json_lines=json, plain=plain))


@command(
    iterable=["hosts"],
    help={
        **WHERE,
        **CHECK,
        **BATTERY,
        "every": "the pause between two runs, e.g. 10m or 1h",
        "remove": "take timer, metrics and state off the host again",
    },
)
def install(
    context: Context,
    hosts: list[str],
    every: str = "10m",
    battery: str = "quick",
    remove: bool = False,
    inventory: str | None = None,
    check: bool = False,
    json: bool = False,
    plain: bool = False,
) -> int:
    """A timer on the host that runs it; Prometheus metrics."""
    from runbooks.canary.install import install_hosts

    with open_session(inventory=inventory, hosts=hosts, json=json, plain=plain) as session:
        return install_hosts(session, every=every, battery=battery, check=check, remove=remove)


@command(
    word="file",
    looks=True,
    iterable=["hosts"],
    help={
        **WHERE,
        "file": "a log, a folder or tar archive of logs, or - for what is piped in: needs no host and no inventory",
        "bundle": "what a failed deploy saved: a folder or tar archive here, or on the hosts its name, or latest",
        "since": "how far back (30m, 2d): a host's logs from now (default 1h), a file from its last line (default all)",
    },
)
def diagnose(
    context: Context,
    hosts: list[str],
    file: str = "",
    bundle: str = "",
    since: str = "",
    inventory: str | None = None,
    json: bool = False,
    plain: bool = False,
) -> int:
    """From a failure's lines to its first cause and page."""
    from runbooks.diagnose.command import diagnose_file, diagnose_hosts, diagnose_saved
    from runbooks.paths import expand

    if file or (bundle and expand(bundle).exists()):
        return diagnose_file(file or bundle, _reporter(json, plain), bundle=bool(bundle), since=since)
    with open_session(inventory=inventory, hosts=hosts, json=json, plain=plain) as session:
        return diagnose_saved(session, bundle, since) if bundle else diagnose_hosts(session, since)


@command(
    word="page",
    iterable=["hosts"],
    help={
        **WHERE,
        **YES,
        "page": "the page to read (default: list them)",
        "run": "run its blocks, one by one; each that changes something is asked for first",
        "log": "with --run: where the incident's log goes",
    },
)
def runbook(
    context: Context,
    hosts: list[str],
    page: str = "",
    run: bool = False,
    log: str = "",
    inventory: str | None = None,
    yes: bool = False,
    json: bool = False,
    plain: bool = False,
) -> int:
    """Read an on-call page, or list them; --run walks it."""
    from runbooks.engine.errors import UsageError
    from runbooks.oncall import show

    if not run:
        if log:
            raise UsageError("--log: only what --run does has a log", next=f"invoke runbook {page} --run --log {log}")
        return show(page, plain=plain or json)
    from runbooks.incident import run_page

    with open_session(inventory=inventory, hosts=hosts, yes=yes, json=json, plain=plain) as session:
        return run_page(session, page, hosts, log)
