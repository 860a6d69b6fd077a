"""The charts of a report, from a judged run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runbooks.bench import charts, measured
from runbooks.bench.ceiling import message_bytes
from runbooks.bench.charts import Band, Line, Plot
from runbooks.bench.results import BenchResult
from runbooks.bench.words import streams


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
    valid = [(p["concurrency"], p["decode_tok_s"] or p["tok_s"]) for p in result.points if p["valid"]]
    end = [(p["concurrency"], p["tok_s"]) for p in result.points if p["valid"]]
    invalid = [
        (p["concurrency"], p["decode_tok_s"] or p["tok_s"], "INVALID: " + "; ".join(p["faults"]))
        for p in result.points
        if not p["valid"] and p["tok_s"]
    ]
    streams = sorted({p["concurrency"] for p in result.points})
    roof = [(b, result.ceiling.tok_s(b)) for b in streams] if result.ceiling else []
    reference = sorted((b, rate) for b, rate in result.reference.items() if streams[0] <= b <= streams[-1])
    wired = _with_wire(result)
    before = sorted((b, rate) for b, rate in baseline.items())
    every = [y for _, y in valid + end + roof + wired + reference + before] + [y for _, y, _ in invalid]
    x, x_ticks = charts.concurrency_axis(streams)
    y, y_ticks = charts.log_axis(every)
    plot = Plot(x, y, x_ticks, y_ticks, "streams", "output tok/s (log)", "Throughput against concurrency")
    plot.line(Line(roof, "roof", marks=False))
    plot.line(Line(wired, "wired", marks=False))
    plot.line(Line(reference, "reference"))
    plot.line(Line(before, "baseline", marks=False))
    plot.line(Line(end, "end", marks=False))
    plot.line(Line(valid, "measured", values=True))
    plot.crosses(invalid)
    return plot.svg()


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
    known = [
        (p["user_tok_s"], p["decode_tok_s"] / cards, p["concurrency"])
        for p in result.points
        if p["valid"] and p["decode_tok_s"]
    ]
    if len(known) < 2:
        return ""
    wide = [user for user, _, _ in known]
    x, x_ticks = charts.linear_axis(max(wide), charts.LEFT, charts.WIDTH - charts.RIGHT)
    y, y_ticks = charts.linear_axis(max(rate for _, rate, _ in known))
    plot = Plot(x, y, x_ticks, y_ticks, "tok/s a user", "tok/s a card", "Throughput of a card against a user's speed")
    plot.line(Line(sorted((user, rate) for user, rate, _ in known), "measured"))
    for user, rate, b in known:
        plot.text(user, rate, str(b))
    return plot.svg()


def _steps(result: BenchResult) -> str:
    shares = result.verdict.shares
    if not shares:
        return ""
    bars = [
        (
            str(s.b),
            [
                (s.memory * s.step_ms, "memory"),
                (s.compute * s.step_ms, "compute"),
                ((s.communication or 0.0) * s.step_ms, "communication"),
                (max(0.0, s.rest) * s.step_ms, "rest"),
            ],
        )
        for s in shares
    ]
    return charts.stacked(bars, "streams", "ms a decode step", "Where a decode step goes")


def _latency(points: Sequence[Mapping[str, Any]], name: str, title: str) -> str:
    known = [p for p in points if p["valid"] and p[name]]
    if not known:
        return ""
    x, x_ticks = charts.concurrency_axis([p["concurrency"] for p in points])
    y, y_ticks = charts.linear_axis(max(p[name]["p99"] for p in known))
    plot = Plot(x, y, x_ticks, y_ticks, "streams", "ms", title)
    plot.band(Band([(p["concurrency"], p[name]["p50"], p[name]["p99"]) for p in known], "measured"))
    plot.line(Line([(p["concurrency"], p[name]["p95"]) for p in known], "p95", marks=False))
    plot.line(Line([(p["concurrency"], p[name]["p50"]) for p in known], "measured", values=True))
    return plot.svg()


def _timeline(points: Sequence[Mapping[str, Any]]) -> str:
    """Of the highest point, valid or not: whether the window stands where the rate is steady."""
    top = max((p for p in points if p["tok_s"]), key=lambda p: p["concurrency"])
    line = top["timeline"]
    series = [((i + 0.5) * line["bin_s"], rate) for i, rate in enumerate(line["tok_s"])]
    length = len(series) * line["bin_s"]
    x = charts.linear(0.0, length, charts.LEFT, charts.WIDTH - charts.RIGHT)
    y, y_ticks = charts.linear_axis(max(rate for _, rate in series))
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000) if length / s <= 10)
    x_ticks = [(float(t), str(t)) for t in range(0, int(length) + 1, step)]
    plot = Plot(x, y, x_ticks, y_ticks, "seconds", "output tok/s", f"tok/s over time at {streams(top['concurrency'])}")
    plot.shade(line["window"][0], line["window"][1], "window")
    plot.line(Line(series, "measured" if top["valid"] else "bad", marks=False))
    return plot.svg()


def _collectives(result: BenchResult) -> str:
    told = result.collectives or {"collectives": []}
    times: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for row in told["collectives"]:
        if row["op"] == "all_reduce" and row["right"]:
            times[row["graph"]].append((row["bytes"] / 1024, row["us"]))
    every = sorted(times[True] + times[False])
    if len(every) < 2 or result.ceiling is None:
        return ""
    shape = result.ceiling.shape
    healthy = measured.best_known(shape, result.ceiling.gpu, told["ranks"])
    known = sorted((message_bytes(shape, b) / 1024, seconds * 1e6) for b, seconds in healthy.items())
    sizes = sorted({size for size, _ in every})
    x = charts.logarithmic(sizes[0] / 1.25, sizes[-1] * 1.25, charts.LEFT, charts.WIDTH - charts.RIGHT)
    y, y_ticks = charts.log_axis([us for _, us in every + known])
    plot = Plot(x, y, [(size, f"{size:g}") for size in sizes], y_ticks, "KiB", "microseconds (log)", "One all-reduce")
    plot.line(Line(known, "reference"))
    plot.line(Line(sorted(times[False]), "end"))
    plot.line(Line(sorted(times[True]), "measured", values=True))
    return plot.svg()
