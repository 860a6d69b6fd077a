"""Charts over time: what the cards did during the sweep, and each request of the highest point in its own lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from runbooks.bench import charts, hardware
from runbooks.bench.charts import Band, Line, Plot
from runbooks.bench.loadgen import rawlog
from runbooks.bench.loadgen.summary import Log
from runbooks.bench.results import BenchResult
from runbooks.bench.words import streams

LANES = 64  # streams that are drawn
SPAN = 12.0  # seconds of them
STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


def of(result: BenchResult) -> dict[str, str]:
    """By name; what has no data is left out."""
    rows = hardware.read(result.folder)
    found = {
        "watts": _cards(result, rows, lambda row: row[3] if row[0] == "card" else None, "watts a card"),
        "clocks": _cards(result, rows, lambda row: row[4] if row[0] == "card" else None, "SM clock, MHz"),
        "links": _cards(result, rows, _link, "PCIe of a card, GB/s both ways"),
        "lanes": _lanes(result),
    }
    return {name: svg for name, svg in found.items() if svg}


def _link(row: Sequence[Any]) -> float | None:
    return (row[3] + row[4]) / 1e3 if row[0] == "link" and None not in (row[3], row[4]) else None


def _cards(
    result: BenchResult, rows: Sequence[Sequence[Any]], value: Callable[[Sequence[Any]], float | None], label: str
) -> str:
    """The mean over cards each second, and a band from the lowest to the highest card."""
    begin = min((window[0] for point in result.points for window in point["windows"]), default=0)
    seconds: dict[int, list[float]] = {}
    for row in rows:
        known = value(row)
        if known is not None:
            seconds.setdefault(round((row[1] - begin) * 1e-9), []).append(known)
    series = [(float(at), sum(all_) / len(all_)) for at, all_ in sorted(seconds.items())]
    if len(series) < 3 or not any(mean for _, mean in series):
        return ""
    plot = _plot(series[0][0], series[-1][0], max(max(all_) for all_ in seconds.values()), label, label)
    for point in result.points:
        for window in point["windows"][:1]:
            text = str(point["concurrency"])
            plot.shade((window[0] - begin) * 1e-9, (window[1] - begin) * 1e-9, text)
    plot.band(Band([(float(at), min(all_), max(all_)) for at, all_ in sorted(seconds.items())], "measured"))
    plot.line(Line(series, "measured", marks=False))
    return plot.svg()


def _plot(begin: float, end: float, highest: float, label: str, title: str) -> Plot:
    x = charts.linear(begin, end, charts.LEFT, charts.WIDTH - charts.RIGHT)
    y, y_ticks = charts.linear_axis(highest)
    return Plot(x, y, _seconds(begin, end), y_ticks, "seconds", label, title)


def _seconds(begin: float, end: float) -> list[tuple[float, str]]:
    step = next((step for step in STEPS if (end - begin) / step <= 9), STEPS[-1])
    first = -(-begin // step)
    return [((first + i) * step, f"{(first + i) * step:g}") for i in range(int((end - first * step) // step) + 1)]


def _lanes(result: BenchResult) -> str:
    """Prompt (until the first token) and answer of every request, stream by stream, at the beginning of the window."""
    tops = [point for point in result.points if point["tok_s"]]
    if not tops:
        return ""
    top = max(tops, key=lambda point: int(point["concurrency"]))
    log = Log.of(rawlog.decode((result.folder / "raw" / top["log"]).read_bytes()))
    begin, until = log.window[0], min(log.window[1], log.window[0] + round(SPAN * 1e9))
    lanes = min(LANES, top["concurrency"])
    length = (until - begin) * 1e-9
    x = charts.linear(0.0, length, charts.LEFT, charts.WIDTH - charts.RIGHT)
    y = charts.linear(0.0, float(lanes), charts.TOP, charts.HEIGHT - charts.BOTTOM)
    every = max(1, lanes // 8)
    ticks = [(slot + 0.5, str(slot + 1)) for slot in range(0, lanes, every)]
    plot = Plot(x, y, _seconds(0.0, length), ticks, "seconds in the window", "stream", f"Requests at {streams(lanes)}")
    height = (charts.HEIGHT - charts.BOTTOM - charts.TOP) / lanes
    for request in log.requests:
        if request.slot >= lanes or request.end < begin or request.start > until:
            continue
        first = request.first if request.first is not None else request.end
        for style, low, high in (("prompt", request.start, first), ("answer", first, request.last or first)):
            left, right = (x((min(max(at, begin), until) - begin) * 1e-9) for at in (low, high))
            failed = " bad" if request.failure else ""
            plot.box(f"lane {style}{failed}", left, y(request.slot) + height * 0.12, right - left, height * 0.76)
    return plot.svg()
