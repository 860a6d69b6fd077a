"""`invoke diagnose`: the likely causes in order, each with the line that says so, what to do, and the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from runbooks.diagnose.classify import Cause, rank
from runbooks.diagnose.now import WELL, current, with_installs
from runbooks.diagnose.since import recent, seconds
from runbooks.diagnose.sources import Texts, from_file, from_host, from_saved
from runbooks.engine.errors import worst

if TYPE_CHECKING:
    from runbooks.engine.report import Level, Reporter
    from runbooks.engine.transport import Connection
    from runbooks.session import Session

LOOK_BACK = "1h"  # of a host's logs; what was saved is read whole


def diagnose_hosts(session: Session, since: str = "") -> int:
    """Exit code 0 where nothing was found on any host."""
    since = since or LOOK_BACK
    seconds(since)  # refused before any host is asked
    return _tell_all(session, lambda conn: from_host(conn, since))


def diagnose_file(name: str, report: Reporter, *, bundle: bool = False, since: str = "") -> int:
    """Works without hosts and without an inventory. `bundle`: it must be what a failed deploy saved."""
    span = seconds(since) if since else None
    return tell(causes(_lately(from_file(name, bundle=bundle), span, report)), report)


def diagnose_saved(session: Session, name: str, since: str = "") -> int:
    """The same for a bundle that lies on each host: its folder's name, or `latest`."""
    span = seconds(since) if since else None
    return _tell_all(session, lambda conn: _lately(from_saved(conn, name), span, session.report, conn.name))


def _lately(texts: Texts, span: int | None, report: Reporter, host: str | None = None) -> Texts:
    lately = texts if span is None else recent(texts, span)
    if lately is None:
        report.note(
            "its lines tell no time, so --since leaves nothing out: all of it was read", host=host, level="warning"
        )
    return lately or texts


def _tell_all(session: Session, gather: Callable[[Connection], Texts]) -> int:
    outcomes = session.each(lambda conn: causes(gather(conn)))
    failed = session.tell_errors(outcomes)
    found = [(outcome.host, outcome.value) for outcome in outcomes if outcome.value is not None]
    codes = [tell(value, session.report, host) for host, value in found]
    return worst(failed, int(any(codes)))


def causes(texts: Texts) -> tuple[Cause, ...]:
    """What the server's journal and the kernel say; where that is nothing certain, what was being installed."""
    if texts.unit:
        return current(texts.journal, texts.kernel, texts.unit, texts.about, texts.installs)
    found = rank(texts.journal, texts.kernel, about=texts.about)
    return with_installs(found, texts.installs)


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
    if first.page and (not well or first.name == "earlier"):
        lines.append(f"  page: invoke runbook {first.page}" + (f"   ({first.source})" if first.source else ""))
    level: Level = "good" if well else "error" if first.certain else "warning"
    report.emit("result", "\n".join(lines), host=host, level=level, causes=[asdict(cause) for cause in found])
    return int(not well)
