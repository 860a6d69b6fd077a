"""One deploy on one host, in order: spell, look, check, ask, write, switch, start, gate, judge, or go back.

Nothing is touched before the last check has passed and downtime has been agreed to. From the switch on (attempt.py),
every way out leads either to a release that answered and spoke sense, or back to the one before.
"""

from __future__ import annotations

import difflib
import json
import secrets
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from runbooks import paths
from runbooks.deploy import gate, guard, releases, software
from runbooks.deploy.attempt import Attempt, Node
from runbooks.deploy.back import answers, running, speaks_sense
from runbooks.deploy.look import Host, check, look, need_runtime
from runbooks.deploy.releases import Release
from runbooks.deploy.traffic import Replica
from runbooks.deploy.unit import Plan, paired, plan, render, stamp
from runbooks.engine import lock
from runbooks.engine.errors import CheckFailed, NoAnswer, RunbookError, UsageError
from runbooks.engine.report import Reporter
from runbooks.engine.secret import Secret
from runbooks.engine.transport import Connection
from runbooks.inventory import Loaded, memory
from runbooks.inventory.runtimes import runtime_paths
from runbooks.inventory.shape import Inventory, Model
from runbooks.sglang.argv import Place, build
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
    conns: Sequence[Connection],
    loaded: Loaded,
    profile: str,
    *,
    report: Reporter,
    consent: Consent,
    check_only: bool = False,
    full_canary: bool = True,
    replica: Replica | None = None,
) -> DeployResult:
    """Make the server of a host the one of a profile. Raises RunbookError; the release before serves again then.

    Several hosts are one server, as the profile's `nnodes` says; the first answers for it. A `replica` is taken out of
    its gateway for the time of it; while others serve, that is no downtime to be agreed to.
    """
    key = _key(loaded, report, look_only=check_only)
    places = [_place(loaded, conns, rank) for rank in range(len(conns))]
    nodes = [node_of(*one, loaded, profile, key, report) for one in zip(conns, places, strict=True)]
    _number(nodes)
    head = nodes[0]
    name = head.conn.name
    if (served := _already(nodes, key)) is not None and (check_only or _sane(loaded, head, key, report)):
        report.note(f"release {served.number} with profile {profile} serves and answers: nothing to do", host=name)
        if replica is not None and not check_only:
            replica.take_in()
        return DeployResult(name, profile, "unchanged", served.number)
    for node in nodes:
        check(node.found, node.new, node.conn.name)
    if check_only:
        diff = tuple(line for node in nodes for line in _diff(node, key))
        return DeployResult(name, profile, "would-change", None, diff=diff)
    for node in nodes:
        parse(node.conn, node.new)
        node.software = software.held(node.conn, node.new.runtime)
    alone = replica is None or not replica.others()
    if alone:
        otherwise = gate.Endpoint(head.new.host, head.new.port, head.new.model.served_name, key)
        agree([(node.conn, node.found) for node in nodes], head.release, consent, otherwise=otherwise)
    with ExitStack() as held:
        run = secrets.token_hex(8)
        for node in nodes:
            node.run = run
            held.enter_context(lock.held(node.conn, run, f"deploy --profile {profile}"))
        _look_again(loaded, nodes, key, report)
        held.enter_context(out_of_traffic(head.conn, replica, alone=alone))
        hold = partial(lock.take, run=run, what=f"deploy --profile {profile}")
        made = Attempt(nodes, loaded, report, key, full_canary, hold).run()
    seconds = made.release.ready_seconds or 0.0
    return DeployResult(name, profile, "promoted", made.release.number, seconds, made.observed)


def _key(loaded: Loaded, report: Reporter, *, look_only: bool) -> Secret | None:
    """None for an open server, and in a preview before there is a key."""
    ref = loaded.inventory.server.api_key
    if ref is None or (look_only and loaded.source(ref).unmade):
        return None
    key = loaded.secret(ref)
    report.hide(key)
    return key


def _place(loaded: Loaded, conns: Sequence[Connection], rank: int) -> Place | None:
    if len(conns) == 1:
        return None
    return Place(tuple(conn.name for conn in conns), rank, loaded.inventory.hosts[conns[0].name].address)


def node_of(
    conn: Connection, place: Place | None, loaded: Loaded, profile: str, key: Secret | None, report: Reporter
) -> Node:
    """A host, looked at, with what it is to become. Nothing is touched."""
    inventory, name = loaded.inventory, conn.name
    spec, model = loaded.runtime_for(name), loaded.model_for(name)
    launch = build(inventory, profile, model=model, runtime=spec, place=place, where=loaded.place)
    for note in (*launch.notes, *need_memory(inventory, model, launch.args, name)):
        report.note(note, host=name, level="warning")
    found = _look(loaded, conn, key)
    return Node(conn, plan(inventory, launch, model=model, runtime=need_runtime(found, spec.sglang, name)), found)


def _look(loaded: Loaded, conn: Connection, key: Secret | None) -> Host:
    inventory = loaded.inventory
    return look(
        conn,
        runtimes=runtime_paths(loaded.runtime_for(conn.name), inventory.flash_attn),
        model_path=loaded.model_for(conn.name).path,
        user=inventory.server.user,
        port=inventory.server.port,
        key=key,
    )


def _number(nodes: Sequence[Node]) -> None:
    """The same number on all hosts of a server."""
    number = max(node.found.next_number for node in nodes)
    for node in nodes:
        node.number(number)


def _look_again(loaded: Loaded, nodes: Sequence[Node], key: Secret | None, report: Reporter) -> None:
    """Under the lock: while this looked and asked, another run may have ended, or the host have gone back by itself."""
    for node in nodes:
        guard.settle(node.conn)
        before, node.found = node.found, _look(loaded, node.conn, key)
        if node.found.current != before.current:
            text = f"release {node.found.current} became current meanwhile"
            report.note(text, host=node.conn.name, level="warning")
        check(node.found, node.new, node.conn.name)
    _number(nodes)


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


def _already(nodes: Sequence[Node], key: Secret | None) -> Release | None:
    """The release that serves, if it is this very one, was promoted, runs as written, and answers now."""
    for node in nodes:
        current = node.found.release(node.found.current)
        if (
            current is None
            or current.content != node.new.content
            or current.verdict != "promoted"
            or not node.found.serves
            or node.found.running != current.stamp
            or (key and not node.found.key_same)
        ):
            return None
    head = nodes[0]
    current = head.found.release(head.found.current)
    if current is not None and key is None:
        key = releases.key_of(head.conn, current)  # a preview, where this controller has none yet
    answer = gate.ask(
        head.conn, gate.Endpoint(head.new.host, head.new.port, head.new.model.served_name, key), "completion"
    )
    good = answer.get("status") == 200 and "error" not in answer
    return current if good else None


def _sane(loaded: Loaded, head: Node, key: Secret | None, report: Reporter) -> bool:
    """A server that answers nonsense is not there already: it is started again, and has to pass the gate."""
    try:
        speaks_sense(head.conn, loaded.inventory.server, head.new.model, key, "quick", report=report)
    except RunbookError as error:
        report.note(f"{error.message}; starting it again", host=head.conn.name, level="warning")
        return False
    return True


def agree(
    found: Sequence[tuple[Connection, Host]], new: Release, consent: Consent, *, otherwise: gate.Endpoint
) -> None:
    """State the downtime, what comes, and who is being served now; go on only with consent.

    `otherwise` is where to ask a server that no release of ours describes.
    """
    for conn, host in found:
        if not host.serves:
            continue
        current, what, at = host.release(host.current), "a server that is no release of ours", otherwise
        if current is not None:
            at = gate.Endpoint(current.host, current.port, current.served_name, releases.key_of(conn, current))
            what = f"release {current.number}"
        live = gate.ask(conn, at, "live")
        requests = (
            f"{live['running']:.0f} running, {live['queued']:.0f} waiting" if live.get("status") == 200 else "unknown"
        )
        seconds = start_seconds(host, new)
        comes = (
            f"release {new.number} (profile {new.profile})" if host.release(new.number) else f"profile {new.profile}"
        )
        time = f"about {seconds / 60:.0f} min" if seconds > 90 else "some minutes" if not seconds else "about a minute"
        down = f"{conn.name} serves {what}; it goes down for {time}, until {comes} serves"
        if not consent(f"{down} (requests now: {requests}). Go on?"):
            raise UsageError("not agreed to: nothing was touched", host=conn.name, next="the same command with --yes")


def start_seconds(host: Host, new: Release) -> float:
    """How long a release took to answer when it was started here, or one of its profile, or what serves; 0: unknown."""
    same = [one for one in host.releases if one.profile == new.profile and one.ready_seconds]
    newest = max(same, key=lambda one: one.number, default=None)
    known = (host.release(new.number), newest, host.release(host.current))
    return next((one.ready_seconds for one in known if one is not None and one.ready_seconds), 0.0)


def _diff(node: Node, key: Secret | None) -> tuple[str, ...]:
    """Line by line what the files of the release would be, against those of the one that serves.

    That every release has its number, and stands in its own folder, is no change.
    """
    number, label = node.release.number, f"{node.conn.name}: " if node.new.launch.hosts else ""
    current = node.found.release(node.found.current)
    lines: list[str] = []
    for name, text in render(node.new, number).items():
        old = ""
        if node.found.current is not None:
            old = node.conn.ask(f"cat {paths.CURRENT}/{name} 2>/dev/null").out
        if current is not None:
            old = old.replace(f"{current.folder}/", f"{node.release.folder}/").replace(
                current.stamp, stamp(node.new, number)
            )
            old = old.replace(f"(release {current.number}, ", f"(release {number}, ")
        if name == "argv.json":
            # Indented: three dashes in a row begin a file in a diff.
            old, text = ("\n".join(f" {line}" for line in paired(json.loads(one or "[]"))) for one in (old, text))
            name = "command line"
        if name == "launch.py" and not old:
            continue  # the first one: it is ours, the same everywhere, and long
        names = f"{label}current/{name}", f"{label}release {number}/{name}"
        lines += difflib.unified_diff(old.splitlines(), text.splitlines(), *names, lineterm="", n=1)
    if current is not None and current.has_key and key is not None and not node.found.key_same:
        lines.append(f"{label}its API key becomes the one that is here")
    return tuple(lines)
