"""The bundled example: recomputed to the same numbers, rendered, and spoilt in ways that must show."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from runbooks.bench import EXAMPLE, assess, recompute, recompute_run, report_only
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
    assert "ceiling" in table.data["columns"]


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
