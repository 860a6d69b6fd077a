"""The charts of a report, from a judged run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runbooks.bench import charts, measured
from runbooks.bench.ceiling import message_bytes
from runbooks.bench.results import BenchResult
from runbooks.bench.words import judged, top_of


def of(result: BenchResult, baseline: Mapping[int, float] | None = None) -> dict[str, str]:
    """By name; what has no data is left out. `baseline`: streams -> tok/s end to end of another run."""
    if not any(point["tok_s"] for point in result.points):
        return {}
    found = {"throughput": _throughput(result, baseline or {}), "steps": _steps(result), "pareto": _pareto(result)}
    for name, title in (("ttft_ms", "Time to first token"), ("itl_ms", "Inter-token latency")):
        found[name] = _latency(result.points, name, title)
    found["collectives"] = _collectives(result)
    found["timeline"] = _timeline(result.points)
    return {name: svg for name, svg in found.items() if svg}


def _throughput(result: BenchResult, baseline: Mapping[int, float]) -> str:
    rates = {
        good: [
            (p["concurrency"], p["decode_tok_s"] or p["tok_s"])
            for p in result.points
            if p["valid"] is good and p["tok_s"]
        ]
        for good in (True, False)
    }
    end = [(p["concurrency"], p["tok_s"]) for p in result.points if p["valid"]]
    swept = sorted({p["concurrency"] for p in result.points})
    roof = [(b, result.ceiling.tok_s(b)) for b in swept] if result.ceiling else []
    reference = sorted((b, rate) for b, rate in result.reference.items() if swept[0] <= b <= swept[-1])
    wired, before = _with_wire(result), sorted(baseline.items())
    chart = charts.axes("streams", "output tok/s (log)")
    charts.logarithmic(chart, "x", swept, ticks=swept)
    every = [*rates[True], *rates[False], *end, *roof, *wired, *reference, *before]
    charts.logarithmic(chart, "y", [rate for _, rate in every])
    charts.line(chart, roof, "roof")
    charts.line(chart, wired, "communication")
    charts.line(chart, reference, "reference", marks=True)
    charts.line(chart, before, "baseline")
    charts.line(chart, end, "end")
    charts.line(chart, rates[True], "measured", values=True)
    charts.invalid(chart, rates[False])
    return charts.svg(chart, "Throughput against concurrency")


def _with_wire(result: BenchResult) -> list[tuple[int, float]]:
    """The ceiling with the communication that was measured: bytes cannot be read while they are waited for."""
    found = []
    for share in result.verdict.shares:
        if share.communication is not None and result.ceiling is not None:
            least = result.ceiling.floor(share.b) + share.communication * share.step_ms / 1e3
            found.append((share.b, share.b / least))
    return found


def _pareto(result: BenchResult) -> str:
    """What a user gets against what a card gives: up and to the right is better, each point is a concurrency."""
    cards = result.run["gpus"]["count"] or 1
    known = sorted(
        (p["user_tok_s"], p["decode_tok_s"] / cards, p["concurrency"])
        for p in result.points
        if p["valid"] and p["decode_tok_s"]
    )
    if len(known) < 2:
        return ""
    chart = charts.axes("tok/s a user", "tok/s a card")
    charts.linear(chart, "x", 0, known[-1][0] * 1.08)
    charts.linear(chart, "y", 0, max(rate for _, rate, _ in known) * 1.12)
    charts.line(chart, [(user, rate) for user, rate, _ in known], "measured", marks=True)
    for user, rate, b in known:
        charts.value(chart, user, rate, str(b))
    return charts.svg(chart, "Throughput of a card against a user's speed")


def _steps(result: BenchResult) -> str:
    """Bars of parts, the sum of which stands above each."""
    shares = result.verdict.shares
    if not shares:
        return ""
    chart = charts.axes("streams", "ms a decode step")
    sums = [0.0] * len(shares)
    for name in ("memory", "compute", "communication", "rest"):
        parts = [max(0.0, getattr(share, name) or 0.0) * share.step_ms for share in shares]
        names = [str(share.b) for share in shares]
        chart.bar(names, parts, 0.62, sums, color=charts.colour(name))
        sums = [below + part for below, part in zip(sums, parts, strict=True)]
    for place, total in enumerate(sums):
        charts.value(chart, place, total, charts.number(total), above=5)
    charts.linear(chart, "y", 0, max(sums) * 1.1)
    return charts.svg(chart, "Where a decode step goes")


def _latency(points: Sequence[Mapping[str, Any]], name: str, title: str) -> str:
    known = [(p["concurrency"], p[name]) for p in points if p["valid"] and p[name]]
    if not known:
        return ""
    swept = [p["concurrency"] for p in points]
    chart = charts.axes("streams", "ms")
    charts.logarithmic(chart, "x", swept, ticks=swept)
    charts.linear(chart, "y", 0, max(times["p99"] for _, times in known) * 1.1)
    charts.band(chart, [(b, times["p50"], times["p99"]) for b, times in known], "measured")
    charts.line(chart, [(b, times["p95"]) for b, times in known], "p95")
    charts.line(chart, [(b, times["p50"]) for b, times in known], "measured", values=True)
    return charts.svg(chart, title)


def _timeline(points: Sequence[Mapping[str, Any]]) -> str:
    """Of the highest point, valid or not: whether the window stands where the rate is steady."""
    top = top_of(points)
    if top is None:
        return ""
    told = top["timeline"]
    series = [((i + 0.5) * told["bin_s"], rate) for i, rate in enumerate(told["tok_s"])]
    chart = charts.axes("seconds", "output tok/s")
    charts.linear(chart, "x", 0, len(series) * told["bin_s"])
    charts.linear(chart, "y", 0, max(rate for _, rate in series) * 1.1)
    charts.shade(chart, told["window"], "window")
    charts.line(chart, series, "measured" if top["valid"] else "bad")
    return charts.svg(chart, f"tok/s over time at {judged(top)}")


def _collectives(result: BenchResult) -> str:
    told = result.collectives or {"collectives": []}
    times: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for row in told["collectives"]:
        if row["op"] == "all_reduce" and row["right"]:
            times[row["graph"]].append((row["bytes"] / 1024, row["us"]))
    every = times[True] + times[False]
    if len(every) < 2 or result.ceiling is None:
        return ""
    shape = result.ceiling.shape
    healthy = measured.best_known(shape, result.ceiling.gpu, told["ranks"])
    known = sorted((message_bytes(shape, b) / 1024, seconds * 1e6) for b, seconds in healthy.items())
    sizes = [size for size, _ in every]
    chart = charts.axes("KiB", "microseconds (log)")
    charts.logarithmic(chart, "x", sizes, ticks=sizes)
    charts.logarithmic(chart, "y", [us for _, us in every + known])
    charts.line(chart, known, "reference", marks=True)
    charts.line(chart, sorted(times[False]), "end", marks=True)
    charts.line(chart, sorted(times[True]), "measured", values=True)
    return charts.svg(chart, "One all-reduce")
