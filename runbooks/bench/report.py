"""What people read of a run: a table on the screen, report.md, one self-contained report.html. The verdict is first."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runbooks.bench import figures, measured
from runbooks.bench.charts import number
from runbooks.bench.results import BenchResult
from runbooks.bench.words import streams
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
            reporter.note(f"{streams(point['concurrency'])} INVALID: {fault}", host=host, level="warning")
    said = (verdict.against_reference, verdict.counterfactual, verdict.collectives, verdict.advice)
    for text in (*said, *verdict.contradictions):
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
        charts={} if template.endswith(".md.j2") else figures.of(result),
        provenance=provenance,
        collective_columns=measured.COLUMNS,
        collective_rows=measured.rows(result.collectives) if result.collectives else [],
        copy_columns=measured.COPY_COLUMNS,
        copy_rows=measured.copy_rows(result.collectives) if result.collectives else [],
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
