"""What is known only roughly is said so, wherever people read it; what so few values cannot tell is not told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runbooks.bench import EXAMPLE, assess, overtime, tables
from runbooks.bench.report import show, texts
from runbooks.bench.results import BenchResult
from runbooks.bench.words import NOISY, doubts, noisy
from runbooks.engine.report import Reporter
from tests.recorder import Recorder


@pytest.fixture(scope="module")
def example() -> BenchResult:
    return assess(EXAMPLE)


def with_interval(result: BenchResult, half: float | None, **more: Any) -> BenchResult:
    """The point of 8 streams known to `half` of its rate."""
    points = [dict(point) for point in result.points]
    points[3]["tok_s_ci"] = None if half is None else half * points[3]["tok_s"]
    points[3] |= more
    return replace(result, points=tuple(points))


def said(result: BenchResult) -> tuple[list[list[str]], str]:
    """Rows of the table on the screen, and the notes below."""
    seen = Recorder()
    show(result, Reporter(seen))
    rows = next(event for event in seen.events if event.kind == "table").data["rows"]
    return rows, "\n".join(event.text for event in seen.events if event.kind == "note")


@pytest.mark.parametrize(
    ("half", "mark"), [(NOISY, ""), (0.0501, "±5.0%"), (0.0961, "±10%"), (0.301, "±30%"), (None, "± unknown")]
)
def test_a_point_that_is_known_roughly_is_marked_everywhere(
    example: BenchResult, half: float | None, mark: str
) -> None:
    result = with_interval(example, half)
    rows, notes = said(result)
    state = f"VALID, {mark}" if mark else "VALID"
    assert [row[-1] for row in rows] == ["VALID"] * 3 + [state] + ["VALID"] * 3
    sentence = "8 streams is known to" if half else "8 streams: nobody can say how well it is known"
    written = texts(result)
    for told in (notes, written["report.html"], written["report.md"]):
        assert (sentence in told) is bool(mark)
    for told in (written["report.html"], written["report.md"]):
        assert ("Yes, but" in told) is bool(mark)
        assert state in told
    assert ('class="state noisy"' in written["report.html"]) is bool(mark)
    assert all("±" in row[1] for row in rows if row[0] != "8" or half)


def test_what_is_invalid_has_no_doubt_beside_it(example: BenchResult) -> None:
    result = with_interval(example, 0.3, valid=False, faults=["split test"])
    assert noisy(result.points[3]) == ""
    assert doubts(result.points) == []
    assert said(result)[0][3][-1] == "INVALID"


@pytest.mark.parametrize(
    ("count", "told"),
    [(1, "1.00 / - / -"), (19, "1.00 / - / -"), (20, "1.00 / 2.00 / -"), (100, "1.00 / 2.00 / 3.00")],
)
def test_a_percentile_that_so_few_cannot_tell(example: BenchResult, count: int, told: str) -> None:
    values = {"n": float(count), "p50": 1.0, "p95": 2.0, "p99": 3.0}
    columns, rows = tables.table(with_interval(example, 0.01, ttft_ms=values))
    assert rows[3][columns.index("TTFT p50/p95/p99")] == told
    row = tables.as_csv(with_interval(example, 0.01, ttft_ms=values)).splitlines()[4].split(",")
    assert row[tables.CSV_COLUMNS.index("ttft_p99_ms")] == ("3.0" if count == 100 else "")


def test_what_is_odd_about_these_points_is_explained(example: BenchResult) -> None:
    plain = tables.legend(example)
    assert "above decode" not in plain
    assert "No E2E" not in plain
    assert "reference" not in plain
    above = with_interval(example, 0.01, tok_s=1.01 * example.points[3]["decode_tok_s"], e2e_ms=None)
    assert "the first token of an answer comes with its prompt" in tables.legend(above)
    assert "No E2E: no request that began after the first ones ended" in tables.legend(above)


def test_the_reference_is_that_of_decode_and_says_what_it_is(example: BenchResult) -> None:
    run = {**example.run, "reference": {"8": 500.0}, "reference_source": "decode throughput, somewhere."}
    result = replace(example, run=run)
    columns, rows = tables.table(result)
    decode = example.points[3]["decode_tok_s"]
    assert rows[3][columns.index("decode to it")] == f"{decode / 500.0:.0%}"
    assert "decode against the reference sweep (decode throughput, somewhere)" in tables.legend(result)
    assert said(result)[0][3][4] == f"{decode / 500.0:.0%}"


def test_a_line_ends_where_nobody_measured() -> None:
    first, second = [(float(at), 1.0) for at in range(10)], [(float(at), 2.0) for at in range(60, 70)]
    assert list(overtime.unbroken([*first, *second])) == [first, second]
    assert list(overtime.unbroken(first)) == [first]
    late = [(at, 1.0) for at in (0.0, 1.0, 2.0, 5.0, 6.0)]
    assert list(overtime.unbroken(late)) == [late]  # a sampler that was late twice has no gap
