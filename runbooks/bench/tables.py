"""The points of a run as a table: for a page, a narrow screen, and as CSV. A column that nothing fills is left out."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

from runbooks.bench.charts import number
from runbooks.bench.results import BenchResult
from runbooks.bench.words import NOISY, half_of, noisy, plus_minus

Rates = Mapping[int, float]

STATE = ""  # the heading of the column of VALID or INVALID
TITLE = "tok/s: end to end; decode, and decode of ceiling and of reference; TTFT p50, ITL p99 in ms"
SCREEN = ("streams", "tok/s", "decode", "of ceiling", "of reference", "TTFT", "ITL", STATE)


def table(result: BenchResult, baseline: Rates | None = None) -> tuple[list[str], list[list[str]]]:
    """Columns and rows. `baseline`: streams -> tok/s end to end of another run."""
    cells = [_cells(result, point, baseline or {}) for point in result.points]
    kept = [name for name in (cells[0] if cells else ()) if any(row[name] != "-" for row in cells)]
    return kept, [[row[name] for name in kept] for row in cells]


def _cells(result: BenchResult, point: Mapping[str, Any], baseline: Rates) -> dict[str, str]:
    b, decode, ceiling, requests = (point[n] for n in ("concurrency", "decode_tok_s", "ceiling_tok_s", "requests"))
    reference, before = result.reference.get(b), baseline.get(b)
    failed = f", {requests['failed']} failed" if requests["failed"] else ""
    hardware, cards = point.get("hardware") or {}, result.run["gpus"]["count"]
    watts = hardware.get("watts")
    return {
        "streams": f"{point['open']['offered']:g}/s" if point.get("open") else str(b),
        STATE: _state(point),
        "tok/s": _with_interval(point),
        "decode": number(decode) if decode else "-",
        "of ceiling": f"{decode / ceiling:.0%}" if decode and ceiling else "-",
        "reference": number(reference) if reference else "-",
        "decode to it": f"{decode / reference:.0%}" if decode and reference else "-",
        "a user": number(point["user_tok_s"]) if decode else "-",
        "a GPU": number(decode / cards) if decode and cards > 1 else "-",
        "step ms": number(point["step_ms"]) if decode else "-",
        "TTFT p50/p95/p99": _several(point["ttft_ms"], "p50", "p95", "p99"),
        "ITL p50/p99": _several(point["itl_ms"], "p50", "p99"),
        "E2E p50/p99": _several(point["e2e_ms"], "p50", "p99"),
        "requests": f"{requests['ok']}{failed}",
        "in flight": f"{point['in_flight']:.1f}",
        "watts": number(watts) if watts else "-",
        "J a token": number(watts / point["tok_s"]) if watts and point["tok_s"] else "-",
        "to baseline": f"{point['tok_s'] / before - 1:+.1%}" if before and point["tok_s"] and point["valid"] else "-",
    }


def _state(point: Mapping[str, Any]) -> str:
    """With its interval where that is wide: a number may be right, and still be known to no more than a third."""
    return ("VALID" if point["valid"] else "INVALID") + (f", {half}" if (half := noisy(point)) else "")


def short_rows(result: BenchResult) -> list[list[str]]:
    """What fits into 80 columns, under SCREEN: one row a point."""
    found = []
    for point in result.points:
        cell = _cells(result, point, {})
        rates = [cell[name] for name in ("streams", "tok/s", "decode", "of ceiling", "decode to it")]
        pauses = [_several(point["ttft_ms"], "p50"), _several(point["itl_ms"], "p99")]
        found.append([*rates, *pauses, cell[STATE]])
    return found


CSV_COLUMNS = (
    *("streams", "rate", "valid", "tok_s", "tok_s_ci", "decode_tok_s", "user_tok_s", "step_ms", "step_ci", "in_flight"),
    *("ttft_p50_ms", "ttft_p95_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms", "e2e_p99_ms", "requests_ok"),
    *("requests_failed", "watts", "joule_a_token", "sm_mhz", "ceiling_tok_s", "reference_tok_s", "faults"),
)


def as_csv(result: BenchResult) -> str:
    """Every point with all its digits; an empty field is not known."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for point in result.points:
        told = {name: point[name] for name in ("tok_s", "tok_s_ci", "decode_tok_s", "user_tok_s", "step_ms", "step_ci")}
        told |= {"streams": point["concurrency"], "valid": int(point["valid"]), "in_flight": point["in_flight"]}
        told["rate"] = point["open"]["offered"] if point.get("open") else None  # requests/s that were due
        for name, wanted in (("ttft", ("p50", "p95", "p99")), ("itl", ("p50", "p99")), ("e2e", ("p99",))):
            told |= {f"{name}_{q}_ms": _told(point[f"{name}_ms"], q) for q in wanted}
        told |= {f"requests_{name}": point["requests"][name] for name in ("ok", "failed")}
        hardware = point.get("hardware") or {}
        told |= {name: hardware.get(name) for name in ("watts", "sm_mhz")}
        told["joule_a_token"] = told["watts"] / point["tok_s"] if told["watts"] and point["tok_s"] else None
        told["ceiling_tok_s"], told["faults"] = point["ceiling_tok_s"], "; ".join(point["faults"])
        told["reference_tok_s"] = result.reference.get(point["concurrency"])
        writer.writerow(["" if told[name] is None else told[name] for name in CSV_COLUMNS])
    return out.getvalue()


def _with_interval(point: Mapping[str, Any]) -> str:
    half = half_of(point)
    return number(point["tok_s"]) + ("" if half is None else f" {plus_minus(half)}")


def _told(values: Mapping[str, float] | None, name: str) -> float | None:
    """A percentile; None where so few values cannot tell it: above the p99 of 99 there is no value at all."""
    if not values or (name != "p50" and values["n"] * (100 - int(name[1:])) < 100):
        return None
    return values[name]


def _several(values: Mapping[str, float] | None, *names: str) -> str:
    known = [_told(values, name) for name in names]
    return " / ".join("-" if one is None else number(one) for one in known) if any(known) else "-"


def legend(result: BenchResult) -> str:
    """What the columns mean, below them; what is odd about these very points is explained."""
    points = result.points
    told = [
        "tok/s: output tokens in the window, prefill pauses included (end to end), ± half its 95 % interval from batch "
        f"means; where that is more than ±{NOISY:.0%} of it, it stands beside VALID. decode: tok/s while all streams "
        "decode; a user: of one stream; a GPU: of one card; a step is streams / decode. Of ceiling: decode against "
        "what memory bandwidth allows. TTFT, ITL, E2E: time to first token, between two pieces of text, of the whole "
        "request, in ms; - where too few came to tell (a p95 needs 20, a p99 needs 100). Watts: of all cards."
    ]
    if result.reference:
        told.append(f"Decode to it: decode against the reference sweep ({_source(result)}).")
    if any(point["decode_tok_s"] and point["tok_s"] > point["decode_tok_s"] for point in points):
        told.append(
            "tok/s stands above decode where a prompt takes less than a step: the first token of an answer comes with "
            "its prompt, and costs no step."
        )
    if any(point["requests"]["ok"] and not point["e2e_ms"] for point in points):
        told.append("No E2E: no request that began after the first ones ended within the window, which is too short.")
    return " ".join(told)


def _source(result: BenchResult) -> str:
    """What the published figure is, as its source says."""
    return str(result.run.get("reference_source") or "its source is not told").strip().rstrip(".")
