"""What `invoke deploy` and `invoke rollback` do over the selected hosts, one after the other."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from runbooks import paths
from runbooks.deploy import guard, releases, software
from runbooks.deploy.attempt import now
from runbooks.deploy.back import Placed, at, prove, start_again
from runbooks.deploy.flow import DeployResult, agree, deploy, out_of_traffic
from runbooks.deploy.key import ready_key, tell_open
from runbooks.deploy.look import Host, look
from runbooks.deploy.releases import Release
from runbooks.deploy.traffic import Replica, group_of
from runbooks.engine import lock
from runbooks.engine.errors import RunbookError, Unreachable, UsageError
from runbooks.engine.transport import Connection
from runbooks.session import Session
from runbooks.sglang.argv import nodes
from runbooks.surface import CHANGES_FOUND


def deploy_hosts(
    session: Session, profile: str, *, check: bool = False, diff: bool = False, full_canary: bool = True
) -> int:
    """Deploy in series; the first host that fails stops the roll-out, and the rest keep serving what they served.

    The hosts of a profile with `nnodes` are one server, and are deployed together.
    """
    inventory = session.loaded.inventory
    if not profile:
        known = list(inventory.profiles)
        named = "final" if "final" in known else next(iter(known), "NAME")
        raise UsageError(
            "deploy: which profile?",
            details=[f"there are: {', '.join(known)}"],
            next=f"invoke deploy --profile {named} --check --diff",
        )
    together = nodes(inventory, profile)  # a wrong name is refused before any host is touched
    if together > 1:
        _must_be_one_server(session, profile, together)
    if check:
        tell_open(inventory, session.report)
    else:
        ready_key(session)
    results: list[DeployResult] = []

    def work(conns: Sequence[Connection]) -> None:
        with _behind_gateway(session, conns[0].name, look_only=check or together > 1) as replica:
            result = deploy(
                conns,
                session.loaded,
                profile,
                report=session.report,
                consent=session.consent,
                check_only=check,
                full_canary=full_canary,
                replica=replica,
            )
        for line in result.diff if diff else ():
            session.report.output(line, host=result.host)
        results.append(result)

    groups = [session.hosts] if together > 1 else [[name] for name in session.hosts]
    failed = _in_series(session, groups, work, look_only=check)
    for result in results:
        session.report.emit(
            "result",
            _said(result, diff=diff),
            host=result.host,
            state=result.verdict,
            release=result.release,
            seconds=result.seconds,
            observed=dict(result.observed),
        )
    if failed:
        if went := [result.host for result in results if result.verdict == "promoted"]:
            back = " ".join(f"--hosts {name}" for name in went)
            text = f"{', '.join(went)} went on before that, and serves the new one; back: invoke rollback {back}"
            session.report.note(text, level="warning")
        return failed
    return CHANGES_FOUND if check and any(result.changed for result in results) else 0


def _said(result: DeployResult, *, diff: bool) -> str:
    if result.verdict == "would-change":
        return f"would become profile {result.profile}" + ("" if diff else "; --diff shows what changes in which file")
    return f"{result.verdict}: release {result.release}, profile {result.profile}"


def _must_be_one_server(session: Session, profile: str, count: int) -> None:
    """Raise UsageError unless the chosen hosts can be the one server that a profile with `nnodes` describes."""
    if len(session.hosts) != count:
        raise UsageError(
            f"profile {profile} is one server on {count} hosts, and {len(session.hosts)} are chosen",
            details=[f"chosen: {', '.join(session.hosts)}"],
            next=f"invoke deploy --profile {profile} with --hosts for exactly {count}; the first one answers",
        )
    if behind := [name for name in session.hosts if group_of(session.loaded.inventory, name)]:
        raise UsageError(
            f"{', '.join(behind)}: behind a gateway each host is a server of its own",
            next="take the gateway away from the group, or deploy a profile without nnodes",
        )


def rollback_hosts(session: Session, to: int | None) -> int:
    """Bring an earlier release back on each host: its software, its flags, its unit. It has to pass the gate, too."""

    def work(conns: Sequence[Connection]) -> None:
        found = [glance(session, conn) for conn in conns]
        release = _target(found[0], conns[0].name, to)
        placed = [(conn, _target(host, conn.name, release.number)) for conn, host in zip(conns, found, strict=True)]
        with _behind_gateway(session, conns[0].name, look_only=len(conns) > 1) as replica:
            if all(_serves(host, one) for host, (_, one) in zip(found, placed, strict=True)):
                session.report.note(f"release {release.number} serves already", host=conns[0].name)
                if replica is not None:
                    replica.take_in()
                return
            for conn, one in placed:
                software.unchanged(conn, one)
            alone = replica is None or not replica.others()
            if alone:
                otherwise = at(release, releases.key_of(conns[0], release))
                agree(list(zip(conns, found, strict=True)), release, session.consent, otherwise=otherwise)
            with ExitStack() as held:
                run = secrets.token_hex(8)
                for conn in conns:
                    held.enter_context(lock.held(conn, run, f"rollback to release {release.number}"))
                found = _look_again(session, conns, found, exact=to is not None)
                held.enter_context(out_of_traffic(conns[0], replica, alone=alone))
                _bring_back(session, placed, found, run)

    return _in_series(session, _servers(session, to), work)


def _look_again(session: Session, conns: Sequence[Connection], found: Sequence[Host], *, exact: bool) -> list[Host]:
    """Under the lock. Raises RunbookError where the way back was counted from a release that is current no more."""
    for conn in conns:
        guard.settle(conn)
    fresh = [glance(session, conn) for conn in conns]
    for conn, host, before in zip(conns, fresh, found, strict=True):
        if host.current != before.current and not exact:
            raise RunbookError(
                f"release {host.current} became current while this looked and asked: nothing was touched",
                host=conn.name,
                step="rollback",
                next=f"invoke releases --hosts {conn.name}, then invoke rollback --to NUMBER",
            )
    return fresh


def _servers(session: Session, to: int | None) -> Iterator[list[str]]:
    """The hosts of each server to go back to; looked up when its turn comes, since a host may not answer."""
    done: set[str] = set()
    for name in session.hosts:
        if name in done:
            continue
        together = [name]
        try:
            with session.connect(name) as conn:
                together = list(_target(glance(session, conn), name, to).hosts) or [name]
        except RunbookError:
            pass  # told when its turn comes
        if left := [one for one in together if one not in session.hosts]:
            raise UsageError(
                f"that release of {name} is one server on {', '.join(together)}, and {', '.join(left)} is not chosen",
                next=f"invoke rollback {' '.join(f'--hosts {one}' for one in together)}",
            )
        done |= set(together)
        yield together


def _serves(host: Host, release: Release) -> bool:
    return release.number == host.current and host.serves and host.running == release.stamp


def _bring_back(session: Session, placed: Sequence[Placed], found: Sequence[Host], run: str) -> None:
    """Where it does not pass, what served before serves again, if that had been promoted."""
    (conn, release), budget = placed[0], session.loaded.inventory.server.ready_budget

    def audit(line: str) -> None:
        for one, _ in placed:
            one.ask(lock.audit_script(run, "rollback", (line,)))

    audit(f"back to release {release.number}")
    try:
        start = start_again(placed, budget=budget, report=session.report)
        prove(conn, session.loaded, release, session.report)
    except KeyboardInterrupt:
        text = f"release {release.number} is current, and was not asked whether it speaks sense: invoke canary"
        session.report.note(text, host=conn.name, level="warning")
        raise
    except RunbookError as error:
        if isinstance(error, Unreachable):
            raise
        for one, its in placed:
            if its.verdict == "promoted":  # it was good: what broke later, as a runtime, may be mended
                releases.judge(one, its, "promoted", reason=f"did not come back {now()}: {error.message}")
            else:
                releases.judge(one, its, "failed", judged=now(), reason=f"rollback: {error.message}")
        audit(f"release {release.number} did not come back: {error.message}")
        before = [(one, host.release(host.current)) for (one, _), host in zip(placed, found, strict=True)]
        good = [(one, its) for one, its in before if its is not None and its.verdict == "promoted"]
        if len(good) == len(placed) and good[0][1].number != release.number:
            start_again(good, budget=budget, report=session.report, kill=True)
            back = f"release {good[0][1].number}, which served before, serves again"
            error.details = (*error.details, back)
            audit(back)
        raise
    for one, its in placed:
        if its.verdict != "promoted" or its.reason:
            releases.judge(one, its, "promoted", judged=now(), ready_seconds=round(start.seconds, 1), reason=None)
    text = f"release {release.number} (profile {release.profile}) serves again after {start.seconds:.0f} s"
    audit(text)
    session.report.emit("result", text, host=conn.name, state="changed", release=release.number)


@contextmanager
def _behind_gateway(session: Session, host: str, *, look_only: bool = False) -> Iterator[Replica | None]:
    """The host as one of its gateway's servers; None where there is no gateway, or nothing is to be changed."""
    inventory = session.loaded.inventory
    group = group_of(inventory, host)
    if group is None or look_only:
        yield None
        return
    key = session.api_key()
    with session.connect_gateway(group) as conn:
        yield Replica.of(conn, inventory, group, host, key, session.report)


def _in_series(
    session: Session,
    groups: Iterable[Sequence[str]],
    work: Callable[[Sequence[Connection]], None],
    *,
    look_only: bool = False,
) -> int:
    """Each group of hosts in turn. The exit code of what failed: those after it are not touched then, and named.

    What only looks, looks at all of them.
    """
    left, failed = list(session.hosts), 0
    for group in groups:
        left = [name for name in left if name not in group]
        with ExitStack() as connected:
            conns = [connected.enter_context(session.connect(name)) for name in group]
            try:
                work(conns)
            except RunbookError as error:
                error.host = error.host or group[0]
                if len(session.hosts) == len(group):
                    raise
                session.report.failed(error, host=group[0])
                if left and not look_only:
                    session.report.note(f"not touched: {', '.join(left)}", level="warning")
                failed = max(failed, error.exit_code)
                if not look_only:
                    break
    return failed


def _target(host: Host, name: str, to: int | None) -> Release:
    if to is not None:
        if (release := host.release(to)) is None:
            kept = ", ".join(str(release.number) for release in host.releases) or "none"
            raise UsageError(f"there is no release {to}; there are: {kept}", host=name)
        return release
    older = [r for r in host.releases if r.verdict == "promoted" and (host.current is None or r.number < host.current)]
    if (serving := host.release(host.current)) is not None:
        older = [one for one in older if one.content != serving.content]  # the same again, deployed twice: no way back
    if not older:
        newer = [one.number for one in host.releases if serving and one.number > serving.number]
        taken_back = f"; release {max(newer)} was taken back already" if newer else ""
        raise RunbookError(
            "there is no earlier release that worked",
            host=name,
            details=[f"release {serving.number} (profile {serving.profile}) is in use{taken_back}"] if serving else [],
            next=f"invoke releases --hosts {name}",
        )
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
