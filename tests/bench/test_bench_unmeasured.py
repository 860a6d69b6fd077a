"""Collectives that were not measured, or of which nothing can be believed; and a report that cannot be drawn."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runbooks.bench import EXAMPLE, assess, between, measured, report, report_only
from runbooks.bench.measured import Unusable
from runbooks.bench.sweep import finish, tell_report
from runbooks.engine.errors import RunbookError
from runbooks.engine.report import Reporter
from runbooks.engine.transport import Connection
from tests.bench.test_bench_collectives import host_with_runtime, two_h200
from tests.recorder import Recorder

TEXT = "RuntimeError: this torch cannot compute: a stand-in"
# As `measure` of collectives/cli.py leaves it where torch cannot compute.
NOTHING: dict[str, Any] = {
    "format": 1, "started": 1.0, "token_bytes": 12_288, "environment": {}, "ranks": 0, "backend": None, "cards": [],
    "collectives": [], "ladder": {"word": "inconclusive", "why": [TEXT]}, "held_by": [],
    "errors": [{"part": "what torch sees", "state": "failed", "text": TEXT}],
}  # fmt: skip


def told_by(tmp_path: Path, document: dict[str, Any]) -> str:
    event = json.dumps({"event": "result", "result": document})
    (tmp_path / "event").write_text(f"{event}\n")
    return f"#!/bin/sh\ncat {tmp_path}/event\n"


def test_a_measurement_that_has_nothing_is_not_kept_and_takes_no_better_ones_place(
    local: Connection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loaded = host_with_runtime(local, monkeypatch, tmp_path, told_by(tmp_path, NOTHING))
    quiet = Reporter(Recorder())
    with pytest.raises(RunbookError) as error:
        between.measure(local, loaded, report=quiet, out=tmp_path / "out")
    assert str(error.value).count(TEXT) == 1
    assert error.value.next == "invoke doctor --hosts glm5-a, then the same command"
    assert not (tmp_path / "out").exists()
    assert not Path(between.KEPT).exists()
    told_by(tmp_path, two_h200())
    good = between.measure(local, loaded, report=quiet, out=tmp_path / "out")
    told_by(tmp_path, NOTHING)
    with pytest.raises(RunbookError, match="nothing was measured"):
        between.measure(local, loaded, report=quiet, out=tmp_path / "out")
    assert between.latest(local, quiet) == good


def test_an_old_one_on_the_host_that_has_nothing_is_said_and_left_out(
    local: Connection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(between, "KEPT", str(tmp_path / "collectives.json"))
    for content in (json.dumps(NOTHING), "[1]", "{", '{"format": 1}'):
        Path(between.KEPT).write_text(content)
        said = Recorder()
        assert between.latest(local, Reporter(said)) is None
        assert "count as not measured; again: invoke bench.collectives" in said.events[-1].text


def test_what_hung_is_told_without_an_empty_table_and_without_a_proof(tmp_path: Path) -> None:
    hung = NOTHING | {"ranks": 2, "backend": "gloo", "ladder": {"word": "hang", "why": [TEXT]}}
    told = measured.sound(hung)
    assert isinstance(told, dict), "a hang is a finding"
    said = Recorder()
    between.show(told, Reporter(said), "glm5-a")
    texts = [event.text for event in said.events]
    assert not any("every result checked" in text or "proves the path" in text for text in texts)
    assert sum(TEXT in text for text in texts) == 1


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in two_h200().items() if name != key}


@pytest.mark.served
@pytest.mark.parametrize("key", sorted(two_h200()))
def test_a_report_is_drawn_whatever_key_the_collectives_lack(tmp_path: Path, key: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(EXAMPLE, folder)
    (folder / measured.FILE).write_text(json.dumps(without(key)))
    (folder / "report.html").unlink()
    result = finish(folder)
    assert (folder / "report.html").exists()
    assert result.collectives or "count as not measured" in result.verdict.collectives
    assert measured.sound(two_h200() | {key: None}) == measured.sound(without(key))


@pytest.mark.served
def test_a_run_with_an_old_bad_file_says_that_nothing_was_measured(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(EXAMPLE, folder)
    (folder / measured.FILE).write_text(json.dumps(NOTHING))
    said = Recorder()
    assert report_only(folder, tmp_path / "out", Reporter(said)) == 0
    wanted = "the measurement of the collectives failed before it had anything: they count as not measured"
    for text in ((tmp_path / "out" / name).read_text() for name in ("report.html", "report.md")):
        assert wanted in text
        assert "Every result was checked" not in text
    assert any(wanted in event.text for event in said.events)


SPOILT: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
    ("ladder", lambda told: told["ladder"].pop("why")),
    ("a time of zero", lambda told: told["collectives"][0].update(us=0.0, right=True)),
    ("a row", lambda told: told["collectives"].append({"op": "all_reduce"})),
    ("a copy", lambda told: told["host"].append([1])),
]


@pytest.mark.parametrize(("what", "spoil"), SPOILT, ids=[what for what, _ in SPOILT])
def test_what_is_damaged_counts_as_not_measured(what: str, spoil: Callable[[dict[str, Any]], Any]) -> None:
    told = two_h200()
    assert isinstance(measured.sound(told), dict)
    spoil(told)
    assert isinstance(measured.sound(told), Unusable), what


@pytest.mark.served
def test_a_report_that_cannot_be_drawn_costs_no_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    shutil.copytree(EXAMPLE, folder)
    for name in ("points.json", "report.html", "report.md"):
        (folder / name).unlink(missing_ok=True)

    def torn(*args: Any) -> None:
        raise ValueError("a chart of nothing")

    monkeypatch.setattr(report, "write", torn)
    said = Recorder()
    result = finish(folder, Reporter(said), "glm5-a")
    assert result.verdict == assess(EXAMPLE).verdict
    assert json.loads((folder / "points.json").read_text())["verdict"]["word"] == result.verdict.word
    (note,) = [event.text for event in said.events if "could not be drawn" in event.text]
    assert "a chart of nothing" in note
    assert f"next: invoke bench.report {folder}" in note
    assert not tell_report(result, Reporter(said))
    with pytest.raises(ValueError, match="a chart of nothing"):
        finish(folder)
