"""`invoke provision`: the stages on every host that was meant, and a summary."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from runbooks.engine.errors import UsageError
from runbooks.engine.facts import Facts
from runbooks.engine.run import HostResult, Options, converge
from runbooks.engine.secret import Secret
from runbooks.engine.step import Stage
from runbooks.engine.transport import Connection
from runbooks.inventory.shape import SecretRef
from runbooks.inventory.source import near
from runbooks.provision.stages import TAGS, stages
from runbooks.session import Outcome, Session

WOULD_CHANGE = 3


def provision(
    session: Session,
    *,
    tags: Sequence[str] = (),
    skip_tags: Sequence[str] = (),
    check: bool = False,
    diff: bool = False,
) -> int:
    """Exit code: 0 all hosts converged, 1 a host failed, 3 `check` found changes."""
    wanted, unwanted = _known(tags), _known(skip_tags)

    def one(connection: Connection) -> HostResult:
        build = partial(_build, session, connection.name)
        options = Options(check=check, diff=diff, tags=wanted, skip_tags=unwanted, consent=session.consent)
        return converge(connection, build, options=options, report=session.report)

    outcomes = session.each(one)
    session.tell_errors(outcomes)
    return _summary(session, outcomes, check=check)


def _build(session: Session, host: str, facts: Facts) -> list[Stage]:
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
    failed = any(outcome.error is not None for outcome in outcomes)
    for result in (outcome.value for outcome in outcomes if outcome.value is not None):
        for error in result.failed:
            report.emit("result", str(error), host=result.host, state="failed")
        for warning in result.warnings:
            report.note(
                f"optional, and not there: {warning.step or warning.message}", host=result.host, level="warning"
            )
        failed = failed or bool(result.failed)
        changes = changes or bool(result.would_change)
        if not result.failed:
            state = "would-change" if result.would_change else "changed" if result.changed else "ok"
            counts = {"unchanged": result.unchanged, "changed": result.changed, "would_change": result.would_change}
            report.emit("result", _sentence(result, check=check), host=result.host, state=state, **counts)
    return 1 if failed else WOULD_CHANGE if check and changes else 0


def _sentence(result: HostResult, *, check: bool) -> str:
    if not check:
        return f"converged: {result.changed} changed, {result.unchanged} were as they should be"
    later = f", {len(result.undecided)} can only be decided then" if result.undecided else ""
    fine = result.unchanged - len(result.undecided)
    return f"check: {result.would_change} would change, {fine} are as they should be{later}"
