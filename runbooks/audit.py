"""Who holds a host, and who changed what on it."""

from __future__ import annotations

import json

from runbooks import paths
from runbooks.engine import lock
from runbooks.engine.errors import UsageError
from runbooks.engine.report import local_time
from runbooks.engine.transport import Connection
from runbooks.session import Session


def unlock_hosts(session: Session) -> int:
    """Take the lock of each host away, with consent that names its holder. Exit code 0, or 1 when a host failed."""

    def unlock(connection: Connection) -> None:
        holder = connection.ask(f"cat {paths.LOCK}/holder 2>/dev/null", deadline=10).out.strip()
        if not holder:
            session.report.note("not locked", host=connection.name)
            return
        held = lock.describe(holder)
        if session.consent(f"{connection.name} is {held}. Take the lock away?"):
            lock.force_release(connection)
            session.report.note(f"unlocked; it was {held}", host=connection.name, level="good")

    return session.tell_errors(session.each(unlock, parallel=False))


def tell_changes(session: Session, lines: int) -> int:
    """Show the last changes of each host's audit log, oldest first. Raises UsageError for fewer than one line."""
    if lines < 1:
        raise UsageError(f"--lines {lines}: how many of the last changes, at least 1")

    def tell(connection: Connection) -> None:
        script = f"wc -l <{paths.AUDIT} 2>/dev/null || echo 0; tail -n {lines} {paths.AUDIT} 2>/dev/null"
        count, *found = connection.ask(script, deadline=10).out.splitlines()
        rows = [_row(line) for line in found]
        session.report.table("changes", ["when", "who", "run", "step", "what"], rows, host=connection.name)
        if (earlier := int(count) - len(rows)) > 0:
            session.report.note(f"{earlier} earlier: --lines {lines + earlier}", host=connection.name)

    return session.tell_errors(session.each(tell))


def _row(line: str) -> list[str]:
    """A line that a full disk or a power cut tore is shown as it is."""
    try:
        entry = json.loads(line)
        return [local_time(entry["time"]), entry["who"], entry["run"], entry["step"], "; ".join(entry["changes"])]
    except (ValueError, KeyError, TypeError):
        return ["-", "-", "-", "-", line]
