"""What the commands do: `invoke bench`, `invoke bench.report`, `invoke bench.recompute`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runbooks.bench import report
from runbooks.bench.results import BenchResult, assess, recompute
from runbooks.bench.sweep import BenchOptions, run_bench
from runbooks.engine.errors import RunbookError, UsageError
from runbooks.engine.printers import printer
from runbooks.engine.report import Reporter
from runbooks.engine.transport import Connection

if TYPE_CHECKING:
    from runbooks.session import Session

EXAMPLE = Path(__file__).parent / "example"
"""A run of this load generator against the lab's simulated SGLang: for looking at, and for tests. Not hardware."""

MOST_STREAMS = 4096


def bench_hosts(
    session: Session,
    *,
    concurrency: Sequence[str] = (),
    input_len: int = 0,
    output_len: int = 0,
    window: float = 0.0,
    out: str = "results",
    force: bool = False,
) -> int:
    """Sweep every host of the session. 0: every point is VALID and the canary found sense afterwards."""
    options = BenchOptions(
        concurrency=streams_of(concurrency),
        input_len=int(_positive("input-len", input_len)) or None,
        output_len=int(_positive("output-len", output_len)) or None,
        window=_positive("window", window) or None,
        force=force,
        command=_command(session.hosts, concurrency, input_len, output_len, window),
    )
    writable(Path(out))

    def one(connection: Connection) -> BenchResult:
        return run_bench(
            connection, session.loaded, connection.name, options=options, report=session.report, out=Path(out)
        )

    outcomes = session.each(one)
    for outcome in outcomes:
        if outcome.value is not None:
            report.show(outcome.value, session.report, outcome.host)
            session.report.note(f"report: {outcome.value.folder / 'report.html'}", host=outcome.host, level="good")
    failed = session.tell_errors(outcomes)
    return 1 if failed or not all(outcome.value.valid for outcome in outcomes if outcome.value is not None) else 0


def streams_of(words: Sequence[str]) -> tuple[int, ...]:
    """`8`, or `1,2,4`, each more than once. Raises UsageError for what is no number of streams."""
    parts = [part.strip() for word in words for part in str(word).split(",") if part.strip()]
    for part in parts:
        if not part.isdigit() or not 1 <= int(part) <= MOST_STREAMS:
            raise UsageError(f"concurrency: {part!r} is not a number of streams (1 to {MOST_STREAMS})")
    return tuple(int(part) for part in parts)


def writable(folder: Path) -> Path:
    """The folder, made where it is not there: a sweep must not end with results that have no place to go."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise UsageError(f"out: nothing can be written to {folder}: {error.strerror}") from None


def report_only(run: str | Path | None, out: str | Path, reporter: Reporter | None = None) -> int:
    """Judge a results folder again (default: the example), say it, and write its report below `out`."""
    reporter = reporter or Reporter(printer(json_lines=False, plain=False))
    try:
        result = assess(Path(run) if run else EXAMPLE)
        report.show(result, reporter)
        report.write(result, writable(Path(out)))
        reporter.note(f"report: {Path(out) / 'report.html'}", level="good")
    finally:
        reporter.close()
    return 0


def recompute_run(run: str | Path, reporter: Reporter | None = None) -> int:
    """0: every number came out as it stands in points.json, from the raw logs that the run recorded."""
    if not str(run):
        raise UsageError("run: a results folder is needed", next="invoke results")
    reporter = reporter or Reporter(printer(json_lines=False, plain=False))
    try:
        again = recompute(Path(run))
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


def _positive(name: str, value: float) -> float:
    """Zero, which is the default of the command line, means: as the inventory says."""
    if not 0 <= value < 1e6:
        raise UsageError(f"{name}: {value:g} is not a number from 0 to a million")
    return value


def _command(hosts: Sequence[str], concurrency: Sequence[str], input_len: int, output_len: int, window: float) -> str:
    words = ["invoke bench", *(f"--hosts {host}" for host in hosts), *(f"--concurrency {one}" for one in concurrency)]
    words += [f"--input-len {input_len}"] if input_len else []
    words += [f"--output-len {output_len}"] if output_len else []
    words += [f"--window {window:g}"] if window else []
    return " ".join(words)
