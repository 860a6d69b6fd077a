"""The bundled example: recomputed to the same numbers, rendered, and spoilt in ways that must show."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runbooks.bench import EXAMPLE, assess, recompute, recompute_run, report_only, tables
from runbooks.bench.asked import streams_of
from runbooks.bench.loadgen import rawlog
from runbooks.bench.report import write
from runbooks.bench.results import BenchResult
from runbooks.engine.errors import RunbookError, UsageError
from runbooks.engine.report import Reporter
from tests.recorder import Recorder


@pytest.fixture(scope="module")
def example() -> BenchResult:
    return assess(EXAMPLE)


def spoilt(tmp_path: Path, **changes: Any) -> Path:
    """A copy of the example, with the smallest raw logs only, and run.json changed."""
    folder = tmp_path / "run"
    shutil.copytree(EXAMPLE, folder)
    for log in sorted((folder / "raw").glob("*.bin"))[3:]:
        log.unlink()
    run = json.loads((folder / "run.json").read_text())
    run["raw_sha256"] = {name: digest for name, digest in run["raw_sha256"].items() if (folder / "raw" / name).exists()}
    (folder / "run.json").write_text(json.dumps(run | changes))
    return folder


@pytest.mark.served
def test_every_number_comes_out_again_from_the_raw_logs() -> None:
    again = recompute(EXAMPLE)
    assert again.differences == ()
    assert again.changed_logs == ()
    assert [point["concurrency"] for point in again.result.points] == [1, 2, 4, 8, 16, 32, 64]


def test_a_changed_number_and_a_changed_log_are_found(tmp_path: Path) -> None:
    folder = spoilt(tmp_path)
    stored = json.loads((folder / "points.json").read_text())
    stored["points"] = stored["points"][:3]
    stored["points"][1]["tok_s"] *= 1.5
    (folder / "points.json").write_text(json.dumps(stored))
    log = next((folder / "raw").glob("02*.bin"))
    log.write_bytes(log.read_bytes()[:-40])
    again = recompute(folder)
    assert "points[1].tok_s" in again.differences
    assert again.changed_logs == (log.name,)
    with pytest.raises(RunbookError, match="does not come out the same"):
        recompute_run(folder, Reporter(Recorder()))


def test_the_example_says_what_it_is_and_begins_with_the_verdict(example: BenchResult, tmp_path: Path) -> None:
    write(example, tmp_path)
    page = (tmp_path / "report.html").read_text()
    text = (tmp_path / "report.md").read_text()
    assert "not SGLang, not the trained model" in page
    assert "random weights" in text
    assert (tmp_path / "points.csv").read_text().count("\n") == 8
    assert text.startswith(f"# {example.verdict.word}:")
    body = page[page.index("<body>") :]
    first = ["How fast is it?", "1,655 tok/s", "Can I believe it?", "Yes", "7 of 7 points VALID"]
    first += ["What bounds it?", "Memory bandwidth", "<table>"]
    places = [body.index(f">{text}" if text[0] != "<" else text) for text in first]
    assert places == sorted(places)
    assert not re.search(r'(?:src|href)="(?!#)|@import|url\((?!#)|<script', page)  # nothing is fetched
    assert page.count("<svg") == 11
    assert "VALID" in page


def test_both_reports_tell_it_in_the_same_order(example: BenchResult, tmp_path: Path) -> None:
    """The verdict, whether to believe it, every point, the plots, a baseline, what would help, where it comes from."""
    write(example, tmp_path, example)
    page, text = (tmp_path / "report.html").read_text(), (tmp_path / "report.md").read_text()
    for told, parts in (
        (page[page.index("<body>") :], [
            'class="answers"', 'class="verdict"', 'class="strip"', "Every point</h2>", "<h2>Throughput against",
            "<h2>Against example", "<h2>What each option would give", "<h2>Provenance",
        ]),
        (text, [
            "# memory", "How fast is it?", "| check | value |", "| streams |", "## Against example",
            "## What each option would give", "## Provenance",
        ]),
    ):  # fmt: skip
        places = [told.index(part) for part in parts]
        assert places == sorted(places), [part for _, part in sorted(zip(places, parts, strict=True))]


def luminance(colour: str) -> float:
    """Of WCAG 2: 0 is black, 1 is white."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_light_and_dark_are_both_to_be_read(example: BenchResult, tmp_path: Path) -> None:
    """Each colour has its own in the dark, text stands out from what is behind it, and so does every line and bar."""
    write(example, tmp_path)
    style = (tmp_path / "report.html").read_text().partition("</style>")[0]
    light, dark = (dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", part)) for part in style.split("@media")[:2])
    assert "prefers-color-scheme: dark" in style.split("@media")[1]
    assert set(light) == set(dark)
    assert luminance(light["page"]) > 0.8
    assert luminance(dark["page"]) < 0.02
    for theme in (light, dark):
        for text, behind in (("ink", "card"), ("ink", "page"), ("soft", "card"), ("good", "card"), ("bad", "bad-back")):
            assert contrast(theme[text], theme[behind]) >= 4.5, (text, behind)
        for drawn in ("measured", "reference", "bad", "memory", "compute", "communication", "baseline", "roof"):
            assert contrast(theme[drawn], theme["card"]) >= 2.5, drawn


def test_an_open_loop_has_its_rate_in_the_csv(example: BenchResult) -> None:
    point = dict(example.points[0]) | {"open": {"offered": 2.5, "started": 2.4, "ended": 2.4, "late_ms": None}}
    rows = list(csv.DictReader(io.StringIO(tables.as_csv(replace(example, points=(point, *example.points[1:]))))))
    assert [row["rate"] for row in rows] == ["2.5", "", "", "", "", "", ""]
    assert [float(row["tok_s"]) for row in rows] == [point["tok_s"] for point in example.points]
    assert [row["valid"] for row in rows] == ["1"] * 7


def test_what_measured_stands_in_the_provenance(example: BenchResult, tmp_path: Path) -> None:
    run = dict(example.run) | {"tool": {"version": "7.8.9", "commit": "0123456789ab-dirty", "loadgen": "cafe12345678"}}
    write(replace(example, run=run), tmp_path)
    said = "commit 0123456789ab-dirty, loadgen cafe12345678, version 7.8.9"
    assert f"<dt>measured by</dt><dd>{said}</dd>" in (tmp_path / "report.html").read_text()
    assert f"- measured by: {said}\n" in (tmp_path / "report.md").read_text()
    page = (tmp_path / "report.html").read_text()
    for told in (*example.run["raw_sha256"].values(), "NVLink", "NCCL_NVLS_ENABLE=0", "580.159.04", "6.18.44"):
        assert told in page[page.index("<h2>Provenance") :], told


def test_the_example_is_a_whole_run_of_real_cards(example: BenchResult) -> None:
    for point in example.points:
        assert point["requests"]["failed"] == 0
        assert point["valid"], point["faults"]
        assert len(point["repeats"]) == 2
        assert 200 < point["hardware"]["watts"] < 1400  # two cards of 700 W at most
        assert point["decode_tok_s"] < point["ceiling_tok_s"]
    assert example.verdict.word == "memory"
    assert example.verdict.shares[-1].communication is not None
    assert "STOP TUNING" not in example.verdict.advice


@pytest.mark.served
def test_a_baseline_stands_beside_the_run(example: BenchResult, tmp_path: Path) -> None:
    write(example, tmp_path, example)
    page = (tmp_path / "report.html").read_text()
    assert "Against example" in page
    assert page.count("no difference") == 7
    assert 'class="faster"' not in page  # no colour inside the noise
    for place, factor, word in ((0, 0.5, "faster"), (1, 2.0, "slower")):
        points = list(example.points)
        points[place] = {**points[place], "tok_s": points[place]["tok_s"] * factor}
        write(example, tmp_path, replace(example, points=tuple(points)))
        page = (tmp_path / "report.html").read_text()
        assert page.count(f'class="{word}"') == 1  # and one outside of it
        assert page.count("no difference") == 6
        assert sum(page.count(f'class="{one}"') for one in ("faster", "slower")) == 1
        assert f"td.{word} {{ color: var(--{'good' if word == 'faster' else 'bad'})" in page
    write(example, tmp_path, example)
    assert "to baseline" in (tmp_path / "report.md").read_text()


def test_an_invalid_point_is_never_drawn_as_valid(tmp_path: Path) -> None:
    folder = spoilt(tmp_path)
    run = json.loads((folder / "run.json").read_text())
    run["loadgen"]["server_info_before"]["cuda_graph_max_bs_decode"] = 2
    (folder / "run.json").write_text(json.dumps(run))
    result = assess(folder)
    assert [point["valid"] for point in result.points] == [True, True, False]
    assert not result.valid
    write(result, folder)
    page = (folder / "report.html").read_text()
    assert page.count('<g class="cross"') == 1
    assert 'class="invalid"' in page
    assert "4 streams INVALID: CUDA graphs end at 2 streams" in page
    chart = page[page.index("Throughput against concurrency</h2>") :].split("</svg>")[0]
    series = chart[chart.index('class="line measured"') :].partition("</g> </g>")[0]
    assert series.count("<use ") == chart.count('class="value"') == 2
    for heading in ("tok/s over time, 4 streams: INVALID", "Every request of the first seconds, 4 streams: INVALID"):
        assert f"<h2>{heading}</h2>" in page
    over_time = page[page.index("<h2>tok/s over time") :].split("</svg>")[0]
    assert 'class="line bad"' in over_time
    assert 'class="line measured"' not in over_time
    assert result.verdict.shares[-1].b == 2


@pytest.mark.served
def test_collectives_beside_a_run_are_judged_and_shown(tmp_path: Path) -> None:
    folder = spoilt(tmp_path)
    told = json.loads((Path(__file__).parent / "data" / "collectives-two-h200.json").read_text())
    (folder / "collectives.json").write_text(json.dumps(told))
    result = assess(folder)
    assert result.verdict.shares[-1].communication is not None
    write(result, folder)
    page, text = (folder / "report.html").read_text(), (folder / "report.md").read_text()
    assert "Collectives, measured over 2 GPUs" in page
    assert "all-reduce, measured" in page
    assert page.count("<svg") == 11
    assert "| all-reduce | 64 | 768 | 27.8 | 14.5 | 54.20 |" in text
    assert "| expert parallelism |" in text
    (folder / "collectives.json").write_text(json.dumps(told | {"ranks": 8}))
    assert "over 8 GPUs, the server uses 2" in assess(folder).verdict.collectives


@pytest.mark.parametrize(
    ("about", "canary", "said"),
    [
        ("", None, "garbage: hardly a token comes twice in "),  # what random weights make is no language either
        ("random weights", None, ""),
        ("random weights", {"verdict": "nan", "found": [], "requests": 9}, ""),
        (
            "",
            {"verdict": "nan", "found": ["sum: '!!!!'"], "requests": 9},
            "NaN, as the canary found after the sweep: sum",
        ),
    ],
)
def test_a_model_of_broken_numbers_has_no_valid_point(
    tmp_path: Path, about: str, canary: dict[str, Any] | None, said: str
) -> None:
    result = assess(spoilt(tmp_path, about=about, canary=canary))
    assert [point["valid"] for point in result.points] == [not said] * 3
    for point in result.points if said else ():
        assert [fault for fault in point["faults"] if fault.startswith(said)]
    assert (result.verdict.word == "no verdict") is bool(said)


def test_a_run_without_one_valid_point_still_has_a_report(tmp_path: Path) -> None:
    folder = spoilt(tmp_path)
    run = json.loads((folder / "run.json").read_text())
    run["loadgen"]["input_len"] = 7
    run["gpus"]["name"] = "Voodoo 2"
    (folder / "run.json").write_text(json.dumps(run))
    logs = sorted((folder / "raw").glob("*.bin"))
    logs[2].unlink()
    for log in logs[:2]:  # as if every prompt had been asked to be much shorter
        blocks = list(rawlog.decode(log.read_bytes()))
        blocks[0][0]["input_len"] = 7
        rawlog.write(log, blocks)
    for left in (2, 0):
        for log in logs[left:2]:
            log.unlink()
        result = assess(folder)
        assert len(result.points) == left
        assert result.verdict.word == "no verdict"
        write(result, folder)
        assert "no verdict" in (folder / "report.html").read_text()


@pytest.mark.served
def test_report_only_shows_the_table_and_writes_the_page(tmp_path: Path) -> None:
    kept = Recorder()
    assert report_only(None, tmp_path / "out", Reporter(kept)) == 0
    assert (tmp_path / "out" / "report.html").exists()
    table = next(event for event in kept.events if event.kind == "table")
    assert [row[0] for row in table.data["rows"]] == ["1", "2", "4", "8", "16", "32", "64"]
    assert "of ceiling" in table.data["columns"]
    assert [row[1] for row in table.data["rows"]][::6] == ["135 ±1.0%", "1,260 ±3.3%"]


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a results folder"):
        report_only(tmp_path, tmp_path / "out", Reporter(Recorder()))
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(UsageError, match=r"run\.json"):
        recompute_run(tmp_path, Reporter(Recorder()))
    (tmp_path / "run.json").write_text('{"format": 99}')
    with pytest.raises(UsageError, match="format 99"):
        assess(tmp_path)
    assert streams_of(["1,2", "8"]) == (1, 2, 8)
    for word in ("0", "many", "-3", "99999"):
        with pytest.raises(UsageError, match="not a number of streams"):
            streams_of([word])
