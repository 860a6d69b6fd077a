"""A release that is on the host is started again, and has to pass the same gate as a new one: for `invoke rollback`,
and for the way back from a deploy that failed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from runbooks import paths
from runbooks.canary import Battery, run_canary
from runbooks.deploy import gate, guard, releases, software
from runbooks.deploy.releases import Release
from runbooks.engine.errors import NotWritten, RunbookError
from runbooks.engine.report import Reporter
from runbooks.engine.secret import Secret
from runbooks.engine.transport import Connection
from runbooks.inventory import Loaded
from runbooks.inventory.shape import Model, Server

Placed = tuple[Connection, Release]
"""A release on its host. A server that spans hosts is several of them, the one that answers first."""


def start_again(placed: Sequence[Placed], *, budget: float, report: Reporter, kill: bool = False) -> gate.Start:
    """Switch to releases that are on their hosts, start them, wait until they answer. Raises RunbookError.

    `kill`: what runs is broken, and is not given time to end.
    """
    (conn, release), *others = placed
    key = releases.key_of(conn, release)
    if key:
        report.hide(key)
    report.note(f"bringing back release {release.number}", host=conn.name)
    for one, _ in placed:
        guard.settle(one)
    before = [invocation(one) for one, _ in placed]
    for one, theirs in placed:
        releases.switch(one, theirs)
        guard.off(one)
    for one, _ in placed:
        releases.restart(one, kill=kill)
    helpers = [(one, was) for (one, _), was in zip(others, before[1:], strict=True)]
    start = gate.wait(conn, at(release, key), before=before[0], budget=budget, report=report, others=helpers)
    gate.passed(start, release.number, conn.name, budget)
    for one, theirs in placed:
        software.runs_from(one, theirs)
    return start


def prove(conn: Connection, loaded: Loaded, release: Release, report: Reporter) -> None:
    """The gate's canary, of a release as it describes itself. Raises RunbookError with what it found."""
    server = msgspec.structs.replace(loaded.inventory.server, host=release.host, port=release.port)
    model = msgspec.structs.replace(loaded.model_for(conn.name), served_name=release.served_name)
    speaks_sense(conn, server, model, releases.key_of(conn, release), "gate", report=report)


def speaks_sense(
    conn: Connection, server: Server, model: Model, key: Secret | None, battery: Battery, *, report: Reporter
) -> None:
    """Ask the canary. Raises RunbookError with what it found.

    A host with no room for the canary says nothing of the release: a plain completion counts then.
    """
    try:
        result = run_canary(conn, server=server, model=model, battery=battery, report=report, api_key=key)
    except NotWritten as trouble:
        said = gate.ask(conn, gate.Endpoint(server.host, server.port, model.served_name, key), "completion")
        if said.get("status") != 200 or "error" in said:
            raise
        why = "; ".join([trouble.message, *trouble.details[-1:]])
        text = f"the {battery} canary could not be asked ({why}): it completes a plain request, and that counts"
        report.note(text, host=conn.name, level="warning")
        return
    if result.verdict != "healthy":
        faults = [f"{finding.prompt}: {finding.kind}: {finding.evidence}"[:200] for finding in result.faults]
        raise RunbookError(
            f"it answers, but the {battery} canary says {result.verdict}",
            host=conn.name,
            step="deploy",
            details=faults[:5],
            next=f"invoke canary --battery {battery} --hosts {conn.name}",
            page=result.page,
        )
    asked = f"{result.requests} requests, {result.tokens} tokens, {result.seconds:.0f} s"
    report.note(f"{battery} canary: it speaks sense ({asked})", host=conn.name, level="good")


def at(release: Release, key: Secret | None) -> gate.Endpoint:
    """Where a release answers."""
    return gate.Endpoint(release.host, release.port, release.served_name, key)


def invocation(conn: Connection) -> str:
    """Which start of the unit this is; a restart has another."""
    return conn.ask(f"systemctl show -p InvocationID --value {paths.UNIT_NAME}").out.strip()


def answers(conn: Connection) -> bool:
    """Whether the release that is current completes a request now; a host that cannot be asked does not."""
    try:
        release = releases.parse(conn.ask(f"cat {paths.CURRENT}/release.json").out)
        if release is None:
            return False
        said = gate.ask(conn, at(release, releases.key_of(conn, release)), "completion")
        return said.get("status") == 200 and "error" not in said
    except RunbookError:
        return False


def running(conn: Connection) -> float | None:
    """Requests that the current release works on or keeps waiting; None where it serves and does not show them."""
    release = releases.parse(conn.ask(f"cat {paths.CURRENT}/release.json 2>/dev/null").out)
    if release is None:
        return 0.0
    live = gate.ask(conn, at(release, releases.key_of(conn, release)), "live")
    if live.get("status") == 200:
        return float(live["running"] + live["queued"])
    return None if live.get("status") else 0.0
