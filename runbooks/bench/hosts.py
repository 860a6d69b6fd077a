"""What the commands do: `invoke bench`, `invoke bench.report`, `invoke bench.recompute`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from runbooks.bench import report
from runbooks.bench.asked import BenchOptions
from runbooks.bench.results import BenchResult, assess, named, reading, recompute, writable
from runbooks.bench.sweep import INTERRUPTED, run_bench, tell_report
from runbooks.engine.errors import RunbookError, UsageError, worst
from runbooks.engine.printers import printer
from runbooks.engine.report import Reporter
from runbooks.engine.transport import Connection
from runbooks.paths import expand

if TYPE_CHECKING:
    from runbooks.session import Session

EXAMPLE = Path(__file__).parent / "example"
"""A sweep on two real cards, of GLM-5's layers with random weights in a small engine (bench/gpu): it says so."""


def bench_hosts(session: Session, options: BenchOptions, *, out: str = "results") -> int:
    """Sweep every host of the session. 0: every point is VALID and the canary found sense afterwards."""
    options.checked(session.loaded.inventory.bench)
    writable(expand(out))

    def one(connection: Connection) -> BenchResult:
        return run_bench(
            connection,
            session.loaded,
            connection.name,
            options=options,
            report=session.report,
            out=expand(out),
            stopping=lambda: session.interrupt,
        )

    outcomes, drawn = session.each(one, gently=True), True
    for outcome in outcomes:
        if outcome.value is not None:
            report.show(outcome.value, session.report, outcome.host)
            drawn &= tell_report(outcome.value, session.report, outcome.host)
    failed = session.tell_errors(outcomes)
    if session.interrupt:
        return INTERRUPTED
    valid = all(outcome.value.valid for outcome in outcomes if outcome.value is not None)
    return worst(failed, int(not (valid and drawn)))


def report_only(
    run: str | Path | None, out: str | Path, reporter: Reporter | None = None, *, baseline: str = ""
) -> int:
    """Judge a results folder again (default: the example), say it, and write its report below `out` ("": into itself).

    `baseline`: another folder to stand beside it; UsageError where that measured something else.
    """
    reporter = reporter or Reporter(printer(json_lines=False, plain=False))
    try:
        folder, beside = named(run) if run else EXAMPLE, named(baseline) if baseline else None
        with reading(folder, *([beside] if beside else [])):
            result, other = assess(folder), assess(beside) if beside else None
            texts = report.texts(result, other)
            report.show(result, reporter)
        where = writable(expand(out)) if out else folder
        if not run and not (where / "run.json").exists():  # the example is a run like any other
            shutil.copytree(EXAMPLE, where, dirs_exist_ok=True)
        report.save(texts, where)
        reporter.note(f"report: {where / 'report.html'}", level="good")
    finally:
        reporter.close()
    return 0


def recompute_run(run: str | Path, reporter: Reporter | None = None) -> int:
    """0: every number came out as it stands in points.json, from the raw logs that the run recorded."""
    if not str(run):
        wanted = "run: a results folder is needed; one whose name is also a command's goes by --run NAME"
        raise UsageError(wanted, next="invoke results")
    reporter = reporter or Reporter(printer(json_lines=False, plain=False))
    try:
        folder = named(run)
        with reading(folder):
            again = recompute(folder)
        count = len(again.result.points)
        if again.changed_logs or again.differences:
            raise RunbookError(
                f"{run} does not come out the same",
                details=[
                    *(f"raw log changed since the run: {name}" for name in again.changed_logs),
                    *(f"another value now: {place}" for place in again.differences[:10]),
                ],
            )
        reporter.note(f"{count} points computed again from the raw logs: identical", level="good")
    finally:
        reporter.close()
    return 0
