"""What came out: each profile against the baseline, the noise between two sweeps of the same, and a proposal."""

from __future__ import annotations

from dataclasses import replace

from runbooks.bench import assess
from runbooks.bench.charts import number
from runbooks.bench.compare import Point, compare
from runbooks.engine.errors import UsageError
from runbooks.engine.report import Reporter
from runbooks.tune.record import Outcome, Record, Trial

__all__ = ["Outcome", "best", "changes", "drift", "show", "show_predictions"]

COLUMNS = ("profile", "predicted", "streams", "tok/s", "change", "noise", "")


def show_predictions(record: Record, report: Reporter) -> None:
    rows = [[name, *told.split("; ", 1)] for name, told in record.predicted.items()]
    title = f"predicted, against profile {record.baseline} (release {record.before})"
    report.table(title, ("profile", "tok/s at the top", "what differs"), rows, host=record.host)


def show(record: Record, report: Reporter) -> int:
    """0: every profile was measured and VALID."""
    rows: list[list[str]] = []
    moved = drift(record)
    for trial in record.trials:
        predicted = record.predicted.get(trial.profile, "baseline").split("; ")[0]
        name = trial.profile
        for point in changes(record, trial, moved):
            noise = "-" if point.noise is None else f"±{point.noise:.1%}"
            rows.append(
                [name, predicted, str(point.streams), number(point.now), f"{point.change:+.1%}", noise, point.word]
            )
            name, predicted = "", ""
        if name:
            rows.append([name, predicted, "-", "-", "-", "-", trial.outcome])
    report.table(f"against {record.baseline}", COLUMNS, rows, host=record.host)
    for trial in record.trials:
        if trial.why:
            report.note(f"{trial.profile}: {trial.outcome}, {trial.why}", host=record.host, level="warning")
    if moved:
        text = ", ".join(f"{change:+.1%} at {b}" for b, change in moved.items())
        report.note(f"the baseline against itself, before and after: {text}", host=record.host)
    if told := ", ".join(f"{trial.profile} {trial.verdict}" for trial in record.trials if trial.verdict):
        report.note(f"bound by: {told}", host=record.host)
    report.note(proposal(record), host=record.host, level="good")
    report.note(f"kept: {record.folder}", host=record.host)
    return 0 if all(trial.outcome == "measured" for trial in record.trials) else 1


def drift(record: Record) -> dict[int, float]:
    """Streams -> relative change of the baseline between its first sweep and the one after everything."""
    first = record.trial(record.baseline)
    if first is None or first.run is None or record.again is None:
        return {}
    try:
        found = compare(assess(record.folder / first.run), assess(record.folder / record.again))
    except UsageError:
        return {}
    return {point.streams: point.change for point in found.points}


def changes(record: Record, trial: Trial, moved: dict[int, float]) -> list[Point]:
    """Of a trial against the baseline, with the noise that both intervals and the drift of the baseline tell."""
    first = record.trial(record.baseline)
    if trial.outcome != "measured" or trial.run is None or first is None or first.run is None:
        return []
    try:
        found = compare(assess(record.folder / first.run), assess(record.folder / trial.run))
    except UsageError:
        return []
    return [
        point if point.noise is None else replace(point, noise=max(point.noise, abs(moved.get(point.streams, 0.0))))
        for point in found.points
    ]


def best(record: Record) -> tuple[Trial, Point] | None:
    """The profile that is faster than the baseline at its highest load, beyond the noise, by most."""
    moved = drift(record)
    found = []
    for trial in record.trials:
        points = changes(record, trial, moved)
        if trial.profile != record.baseline and points and points[-1].word == "faster":
            found.append((trial, points[-1]))
    return max(found, key=lambda one: one[1].change, default=None)


def proposal(record: Record) -> str:
    winner = best(record)
    if winner is None:
        return f"none is faster than {record.baseline} beyond the noise: it stays, as it serves now"
    trial, point = winner
    gain = f"{point.change:+.1%} ±{point.noise:.1%} at {point.streams} streams"
    return (
        f"best: {trial.profile}, {gain}; {record.baseline} serves again, and "
        f"`invoke deploy --hosts {record.host} --profile {trial.profile}` changes it"
    )
