"""The points of a run as a table: for a page, a narrow screen, and as CSV. A column that nothing fills is left out."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

from runbooks.bench.charts import number
from runbooks.bench.results import BenchResult

Rates = Mapping[int, float]

STATE = ""  # the heading of the last column: VALID or INVALID
SCREEN = ("streams", "tok/s", "decode", "TTFT p99", "ITL p99", "ceiling", "reference", STATE)


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
        "tok/s": _with_interval(point["tok_s"], point["tok_s_ci"]),
        "decode": number(decode) if decode else "-",
        "a user": number(point["user_tok_s"]) if decode else "-",
        "a GPU": number(decode / cards) if decode and cards > 1 else "-",
        "step ms": number(point["step_ms"]) if decode else "-",
        "TTFT p50/p95/p99": _several(point["ttft_ms"], "p50", "p95", "p99"),
        "ITL p50/p99": _several(point["itl_ms"], "p50", "p99"),
        "E2E p99": _several(point["e2e_ms"], "p99"),
        "requests": f"{requests['ok']}{failed}",
        "in flight": f"{point['in_flight']:.1f}",
        "watts": number(watts) if watts else "-",
        "J a token": number(watts / point["tok_s"]) if watts and point["tok_s"] else "-",
        "of ceiling": f"{decode / ceiling:.0%}" if decode and ceiling else "-",
        "reference": number(reference) if reference else "-",
        "to it": f"{decode / reference:.0%}" if decode and reference else "-",
        "to baseline": f"{point['tok_s'] / before - 1:+.1%}" if before and point["tok_s"] and point["valid"] else "-",
        STATE: "VALID" if point["valid"] else "INVALID",
    }


def short_rows(result: BenchResult) -> list[list[str]]:
    """What fits into 80 columns, under SCREEN: one row a point."""
    found = []
    for point in result.points:
        cell = _cells(result, point, {})
        reference = f"{cell['reference']} ({cell['to it']})" if cell["to it"] != "-" else cell["reference"]
        rates = [cell["streams"], number(point["tok_s"]), cell["decode"]]
        pauses = [_several(point[name], "p99") for name in ("ttft_ms", "itl_ms")]
        found.append([*rates, *pauses, cell["of ceiling"], reference, cell[STATE]])
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
            told |= {f"{name}_{q}_ms": (point[f"{name}_ms"] or {}).get(q) for q in wanted}
        told |= {f"requests_{name}": point["requests"][name] for name in ("ok", "failed")}
        hardware = point.get("hardware") or {}
        told |= {name: hardware.get(name) for name in ("watts", "sm_mhz")}
        told["joule_a_token"] = told["watts"] / point["tok_s"] if told["watts"] and point["tok_s"] else None
        told["ceiling_tok_s"], told["faults"] = point["ceiling_tok_s"], "; ".join(point["faults"])
        told["reference_tok_s"] = result.reference.get(point["concurrency"])
        writer.writerow(["" if told[name] is None else told[name] for name in CSV_COLUMNS])
    return out.getvalue()


def _with_interval(value: float, half: float | None) -> str:
    return number(value) if half is None or not value else f"{number(value)} ±{half / value:.1%}"


def _several(values: Mapping[str, float] | None, *names: str) -> str:
    return " / ".join(number(values[name]) for name in names) if values else "-"
