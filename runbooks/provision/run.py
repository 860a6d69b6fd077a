"""`invoke provision`: the stages on every host that was meant, and a summary."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from runbooks.engine.errors import UsageError, worst
from runbooks.engine.facts import Facts
from runbooks.engine.fleet import NotStarted, Outcome
from runbooks.engine.run import HostResult, Options
from runbooks.engine.secret import Secret
from runbooks.engine.step import Stage
from runbooks.engine.transport import Connection
from runbooks.inventory.shape import SecretRef
from runbooks.inventory.source import near
from runbooks.provision.below import Below
from runbooks.provision.stages import TAGS, stages
from runbooks.session import Session
from runbooks.surface import INTERRUPTED

WOULD_CHANGE = 3


def provision(
    session: Session,
    *,
    tags: Sequence[str] = (),
    skip_tags: Sequence[str] = (),
    check: bool = False,
    diff: bool = False,
    wait: bool = False,
) -> int:
    """Exit code: 0 all hosts converged, 1 a host failed, 2 all that failed are mistakes in the inventory or command,
    3 `check` found changes, 130 interrupted.

    `wait`: for another run on a host to end, instead of leaving.
    """
    wanted, unwanted = _known(tags), _known(skip_tags)
    if not (wanted or frozenset(TAGS)) - unwanted:
        raise UsageError("--skip-tags leaves nothing of what was asked for", details=[f"tags: {', '.join(TAGS)}"])

    options = Options(
        check=check,
        diff=diff,
        tags=wanted,
        skip_tags=unwanted,
        consent=session.consent,
        stopping=lambda: session.interrupt,
        wait=wait,
    )
    below = Below(session, options)

    def one(connection: Connection) -> HostResult:
        return below.converge(connection, partial(build, session, connection.name))

    outcomes = session.each(one, gently=not check, failed=lambda result: bool(result.failed))
    code = _summary(session, outcomes, check=check)
    return INTERRUPTED if session.interrupt else code


def build(session: Session, host: str, facts: Facts) -> list[Stage]:
    """The stages inside one host, from its facts and the inventory."""

    def secret(ref: SecretRef) -> Secret:
        found = session.loaded.secret(ref)
        session.report.hide(found)
        return found

    return stages(facts, session.loaded, host, secret=secret)


def _known(words: Sequence[str]) -> frozenset[str]:
    tags = frozenset(tag.strip() for word in words for tag in word.split(",") if tag.strip())
    for tag in sorted(tags - set(TAGS)):
        raise UsageError(f"there is no tag {tag!r}{near(tag, TAGS)}", details=[f"tags: {', '.join(TAGS)}"])
    return tags


def _summary(session: Session, outcomes: Sequence[Outcome[HostResult]], *, check: bool) -> int:
    report = session.report
    changes = False
    codes: list[int] = []
    for result in (outcome.value for outcome in outcomes if outcome.value is not None):
        for error in result.failed:
            report.failed(error, host=result.host)
        for warning in result.warnings:
            report.note(
                f"optional, and not there: {warning.step or warning.message}", host=result.host, level="warning"
            )
        codes += [error.exit_code for error in result.failed]
        changes = changes or bool(result.would_change)
        if not result.failed:
            state = "would-change" if result.would_change else "changed" if result.changed else "ok"
            counts = {"unchanged": result.unchanged, "changed": result.changed, "would_change": result.would_change}
            report.emit("result", _sentence(result, check=check), host=result.host, state=state, **counts)
    codes.append(session.tell_errors(outcomes))
    if len(outcomes) > 1:
        columns = ["host", "", "changed", "would change", "as it should be", "what"]
        report.table("summary", columns, [_row(outcome, check=check) for outcome in outcomes])
    return worst(0, *codes) or (WOULD_CHANGE if check and changes else 0)


def _row(outcome: Outcome[HostResult], *, check: bool) -> list[str]:
    result = outcome.value
    if result is None:
        assert outcome.error is not None
        state = "left out" if isinstance(outcome.error, NotStarted) else "failed"
        return [outcome.host, state, "-", "-", "-", outcome.error.message]
    first = result.failed[0] if result.failed else None
    state = "failed" if first else "would change" if result.would_change else "changed" if result.changed else "ok"
    what = f"{first.step}: {first.message}" if first and first.step else first.message if first else ""
    counts = [str(result.changed), str(result.would_change) if check else "-", str(result.unchanged)]
    return [outcome.host, state, *counts, what]


def _sentence(result: HostResult, *, check: bool) -> str:
    if not check:
        return f"converged: {result.changed} changed, {result.unchanged} were as they should be"
    later = f", {len(result.undecided)} can only be decided then" if result.undecided else ""
    fine = result.unchanged - len(result.undecided)
    return f"check: {result.would_change} would change, {fine} are as they should be{later}"
