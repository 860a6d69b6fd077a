"""`invoke diagnose`: the likely causes in order, each with the line that says so, what to do, and the page."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from runbooks.diagnose.classify import Cause, rank
from runbooks.diagnose.sources import Texts, from_file, from_host, seconds

if TYPE_CHECKING:
    from runbooks.engine.report import Level, Reporter
    from runbooks.session import Session

WELL = ("nothing", "starting")


def diagnose_hosts(session: Session, since: str) -> int:
    """Exit code 0 where nothing was found on any host."""
    seconds(since)  # refused before any host is asked
    outcomes = session.each(lambda conn: causes(from_host(conn, since)))
    failed = session.tell_errors(outcomes)
    found = [(outcome.host, outcome.value) for outcome in outcomes if outcome.value is not None]
    codes = [tell(value, session.report, host) for host, value in found]
    return int(failed or any(codes))


def diagnose_file(name: str, report: Reporter) -> int:
    """Works without hosts and without an inventory."""
    return tell(causes(from_file(name)), report)


def causes(texts: Texts) -> tuple[Cause, ...]:
    """What the server's journal and the kernel say; where that is nothing certain, what was being installed."""
    found = rank(texts.journal, texts.kernel, texts.unit)
    if not texts.installs or (found[0].certain and found[0].name != "not-deployed"):
        return found
    installed = tuple(cause for cause in rank(texts.installs) if cause.certain)
    return (*installed, *(cause for cause in found if cause.name not in WELL)) if installed else found


def tell(found: tuple[Cause, ...], report: Reporter, host: str | None = None) -> int:
    """The first cause with all that belongs to it, the others in a line each. Exit code 0 where there is none."""
    first, *others = found
    well = first.name in WELL
    for cause in others:
        report.note(f"also: {cause.text}   ({''.join(cause.evidence[:1])[:100]})", host=host, level="warning")
    sure = "" if first.certain or well else "not certain: "
    lines = [f"{sure}{first.text}", *(f"  | {line}" for line in first.evidence)]
    if not well:
        lines.append(f"  next: {first.next}")
    if first.page and not well:
        lines.append(f"  page: invoke runbook {first.page}" + (f"   ({first.source})" if first.source else ""))
    level: Level = "good" if well else "error" if first.certain else "warning"
    report.emit("result", "\n".join(lines), host=host, level=level, causes=[asdict(cause) for cause in found])
    return int(not well)
