"""Who holds a host, and who changed what on it."""

from __future__ import annotations

import json

from runbooks import paths
from runbooks.engine import lock
from runbooks.engine.errors import RunbookError, UsageError
from runbooks.engine.report import moment_text
from runbooks.engine.transport import Connection
from runbooks.session import Session


def unlock_hosts(session: Session, *, force: bool = False) -> int:
    """Take the lock of each host away, with consent that names its holder. Exit code 0, or 1 when a host failed.

    From a run that may be at work only a person takes it who was told so, or `force`.
    """

    def unlock(connection: Connection) -> None:
        held = lock.look(connection)
        if held is None:
            session.report.note("not locked", host=connection.name)
            return
        if held.life and session.yes and not force:
            raise _alive(connection.name, held)
        danger = f" {held.life[:1].upper()}{held.life[1:]}, and two at once spoil the host." if held.life else ""
        if session.consent(f"{connection.name} is {held.said}.{danger} Take the lock away?"):
            lock.force_release(connection)
            session.report.note(f"unlocked; it was {held.said}", host=connection.name, level="good")

    return session.tell_errors(session.each(unlock, parallel=False))


def _alive(host: str, held: lock.Held) -> RunbookError:
    return RunbookError(
        f"the lock stays: {held.life}",
        host=host,
        details=[held.said, "wait for its end (provision does with --wait), or end it there with Ctrl-C"],
        next=f"where you know that it is gone: invoke unlock --hosts {host} --yes --force",
    )


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
        return [moment_text(entry["time"]), entry["who"], entry["run"], entry["step"], "; ".join(entry["changes"])]
    except (ValueError, KeyError, TypeError):
        return ["-", "-", "-", "-", line]
