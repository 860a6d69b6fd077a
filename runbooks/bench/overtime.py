"""Charts over time: what the cards did during the sweep, and each request of the highest point in its own lane."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from runbooks.bench import charts, hardware
from runbooks.bench.loadgen import rawlog
from runbooks.bench.loadgen.records import request_of
from runbooks.bench.results import BenchResult
from runbooks.bench.words import judged, top_of

LANES = 64  # streams that are drawn
SPAN = 12.0  # seconds of them
GAP = 4.0  # times the usual distance of two samples: where they are further apart, a line would be made up


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
    chart = charts.axes("seconds", label)
    charts.linear(chart, "x", series[0][0], series[-1][0])
    charts.linear(chart, "y", 0, max(max(all_) for all_ in seconds.values()) * 1.08)
    for point in result.points:
        for window in point["windows"]:
            charts.shade(chart, [(at - begin) * 1e-9 for at in window], str(point["concurrency"]))
    for part in unbroken(series):
        charts.band(chart, [(at, min(seconds[int(at)]), max(seconds[int(at)])) for at, _ in part], "measured")
        charts.line(chart, part, "measured")
    return charts.svg(chart, label)


def unbroken(series: Sequence[tuple[float, float]]) -> Iterator[list[tuple[float, float]]]:
    """The parts between which nobody measured: in a run that broke off and was resumed, nothing is known of the gap."""
    apart = GAP * median(after - at for (at, _), (after, _) in pairwise(series))
    part = [series[0]]
    for one in series[1:]:
        if one[0] - part[-1][0] > apart:
            yield part
            part = []
        part.append(one)
    yield part


def _lanes(result: BenchResult) -> str:
    """Prompt (until the first token) and answer of every request, stream by stream, at the beginning of the window."""
    top = top_of(result.points)
    if top is None:
        return ""
    begin, until = top["windows"][0][0], min(top["windows"][0][1], top["windows"][0][0] + round(SPAN * 1e9))
    lanes = min(LANES, top["concurrency"])
    blocks = rawlog.decode((result.folder / "raw" / top["log"]).read_bytes())
    drawn = [one for one in blocks if "slot" in one[0] and one[0]["end"] >= begin and one[0]["start"] <= until]
    chart = charts.axes("seconds in the window", "stream")
    charts.linear(chart, "x", 0.0, (until - begin) * 1e-9)
    charts.linear(chart, "y", lanes + 0.5, 0.5)  # the first on top
    chart.grid(visible=False)
    bars: dict[str, list[tuple[int, float, float]]] = {}
    for request in (request_of(*block) for block in drawn if block[0]["slot"] < lanes):
        first = request.first if request.first is not None else request.end
        for name, low, high in (("communication", request.start, first), ("measured", first, request.last or first)):
            span = [(min(max(at, begin), until) - begin) * 1e-9 for at in (low, high)]
            if span[1] > span[0]:
                bars.setdefault("bad" if request.failure else name, []).append((request.slot + 1, *span))
    for name, known in bars.items():
        lane, left, right = zip(*known, strict=True)
        charts.strokes(chart, lane, left, right, name, 0.76 / lanes)
    return charts.svg(chart, f"Requests at {judged(top)}")
