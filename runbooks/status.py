"""`invoke status`: one line a host: what serves, since when, and who is at work. Looks only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runbooks import paths
from runbooks.deploy import releases
from runbooks.engine import lock
from runbooks.engine.follow import Job, list_jobs
from runbooks.engine.report import moment_text, span
from runbooks.engine.transport import Connection
from runbooks.session import Session

RESULTS = Path(paths.home("results"))
COLUMNS = ("host", "server", "release", "profile", "since", "canary", "at work", "lock", "last bench")
CANARY = {"0": "healthy", "1": "degraded", "3": "NaN", "4": "dead"}  # the probe's exit codes

_LOOK = """\
date +%s
state=$(systemctl show -p ActiveState --value -- {unit} 2>/dev/null || echo no systemd); echo "$state"
case $state in active | reloading) edge=ActiveEnterTimestamp ;; *) edge=StateChangeTimestamp ;; esac
edge=$(systemctl show -p "$edge" --value -- {unit} 2>/dev/null); [ ! "$edge" ] || date -d "$edge" +%s
echo {mark}; cat {current}/release.json 2>/dev/null
echo {mark}; cat {lock}/holder 2>/dev/null
"""
_MARK = "-- runbooks status --"


def tell_status(session: Session) -> int:
    """A table with a line a host. Exit code 1 when a host could not be asked."""
    outcomes = session.each(_row)
    rows = [outcome.value for outcome in outcomes if outcome.value is not None]
    if rows:
        session.report.table("status", COLUMNS, rows)
    return session.tell_errors(outcomes)


def _row(connection: Connection) -> list[str]:
    script = _LOOK.format(unit=paths.UNIT_NAME, mark=_MARK, current=paths.CURRENT, lock=paths.LOCK)
    began, release_text, holder = connection.ask(script, deadline=15).out.split(f"{_MARK}\n")
    now, active, since = (*began.splitlines(), "", "")[:3]
    start = float(since) if since.isdigit() else None
    jobs = list_jobs(connection)
    release = releases.parse(release_text)
    at_work = [f"{job.name} for {span(job.ended - job.since)}" for job in jobs if job.state == "running"]
    return [
        connection.name,
        active.strip() or "-",
        str(release.number) if release else "-",
        release.profile if release else "-",
        "-" if start is None else moment_text(start),
        _canary(jobs, float(now), start),
        ", ".join(at_work) or "-",
        lock.describe(holder).removeprefix("held by ") if holder.strip() else "-",
        last_bench(connection.name),
    ]


def _canary(jobs: Sequence[Job], now: float, start: float | None) -> str:
    """The last verdict, and how long ago by the host's own clock. One from before the server's present state says
    nothing of it."""
    ended = [job for job in jobs if job.name == "canary" and job.state != "running"]
    if not ended:
        return "never"
    older = ", before the last start" if start is not None and ended[-1].ended < start else ""
    return f"{CANARY.get(ended[-1].state, 'no verdict')}, {span(now - ended[-1].ended)} ago{older}"


def last_bench(host: str, folder: Path = RESULTS) -> str:
    """The best point of this host's sweep in the results folder here that has most VALID points, the newest of such:
    a short or interrupted one takes no full one's place. Its rate and its share of the reference are those of
    decoding, as in the bench's own table."""
    invalid, found = "-", []
    for run in sorted(folder.glob(f"*-{host}-*"), reverse=True):
        try:
            points = json.loads((run / "points.json").read_text())["points"]
            reference = json.loads((run / "run.json").read_text()).get("reference", {})
            valid = [point for point in points if point["valid"]]
            if valid:
                found.append((len(valid), run.name[:10], _best(valid, reference)))
            elif invalid == "-":
                invalid = f"INVALID ({run.name[:10]})"
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue
    if not found:
        return invalid
    count, day, said = max(found, key=lambda one: one[0])  # of equals the first, which is the newest
    return f"{said} ({count} point{'' if count == 1 else 's'}, {day})"


def _best(valid: Sequence[Mapping[str, Any]], reference: Mapping[str, float]) -> str:
    best = max(valid, key=lambda point: float(point["tok_s"]))
    decode, wanted = best.get("decode_tok_s"), reference.get(str(best["concurrency"]))
    share = f", {decode / wanted:.0%} of the reference" if decode and wanted else ""
    rate = f"{decode:.0f} tok/s decode" if decode else f"{best['tok_s']:.0f} tok/s"
    return f"{rate} at {best['concurrency']}{share}"
