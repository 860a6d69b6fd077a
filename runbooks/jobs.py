"""`invoke jobs`: the long work on the hosts, followed, told of and cancelled by name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from runbooks.engine import follow
from runbooks.engine.apply import STOPPED
from runbooks.engine.errors import UsageError, worst
from runbooks.engine.follow import Job
from runbooks.engine.report import moment_text, span
from runbooks.engine.transport import Connection
from runbooks.session import Session

# A line of JSON that was cut at its beginning or end; or a run of numbers, as of one that is cut at both.
_PIECE = re.compile(r"^\s*\{|\}\s*$|^[\s\d.,eE\[\]{}+-]*[,\]}][\s\d.,eE\[\]{}+-]*$")
_STATES = {
    "running": "at work",
    "killed": "killed",
    "restart": "cut off by a restart of the host",
    "0": "done",
    str(STOPPED): "stopped as asked",
    "124": "ended at its limit",
    "130": "interrupted",
    "143": "cancelled",
}
NAMED = 10  # jobs in the error for a name that none has
_STOPPED = (str(STOPPED), "130", "143")  # by people, and no failure of what it was at


def list_jobs(session: Session) -> int:
    """A table a host, oldest first."""

    def tell(connection: Connection) -> None:
        rows = [_row(job) for job in follow.list_jobs(connection)]
        columns = ["job", "", "for", "began", "by", "last line"]
        session.report.table("jobs" if rows else "no jobs", columns, rows, host=connection.name)

    return session.tell_errors(session.each(tell))


def follow_job(session: Session, word: str) -> int:
    """The log as it grows. Exit code 0 when every job that was followed ended well."""

    def watch(connection: Connection, job: Job) -> bool:
        result = follow.follow(connection, job.label, report=session.report)
        _tell_end(session, connection.name, job.label, str(result.rc), words(result.tail)[-1:])
        return result.rc == 0

    return _on_one(session, word, watch, at_work=True)


def tell_result(session: Session, word: str) -> int:
    """How it ended, and its last lines. Exit code 0 when it ended well, or is still at work."""

    def tell(connection: Connection, job: Job) -> bool:
        _tell_end(session, connection.name, job.label, job.state, words(job.tail))
        return job.state in ("0", "running")

    return _on_one(session, word, tell)


def cancel_job(session: Session, word: str) -> int:
    """End it after consent. A step that was cut is looked at again, and mended, by the next run."""

    def end(connection: Connection, job: Job) -> bool:
        if job.state != "running":
            _tell_end(session, connection.name, job.label, job.state, (), before=True)
        elif session.consent(f"{job.name} on {connection.name}, begun by {job.who}, is at work. End it?"):
            ended = follow.cancel(connection, job.label) == "ended"
            said = "had ended before" if ended else "cancelled"
            session.report.note(f"{job.label}: {said}", host=connection.name)
        return True

    return _on_one(session, word, end, at_work=True)


def _on_one(session: Session, word: str, work: Callable[[Connection, Job], bool], *, at_work: bool = False) -> int:
    """Do something with the job that `word` means on each host. A host that has none is left out, unless all have.

    `at_work`: where it is at work on one host, what ended long ago on the others is not meant.
    """
    jobs = {outcome.host: outcome for outcome in session.each(follow.list_jobs)}
    meant = {host: _meant(host, outcome.value or [], word) for host, outcome in jobs.items()}
    if at_work and any(job is not None and job.state == "running" for job in meant.values()):
        meant = {host: job if job is not None and job.state == "running" else None for host, job in meant.items()}
    unasked = session.tell_errors(list(jobs.values()))
    if unasked and not any(meant.values()):
        return unasked  # a host that gave no answer may have it
    if not any(meant.values()):
        names = sorted({job.label for outcome in jobs.values() for job in outcome.value or []})
        what = f"there is no job {word!r}" if word else "there is no job at work"
        some = f"jobs ({NAMED} of {len(names)}; `invoke jobs` lists all):" if len(names) > NAMED else "jobs:"
        details = [some, *(f"  {name}" for name in names[-NAMED:])] if names else ()
        raise UsageError(what, details=details, next="invoke jobs")
    good: list[bool] = []

    def one(connection: Connection) -> None:
        job = meant[connection.name]
        if job is not None:
            good.append(work(connection, job))

    session.hosts = [host for host in session.hosts if meant[host] is not None]
    failed = session.tell_errors(session.each(one))
    return worst(unasked, failed, int(not all(good)))


def _meant(host: str, jobs: Sequence[Job], word: str) -> Job | None:
    """By its whole name or a beginning of it, the newest first; with no word, the one that is at work."""
    if not word:
        running = [job for job in jobs if job.state == "running"]
        if len(running) > 1:
            raise UsageError("several jobs are at work; name one", host=host, details=[job.label for job in running])
        return running[0] if running else None
    found = [job for job in jobs if job.label == word] or [job for job in jobs if job.label.startswith(word)]
    return found[-1] if found else None


def _tell_end(
    session: Session, host: str, label: str, state: str, tail: Sequence[str], *, before: bool = False
) -> None:
    """`before`: it was to be ended now, and had ended."""
    said = _STATES.get(state, f"failed with exit code {state}")
    text = "\n".join([f"{label}: had ended before ({said})" if before else f"{label}: {said}", *tail])
    if before or state in _STOPPED:
        session.report.emit("result", text, host=host, level="info" if before else "warning", rc=state)
    else:
        good = state in ("0", "running")
        session.report.emit("result", text, host=host, state="ok" if good else "failed", rc=state)


def words(tail: Sequence[str]) -> list[str]:
    """The lines that a person can read. Of an event for programs its words; of a piece of one, or of one without,
    nothing."""
    return [said for line in tail if (said := _words(line))]


def _words(line: str) -> str:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return "" if _PIECE.search(line) else line
    if not isinstance(event, dict):
        return line if isinstance(event, (int, float, str)) else ""
    text = event.get("text") or event.get("verdict")
    if isinstance(text, str):
        return text
    match event:
        case {"event": "prompt", "name": str(name), "ok": bool(ok)}:
            return f"{name}: {'ok' if ok else 'NOT ok'}"
        case {"event": "point", "concurrency": int(streams), "tok_s": int(rate) | float(rate)}:
            return f"{streams} stream{'' if streams == 1 else 's'}: {rate:,.0f} tok/s"
        case {"event": "progress", "point": int(load) | float(load), "phase": str(phase)}:
            return f"{f'{load:g} a second' if event.get('open') else f'{load:g} streams'}: {phase}"
    return ""


def _row(job: Job) -> list[str]:
    said = words(job.tail)
    last = said[-1][:60] if said else ""
    return [
        job.label,
        _STATES.get(job.state, f"failed ({job.state})"),
        span(job.ended - job.since),
        moment_text(job.since),
        job.who,
        last,
    ]
