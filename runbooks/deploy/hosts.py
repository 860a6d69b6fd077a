"""What `invoke deploy` and `invoke rollback` do over the selected hosts, one after the other."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from runbooks import paths
from runbooks.deploy import gate, releases, software
from runbooks.deploy.attempt import bring_back, now
from runbooks.deploy.flow import DeployResult, agree, deploy, out_of_traffic
from runbooks.deploy.look import Host, look
from runbooks.deploy.releases import Release
from runbooks.deploy.traffic import Replica, group_of
from runbooks.engine import lock
from runbooks.engine.errors import RunbookError, UsageError
from runbooks.engine.transport import Connection
from runbooks.session import Session
from runbooks.sglang.argv import resolve
from runbooks.surface import CHANGES_FOUND


def deploy_hosts(
    session: Session, profile: str, *, check: bool = False, diff: bool = False, full_canary: bool = True
) -> int:
    """Deploy in series; the first host that fails stops the roll-out, and the rest keep serving what they served."""
    resolve(session.loaded.inventory.profiles, profile)  # a wrong name is refused before any host is touched
    results: list[DeployResult] = []

    def one(conn: Connection) -> None:
        with _behind_gateway(session, conn.name, look_only=check) as replica:
            result = deploy(
                conn,
                session.loaded,
                conn.name,
                profile,
                report=session.report,
                consent=session.consent,
                check_only=check,
                full_canary=full_canary,
                replica=replica,
            )
        for line in result.diff if diff else ():
            session.report.output(line, host=conn.name)
        results.append(result)

    failed = _in_series(session, one)
    for result in results:
        text = f"{result.host}: {result.verdict}" + (f", release {result.release}" if result.release else "")
        session.report.emit(
            "result",
            text,
            host=result.host,
            state=result.verdict,
            release=result.release,
            seconds=result.seconds,
            observed=dict(result.observed),
        )
    if failed:
        return 1
    return CHANGES_FOUND if check and any(result.changed for result in results) else 0


def rollback_hosts(session: Session, to: int | None) -> int:
    """Bring an earlier release back on each host: its software, its flags, its unit."""

    def one(conn: Connection) -> None:
        host = glance(session, conn)
        release = _target(host, conn.name, to)
        with _behind_gateway(session, conn.name) as replica:
            if release.number == host.current and host.serves and host.running == release.stamp:
                session.report.note(f"release {release.number} serves already", host=conn.name)
                if replica is not None:
                    replica.take_in()
                return
            software.unchanged(conn, release)
            alone = replica is None or not replica.others()
            if alone:
                at = gate.Endpoint(release.host, release.port, release.served_name, releases.key_of(conn, release))
                agree(conn, host, session.consent, otherwise=at)
            with (
                lock.held(conn, secrets.token_hex(8), f"rollback to release {release.number}"),
                out_of_traffic(conn, replica, alone=alone),
            ):
                _bring_back(session, conn, release)

    return int(_in_series(session, one))


def _bring_back(session: Session, conn: Connection, release: Release) -> None:
    conn.ask(lock.audit_script(release.content, "rollback", (f"back to release {release.number}",)))
    start = bring_back(conn, release, budget=session.loaded.inventory.server.ready_budget, report=session.report)
    if release.verdict != "promoted":
        releases.judge(conn, release, "promoted", judged=now(), ready_seconds=round(start.seconds, 1))
    text = f"release {release.number} (profile {release.profile}) serves again after {start.seconds:.0f} s"
    session.report.note(text, host=conn.name, level="good")


@contextmanager
def _behind_gateway(session: Session, host: str, *, look_only: bool = False) -> Iterator[Replica | None]:
    """The host as one of its gateway's servers; None where there is no gateway, or nothing is to be changed."""
    inventory = session.loaded.inventory
    group = group_of(inventory, host)
    if group is None or look_only:
        yield None
        return
    key = session.secret(inventory.server.api_key)
    with session.connect_gateway(group) as conn:
        yield Replica.of(conn, inventory, group, host, key, session.report)


def _in_series(session: Session, work: Callable[[Connection], None]) -> bool:
    """True when a host failed; those after it were not touched, and are named."""
    for number, name in enumerate(session.hosts):
        with session.connect(name) as conn:
            try:
                work(conn)
            except RunbookError as error:
                error.host = error.host or name
                if len(session.hosts) == 1:
                    raise
                session.report.emit("result", str(error), host=name, state="failed")
                if left := session.hosts[number + 1 :]:
                    session.report.note(f"not touched: {', '.join(left)}", level="warning")
                return True
    return False


def _target(host: Host, name: str, to: int | None) -> Release:
    if to is not None:
        if (release := host.release(to)) is None:
            kept = ", ".join(str(release.number) for release in host.releases) or "none"
            raise UsageError(f"there is no release {to}; there are: {kept}", host=name)
        return release
    older = [r for r in host.releases if r.verdict == "promoted" and (host.current is None or r.number < host.current)]
    if not older:
        raise RunbookError("there is no earlier release that worked", host=name, next=f"invoke releases --hosts {name}")
    return max(older, key=lambda release: release.number)


def glance(session: Session, conn: Connection) -> Host:
    """The releases of a host and what serves, for commands that start nothing new."""
    inventory = session.loaded.inventory
    return look(
        conn,
        runtimes=[f"{paths.RUNTIMES}/none"],
        model_path=session.loaded.model_for(conn.name).path,
        user=inventory.server.user,
        port=inventory.server.port,
        key=None,
    )
