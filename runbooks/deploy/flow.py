"""One deploy on one host, in order: spell, look, check, ask, write, switch, start, gate, judge, or go back.

Nothing is touched before the last check has passed and downtime has been agreed to. From the switch on (attempt.py),
every way out leads either to a release that answered and spoke sense, or back to the one before.
"""

from __future__ import annotations

import difflib
import json
import secrets
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from runbooks import paths
from runbooks.deploy import gate, releases, software
from runbooks.deploy.attempt import Attempt, answers, running, speaks_sense
from runbooks.deploy.look import Host, check, look, need_runtime
from runbooks.deploy.releases import Release
from runbooks.deploy.traffic import Replica
from runbooks.deploy.unit import Plan, plan, render
from runbooks.engine import lock
from runbooks.engine.errors import CheckFailed, NoAnswer, RunbookError, UsageError
from runbooks.engine.report import Reporter
from runbooks.engine.secret import Secret
from runbooks.engine.transport import Connection
from runbooks.inventory import Loaded, memory
from runbooks.inventory.runtimes import runtime_paths
from runbooks.inventory.shape import Inventory, Model
from runbooks.sglang.argv import build
from runbooks.sglang.flags import Value

Consent = Callable[[str], bool]

_PARSE = """\
import argparse, json, sys
try:
    from sglang.srt import server_args
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
words = json.load(sys.stdin)
if hasattr(server_args, "ServerArgs"):
    parser = argparse.ArgumentParser(prog="launch_server.py")
    server_args.ServerArgs.add_cli_args(parser)
    parser.parse_args(words)
else:
    server_args.prepare_server_args(words)
"""
PARSE_DEADLINE = 120.0  # seconds; importing SGLang from a cold disk takes most of them


@dataclass(frozen=True)
class DeployResult:
    """What a deploy did, or would do. `observed` is what really runs; `diff` the preview of `--check`."""

    host: str
    profile: str
    verdict: Literal["promoted", "unchanged", "would-change"]
    release: int | None
    seconds: float = 0.0
    observed: Mapping[str, Value] = field(default_factory=dict)
    diff: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        return self.verdict != "unchanged"


def deploy(
    conn: Connection,
    loaded: Loaded,
    host: str,
    profile: str,
    *,
    report: Reporter,
    consent: Consent,
    check_only: bool = False,
    full_canary: bool = True,
    replica: Replica | None = None,
) -> DeployResult:
    """Make the server of this host the one of a profile. Raises RunbookError; the release before serves again then.

    A `replica` is taken out of its gateway for the time of it; while others serve, that is no downtime to be agreed to.
    """
    inventory, spec, model = loaded.inventory, loaded.runtime_for(host), loaded.model_for(host)
    launch = build(inventory, profile, model=model, runtime=spec)
    for note in (*launch.notes, *need_memory(inventory, model, launch.args, host)):
        report.note(note, host=host, level="warning")
    key = loaded.secret(inventory.server.api_key) if inventory.server.api_key else None
    if key:
        report.hide(key)
    found = look(
        conn,
        runtimes=runtime_paths(spec, inventory.flash_attn),
        model_path=model.path,
        user=inventory.server.user,
        port=inventory.server.port,
        key=key,
    )
    new = plan(inventory, launch, model=model, runtime=need_runtime(found, spec.sglang, host))
    if (served := _already(conn, found, new, key)) is not None and (
        check_only or _sane(conn, loaded, new, key, report)
    ):
        report.note(f"release {served.number} with profile {profile} serves and answers: nothing to do", host=host)
        if replica is not None and not check_only:
            replica.take_in()
        return DeployResult(host, profile, "unchanged", served.number)
    check(found, new, host)
    if check_only:
        return DeployResult(host, profile, "would-change", None, diff=_diff(conn, found, new))
    parse(conn, new)
    packages = software.held(conn, new.runtime)
    alone = replica is None or not replica.others()
    if alone:
        agree(conn, found, consent, otherwise=gate.Endpoint(new.host, new.port, model.served_name, key))
    with (
        lock.held(conn, secrets.token_hex(8), f"deploy --profile {profile}"),
        out_of_traffic(conn, replica, alone=alone),
    ):
        made = Attempt(conn, loaded, report, new, found, key, packages, full_canary).run()
    seconds = made.release.ready_seconds or 0.0
    return DeployResult(host, profile, "promoted", made.release.number, seconds, made.observed)


def need_memory(inventory: Inventory, model: Model, args: Mapping[str, Value], host: str) -> list[str]:
    """Warnings of the memory plan. Raises CheckFailed for a profile whose weights leave no room for a cache."""
    told = memory.plan(inventory, model, args)
    if args.get("device", "cuda") != "cuda" or told.fits:
        return []
    would = memory.would_fit(inventory, model, args)
    if told.starts:
        short = f"{told.say()}; a request of {told.longest:,} tokens does not fit" if told.tokens < told.longest else (
            f"{told.say()}, which graphs and activations may not find enough"
        )  # fmt: skip
        return [f"{short}: {would}"]
    raise CheckFailed(
        "the profile does not fit the cards: the weights leave no room for a cache",
        host=host,
        step="deploy",
        details=[told.say(), would],
        next="mem_fraction_static, kv_cache_dtype or tp_size of the profile; gpus and size_gb of the inventory",
        page="deploy-failed",
    )


@contextmanager
def out_of_traffic(conn: Connection, replica: Replica | None, *, alone: bool) -> Iterator[None]:
    """Where others serve, the gateway sends this one nothing meanwhile; the only one is left in, and back first."""
    if replica is None:
        yield
    elif alone:
        yield
        replica.take_in()
    else:
        with replica.aside(running=lambda: running(conn), serves=lambda: answers(conn)):
            yield


def parse(conn: Connection, new: Plan) -> None:
    """Have the new runtime's own parser read the command line, before the old server is stopped."""
    env = " ".join(f"{name}={shlex.quote(value)}" for name, value in new.launch.env.items())
    script = f"cd / && env {env} HOME=/nonexistent {new.runtime}/venv/bin/python -c {shlex.quote(_PARSE)}"
    try:
        answer = conn.ask(script, stdin=json.dumps(list(new.launch.argv)).encode(), deadline=PARSE_DEADLINE)
    except NoAnswer:
        answer = None
    if answer is None or answer.rc != 0:
        said = answer.err.strip().splitlines()[-2:] if answer else [f"no answer within {PARSE_DEADLINE:.0f} s"]
        raise CheckFailed(
            f"SGLang {new.launch.version} in the new runtime does not take this command line",
            host=conn.name,
            step="deploy",
            details=said,
            next=f"invoke provision --hosts {conn.name} --tags runtime",
        )


def _already(conn: Connection, found: Host, new: Plan, key: Secret | None) -> Release | None:
    """The release that serves, if it is this very one, was promoted, runs as written, and answers now."""
    current = found.release(found.current)
    same = current is not None and current.content == new.content and current.verdict == "promoted"
    if (
        current is None
        or not same
        or not found.serves
        or found.running != current.stamp
        or (key and not found.key_same)
    ):
        return None
    answer = gate.ask(conn, gate.Endpoint(new.host, new.port, new.model.served_name, key), "completion")
    return current if answer.get("status") == 200 and "error" not in answer else None


def _sane(conn: Connection, loaded: Loaded, new: Plan, key: Secret | None, report: Reporter) -> bool:
    """A server that answers nonsense is not there already: it is started again, and has to pass the gate."""
    try:
        speaks_sense(conn, loaded, new.model, key, "quick", report=report)
    except RunbookError as error:
        report.note(f"{error.message}; starting it again", host=conn.name, level="warning")
        return False
    return True


def agree(conn: Connection, found: Host, consent: Consent, *, otherwise: gate.Endpoint) -> None:
    """State the downtime and who is being served now; go on only with consent.

    `otherwise` is where to ask a server that no release of ours describes.
    """
    if not found.serves:
        return
    current, what, seconds = found.release(found.current), "a server that is no release of ours", 0.0
    if current is not None:
        otherwise = gate.Endpoint(current.host, current.port, current.served_name, releases.key_of(conn, current))
        what, seconds = f"release {current.number}", current.ready_seconds or 0.0
    live = gate.ask(conn, otherwise, "live")
    requests = (
        f"{live['running']:.0f} running, {live['queued']:.0f} waiting" if live.get("status") == 200 else "unknown"
    )
    minutes = f"about {seconds / 60:.0f} min" if seconds > 90 else "some minutes" if not seconds else "about a minute"
    question = f"{conn.name} serves {what}; it goes down for {minutes} (requests now: {requests}). Go on?"
    if not consent(question):
        raise UsageError("not agreed to: nothing was touched", host=conn.name, next="the same command with --yes")


def _diff(conn: Connection, found: Host, new: Plan) -> tuple[str, ...]:
    """Line by line what the files of the release would be, against those of the one that serves."""
    number = found.next_number
    lines: list[str] = []
    for name, text in render(new, number).items():
        old = ""
        if found.current is not None:
            answer = conn.ask(f"cat {paths.CURRENT}/{name} 2>/dev/null")
            old = answer.out
        if name == "launch.py" and not old:
            continue  # the first one: it is ours, the same everywhere, and long
        before, after = old.splitlines(), text.splitlines()
        lines += difflib.unified_diff(before, after, f"current/{name}", f"release {number}/{name}", lineterm="", n=1)
    return tuple(lines)
