"""`invoke status`: one line a host: what serves, since when, and who is at work. Looks only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from runbooks import paths
from runbooks.deploy import releases
from runbooks.engine import lock
from runbooks.engine.follow import Job, list_jobs
from runbooks.engine.report import local_time, span
from runbooks.engine.transport import Connection
from runbooks.session import Session

RESULTS = Path(paths.home("results"))
COLUMNS = ("host", "server", "release", "profile", "since", "canary", "at work", "lock", "last bench")
CANARY = {"0": "healthy", "1": "degraded", "3": "NaN", "4": "dead"}  # the probe's exit codes

_LOOK = """\
date +%s
systemctl show -p ActiveState --value -- {unit} 2>/dev/null || echo no systemd
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
    return int(session.tell_errors(outcomes))


def _row(connection: Connection) -> list[str]:
    script = _LOOK.format(unit=paths.UNIT_NAME, mark=_MARK, current=paths.CURRENT, lock=paths.LOCK)
    began, release_text, holder = connection.ask(script, deadline=15).out.split(f"{_MARK}\n")
    now, _, active = began.partition("\n")
    jobs = list_jobs(connection)
    release = releases.parse(release_text)
    at_work = [f"{job.name} for {span(job.ended - job.since)}" for job in jobs if job.state == "running"]
    return [
        connection.name,
        active.strip() or "-",
        str(release.number) if release else "-",
        release.profile if release else "-",
        local_time(release.judged or release.created) if release else "-",
        _canary(jobs, float(now)),
        ", ".join(at_work) or "-",
        lock.describe(holder).removeprefix("held by ") if holder.strip() else "-",
        last_bench(connection.name),
    ]


def _canary(jobs: Sequence[Job], now: float) -> str:
    """The last verdict, and how long ago by the host's own clock."""
    ended = [job for job in jobs if job.name == "canary" and job.state != "running"]
    if not ended:
        return "never"
    return f"{CANARY.get(ended[-1].state, 'no verdict')}, {span(now - ended[-1].ended)} ago"


def last_bench(host: str, folder: Path = RESULTS) -> str:
    """The best point of the newest run of this host in the results folder here, against the reference."""
    for run in sorted(folder.glob(f"*-{host}-*"), reverse=True):
        try:
            points = json.loads((run / "points.json").read_text())["points"]
            reference = json.loads((run / "run.json").read_text()).get("reference", {})
            best = max((point for point in points if point["valid"]), key=lambda point: point["tok_s"], default=None)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue
        if best is None:
            return f"INVALID ({run.name[:10]})"
        wanted = reference.get(str(best["concurrency"]))
        share = f", {best['tok_s'] / wanted:.0%} of the reference" if wanted else ""
        return f"{best['tok_s']:.0f} tok/s at {best['concurrency']}{share} ({run.name[:10]})"
    return "-"
