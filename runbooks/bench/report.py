"""What people read of a run: a table on the screen, report.md, one self-contained report.html. The verdict is first."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runbooks.bench import charts
from runbooks.bench.charts import Band, Line, Plot, number
from runbooks.bench.results import BenchResult
from runbooks.engine.report import Reporter

TEMPLATES = Path(__file__).parents[2] / "templates"

COLUMNS = (
    "streams",
    "tok/s",
    "decode",
    "a user",
    "step ms",
    "TTFT p50/p99",
    "ITL p50/p99",
    "requests",
    "of ceiling",
    "reference",
    "to it",
    "",
)


SCREEN = ("streams", "tok/s", "decode", "TTFT p99", "ITL p99", "ceiling", "reference", "")


def short_rows(result: BenchResult) -> list[list[str]]:
    """What fits into 80 columns: one row a point."""
    found = []
    for point, row in zip(result.points, rows(result), strict=True):
        ttft, itl = (number(point[name]["p99"]) if point[name] else "-" for name in ("ttft_ms", "itl_ms"))
        reference = f"{row[9]} ({row[10]})" if row[10] != "-" else row[9]
        found.append([row[0], number(point["tok_s"]), row[2], ttft, itl, row[8], reference, row[11]])
    return found


def rows(result: BenchResult) -> list[list[str]]:
    """One row a point, for Markdown and HTML."""
    return [_row(point, result.reference.get(point["concurrency"])) for point in result.points]


def _row(point: Mapping[str, Any], reference: float | None) -> list[str]:
    decode, ceiling, requests = point["decode_tok_s"], point["ceiling_tok_s"], point["requests"]
    failed = f", {requests['failed']} failed" if requests["failed"] else ""
    return [
        str(point["concurrency"]),
        _with_interval(point["tok_s"], point["tok_s_ci"]),
        number(decode) if decode else "-",
        number(point["user_tok_s"]) if decode else "-",
        number(point["step_ms"]) if decode else "-",
        _pair(point["ttft_ms"], "p50", "p99"),
        _pair(point["itl_ms"], "p50", "p99"),
        f"{requests['ok']}{failed}",
        f"{decode / ceiling:.0%}" if decode and ceiling else "-",
        number(reference) if reference else "-",
        f"{decode / reference:.0%}" if decode and reference else "-",
        "VALID" if point["valid"] else "INVALID",
    ]


def show(result: BenchResult, reporter: Reporter, host: str | None = None) -> None:
    """The verdict, the table, the reasons of what is INVALID, and where the report is."""
    verdict = result.verdict
    reporter.heading(f"{verdict.word}: {verdict.line}")
    title = "tok/s: end to end; decode: while all streams decode; times in ms"
    reporter.table(title, SCREEN, short_rows(result), host=host)
    for point in result.points:
        for fault in point["faults"]:
            reporter.note(f"{point['concurrency']} streams INVALID: {fault}", host=host, level="warning")
    for text in (verdict.against_reference, verdict.counterfactual, *verdict.contradictions):
        if text:
            reporter.note(text, host=host)
    for suspect in verdict.suspects:
        reporter.note(f"suspect: {suspect}", host=host)
    if result.canary_failed:
        found = "; ".join(result.run["canary"]["found"][:3])
        reporter.note(
            f"the canary after the sweep says {result.run['canary']['verdict']}: {found}", host=host, level="error"
        )
    reporter.note(proof(result), host=host)


def proof(result: BenchResult) -> str:
    """One line: could the client have been the limit?"""
    check = result.run["loadgen"].get("self_check")
    highest = max((point["tok_s"] for point in result.points), default=0.0)
    if not check:
        return "client: not checked against a null server"
    if not check["ok"]:
        return (
            f"client: DID NOT KEEP UP with the null server: {check['caught']} of {check['expected']} chunks, "
            f"{check['seen_rate']:,.0f} of {check['sent_rate']:,.0f}/s; do not trust this run"
        )
    tested = min(check["rate"], check["seen_rate"])
    headroom = f"{tested / highest:.0f}x headroom" if highest else "no headroom to tell"
    return (
        f"client: {headroom} ({tested:,.0f} chunks/s from a null server, {highest:,.0f} needed), "
        f"{check['cpu_us_per_chunk']:.0f} us CPU a chunk"
    )


def write(result: BenchResult, folder: Path) -> None:
    """report.md and report.html."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.md").write_text(_render("report.md.j2", result))
    (folder / "report.html").write_text(_render("report.html.j2", result))


def _render(template: str, result: BenchResult) -> str:
    import jinja2

    provenance = _provenance(result.folder)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        autoescape=template.endswith(".html.j2"),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(
        result=result,
        run=result.run,
        verdict=result.verdict,
        points=result.points,
        columns=COLUMNS,
        rows=rows(result),
        strip=strip(result),
        proof=proof(result),
        charts={} if template.endswith(".md.j2") else _charts(result),
        provenance=provenance,
        when=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(result.run["loadgen"]["started"])),
        simulated=simulated(provenance),
    )


def simulated(provenance: Mapping[str, Mapping[str, str]]) -> str | None:
    """What the serving package says of itself where it is no real one: its numbers must never be taken for hardware."""
    told = provenance.get("server", {}).get("package_summary", "")
    return told if "stand-in" in told else None


def strip(result: BenchResult) -> list[tuple[str, str, bool]]:
    """The validity strip: (what, value, well)."""
    points = result.points
    sent = sum(point["requests"]["sent"] for point in points)
    failed = sum(point["requests"]["failed"] for point in points)
    prompt = sum(point["tokens"]["prompt"] for point in points)
    cached = sum(point["tokens"]["cached"] for point in points)
    differences = [p["server"]["difference"] for p in points if p["server"]["difference"] is not None]
    worst = max(differences, key=abs, default=None)
    limits, top = result.limits, max((p["concurrency"] for p in points), default=0)
    late = max((p["client"]["late_p99_ms"] for p in points), default=0.0)
    canary = result.run.get("canary")
    graphs = "off" if limits.graphs_off else f"to {limits.graph_max}" if limits.graph_max else "not told"
    check = result.run["loadgen"].get("self_check")
    return [
        ("valid points", f"{sum(p['valid'] for p in points)} of {len(points)}", all(p["valid"] for p in points)),
        ("requests failed", f"{failed} of {sent}", failed <= 0.01 * sent),
        (
            "tokens, us against server",
            "not told" if worst is None else f"{worst:+.2%}",
            worst is None or abs(worst) <= 0.01,
        ),
        (
            "prompt tokens cached",
            f"{cached / prompt:.1%}" if prompt else "not told",
            all(not _fault(p, "prefix cache") for p in points),
        ),
        ("CUDA graphs", graphs, not limits.graphs_off and (limits.graph_max or top) >= top),
        ("client lateness p99", f"{late:.2g} ms", all(not _fault(p, "the client was") for p in points)),
        (
            "null server",
            f"{min(check['rate'], check['seen_rate']):,.0f}/s" if check else "not run",
            bool(check and check["ok"]),
        ),
        ("canary afterwards", canary["verdict"] if canary else "not run", bool(canary) and not result.canary_failed),
    ]


def _fault(point: Mapping[str, Any], begins: str) -> bool:
    return any(fault.startswith(begins) for fault in point["faults"])


def _charts(result: BenchResult) -> dict[str, str]:
    if not any(point["tok_s"] for point in result.points):
        return {}
    found = {"throughput": _throughput(result), "steps": _steps(result)}
    for name, title in (("ttft_ms", "Time to first token"), ("itl_ms", "Inter-token latency")):
        found[name] = _latency(result.points, name, title)
    found["timeline"] = _timeline(result.points)
    return {name: svg for name, svg in found.items() if svg}


def _throughput(result: BenchResult) -> str:
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
    every = [y for _, y in valid + end + roof + reference] + [y for _, y, _ in invalid]
    x, x_ticks = charts.concurrency_axis(streams)
    y, y_ticks = charts.log_axis(every)
    plot = Plot(x, y, x_ticks, y_ticks, "streams", "output tok/s (log)", "Throughput against concurrency")
    plot.line(Line(roof, "roof", marks=False))
    plot.line(Line(reference, "reference"))
    plot.line(Line(end, "end", marks=False))
    plot.line(Line(valid, "measured", values=True))
    plot.crosses(invalid)
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
    plot = Plot(x, y, x_ticks, y_ticks, "seconds", "output tok/s", f"tok/s over time at {top['concurrency']} streams")
    plot.shade(line["window"][0], line["window"][1], "window")
    plot.line(Line(series, "measured" if top["valid"] else "bad", marks=False))
    return plot.svg()


def _provenance(folder: Path) -> dict[str, dict[str, str]]:
    import json

    try:
        found: dict[str, dict[str, str]] = json.loads((folder / "provenance.json").read_text())
    except (OSError, ValueError):
        return {}
    return found


def _with_interval(value: float, half: float | None) -> str:
    return number(value) if half is None or not value else f"{number(value)} ±{half / value:.1%}"


def _pair(values: Mapping[str, float] | None, one: str, other: str) -> str:
    return f"{number(values[one])} / {number(values[other])}" if values else "-"
