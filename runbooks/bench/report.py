"""What people read of a run: a table on the screen, report.md, one self-contained report.html. The verdict is first."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runbooks.bench import answers, compare, figures, measured, overtime, tables
from runbooks.bench.answers import Check
from runbooks.bench.results import BenchResult
from runbooks.bench.validity import cached_of
from runbooks.bench.words import attempts, doubts, judged, load, streams, top_of
from runbooks.engine.report import Reporter

TEMPLATES = Path(__file__).parents[2] / "templates"
APART = 0.03  # between passes: more is no A/A any more


def show(result: BenchResult, reporter: Reporter, host: str | None = None) -> None:
    """The verdict, the table, the reasons of what is INVALID, and where the report is."""
    verdict = result.verdict
    reporter.heading(f"{verdict.word}: {verdict.line}")
    if about := result.run.get("about"):
        reporter.note(f"what this is: {about}", host=host, level="warning")
    reporter.table(tables.TITLE, tables.SCREEN, tables.short_rows(result), host=host)
    for point in result.points:
        for fault in point["faults"]:
            reporter.note(f"{load(point)} INVALID: {fault}", host=host, level="warning")
        for text in attempts(point):
            reporter.note(text, host=host)
    for text in doubts(result.points):
        reporter.note(text, host=host, level="warning")
    said = [verdict.against_reference, verdict.counterfactual, verdict.collectives, verdict.advice]
    said += [*verdict.evidence, verdict.interference]
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
    """One line: could the client have been the limit? Before the run, against a null server; and in its windows."""
    check = result.run["loadgen"].get("self_check")
    highest = max((point["tok_s"] for point in result.points), default=0.0)
    late, busy = _client(result)
    within = f"in the run late by {late:.2g} ms (p99) and {busy:.0%} of a core, at most"
    if not check:
        return f"client: not checked against a null server; {within}"
    rates = f"{check['seen_rate']:,.0f} of {check['sent_rate']:,.0f}/s"
    behind = f"{check['caught']} of {check['expected']} chunks, {rates}"
    if any(_fault(point, name) for point in result.points for name in ("the client lost", "the client reads")):
        return f"client: DID NOT KEEP UP with the null server: {behind}; do not trust this run"
    fell = "" if check["ok"] else f", where it fell behind ({behind})"
    tested = min(check["rate"], check["seen_rate"])
    headroom = f"{tested / highest:.0f}x headroom" if highest else "no headroom to tell"
    return (
        f"client: {headroom} ({tested:,.0f} chunks/s from a null server, {highest:,.0f} needed), "
        f"{check['cpu_us_per_chunk'] or 0:.0f} us CPU a chunk{fell}; {within}"
    )


def _client(result: BenchResult) -> tuple[float, float]:
    """Its lateness p99 in ms and its part of a core, at most, over all windows."""
    clients = [point["client"] for point in result.points]
    late = max((one["late_p99_ms"] for one in clients), default=0.0)
    return late, max((one["cpu_share"] for one in clients), default=0.0)


def write(result: BenchResult, folder: Path, baseline: BenchResult | None = None) -> None:
    """report.md, report.html and points.csv. Raises UsageError for a baseline that measured something else."""
    save(texts(result, baseline), folder)


def texts(result: BenchResult, baseline: BenchResult | None = None) -> dict[str, str]:
    """What `write` writes, by name."""
    against = compare.compare(baseline, result) if baseline else None
    pages = {name: _render(f"{name}.j2", result, baseline, against) for name in ("report.md", "report.html")}
    return {"points.csv": tables.as_csv(result), **pages}


def save(found: Mapping[str, str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in found.items():
        (folder / name).write_text(text, encoding="utf-8")


def _render(
    template: str, result: BenchResult, baseline: BenchResult | None, against: compare.Comparison | None
) -> str:
    import jinja2

    provenance = _provenance(result.folder)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        autoescape=template.endswith(".html.j2"),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    before = {point.streams: point.before for point in against.points} if against else {}
    columns, rows = tables.table(result, before)
    charts = figures.of(result, before) if template.endswith(".html.j2") else {}
    if charts:
        charts |= overtime.of(result)
    return environment.get_template(template).render(
        result=result,
        folder=_from_here(result.folder),
        load=load,
        attempts=attempts,
        run=result.run,
        verdict=result.verdict,
        points=result.points,
        top=top_of(result.points),
        judged=judged,
        columns=columns,
        rows=rows,
        legend=tables.legend(result),
        answers=answers.of(result, strip(result), proof(result)),
        strip=strip(result),
        proof=proof(result),
        charts=charts,
        provenance=provenance,
        collective_columns=measured.COLUMNS,
        collective_rows=measured.rows(result.collectives) if result.collectives else [],
        copy_columns=measured.COPY_COLUMNS,
        copy_rows=measured.copy_rows(result.collectives) if result.collectives else [],
        when=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(result.run["loadgen"]["started"])),
        simulated=simulated(provenance),
        about=result.run.get("about", ""),
        baseline=baseline.folder.name if baseline else "",
        against=against,
        compare_columns=compare.COLUMNS,
        compare_rows=compare.rows(against.points) if against else [],
    )


def _from_here(folder: Path) -> Path:
    """As people would type it: a report travels, and whose home it was made in is nobody's business."""
    here = Path.cwd()
    return folder.relative_to(here) if folder.is_relative_to(here) else folder


def simulated(provenance: Mapping[str, Mapping[str, str]]) -> str | None:
    """What the serving package says of itself where it is no real one: its numbers must never be taken for hardware."""
    told = provenance.get("server", {}).get("package_summary", "")
    return told if "stand-in" in told else None


def strip(result: BenchResult) -> list[Check]:
    """The validity strip."""
    points = result.points
    valid, asked = sum(point["valid"] for point in points), len(result.run["loadgen"]["sweep"])
    sent = sum(point["requests"]["sent"] for point in points)
    failed = sum(point["requests"]["failed"] for point in points)
    prompt = sum(point["tokens"]["prompt"] for point in points)
    cached = sum(cached_of(point) for point in points)
    differences = [p["server"]["difference"] for p in points if p["server"]["difference"] is not None]
    worst = max(differences, key=abs, default=None)
    limits, top = result.limits, max((p["concurrency"] for p in points), default=0)
    late, busy = _client(result)
    graphs = "off" if limits.graphs_off else f"up to {streams(limits.graph_max)}" if limits.graph_max else "not told"
    check = result.run["loadgen"].get("self_check")
    return [
        *_noise(points),
        *_clocks(points),
        ("valid points", f"{valid} of {asked}", valid == asked),
        ("requests failed", f"{failed} of {sent}", failed <= 0.01 * sent),
        (
            "tokens, client to server",
            "server tells none" if worst is None else f"{worst:+.2%}",
            None if worst is None else abs(worst) <= 0.01,
        ),
        (
            "prompt tokens cached",
            f"{cached / prompt:.1%}" if prompt else "not told",
            all(not _fault(p, "prefix cache") for p in points) if prompt else None,
        ),
        (
            "CUDA graphs",
            graphs,
            not limits.graphs_off and (limits.graph_max or top) >= top if graphs != "not told" else None,
        ),
        (
            "client late p99, busy",
            f"{late:.2g} ms, {busy:.0%} of a core",
            all(not _fault(p, "the client ") for p in points),
        ),
        (
            "null server",
            f"{min(check['rate'], check['seen_rate']):,.0f} chunks/s" if check else "not run",
            bool(check and check["ok"]),
        ),
        *_canary(result),
    ]


def _canary(result: BenchResult) -> list[Check]:
    canary = result.run.get("canary")
    if result.run.get("about") and not canary:  # an experiment, and it says of what kind
        return [("canary afterwards", "none, as said above", None)]
    return [
        ("canary afterwards", canary["verdict"] if canary else "not run", bool(canary) and not result.canary_failed)
    ]


def _noise(points: Sequence[Mapping[str, Any]]) -> list[Check]:
    """Between the passes over one sweep, where there were several: half of what lies between the furthest two."""
    apart = []
    for point in points:
        rates = [one["tok_s"] for one in point.get("repeats") or () if one["tok_s"]]
        if len(rates) > 1:
            apart.append((max(rates) - min(rates)) / (max(rates) + min(rates)))
    return [("passes apart, at most", f"±{max(apart):.1%}", max(apart) <= APART)] if apart else []


def _clocks(points: Sequence[Mapping[str, Any]]) -> list[Check]:
    told = [point["hardware"] for point in points if point.get("hardware")]
    if not told:
        return []
    held = sorted({reason for one in told for reason in one["throttled"]})
    speeds = [one["sm_mhz"] for one in told if one["sm_mhz"]]
    ends = sorted({f"{min(speeds):.0f}", f"{max(speeds):.0f}"}, key=float) if speeds else []
    span = f"{' to '.join(ends)} MHz" if ends else "not told"
    return [("clocks", ", ".join(held) or span, not held)]


def _fault(point: Mapping[str, Any], begins: str) -> bool:
    return any(fault.startswith(begins) for fault in point["faults"])


def _provenance(folder: Path) -> dict[str, dict[str, str]]:
    import json

    try:
        found: dict[str, dict[str, str]] = json.loads((folder / "provenance.json").read_text())
    except (OSError, ValueError):
        return {}
    return found
