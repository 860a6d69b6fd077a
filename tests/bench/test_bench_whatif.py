"""`invoke ceiling`, `invoke bench.compare`, `invoke results`: the published figures, and what may be compared."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runbooks.bench import EXAMPLE, assess, recompute_run, report_only, words
from runbooks.bench.compare import Point, compare, compare_runs, list_results
from runbooks.bench.results import BenchResult, named
from runbooks.bench.whatif import WIRE, show, tables
from runbooks.engine.errors import UsageError
from runbooks.engine.report import Reporter
from runbooks.inventory import load
from tests.recorder import Recorder

FLOORS = [3.1, 4.0, 5.8, 9.0, 14.3, 22.0, 30.2]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    return tables(load(ROOT / "inventory.yaml"))


def test_the_reference_sweep_is_predicted_with_one_constant(told: dict[str, Any]) -> None:
    assert told["reference_error_pct"] <= 8.0
    assert told["fit_rms_pct"] <= 1.5
    assert [point["memory_ms"] for point in told["points"]] == pytest.approx(FLOORS, rel=0.05)
    assert json.loads(json.dumps(told)) == told


def test_each_figure_of_the_story_is_computed_again(told: dict[str, Any]) -> None:
    said = {claim["figure"]: (claim["holds"], claim["why"]) for claim in told["claims"]}
    assert said["12 KiB a message"] == ("yes", "the hidden state of one token: 12,288 bytes")
    assert said["too big for one card"][0] == "yes"
    assert said["107 MB a step"] == ("yes", "TP8 at 32 streams: 107.35 MB sent by each GPU")
    assert said["113 MB a step"][1].startswith("EP8, its own 1/8 counted: 112.66 MB; 105.28 MB without")
    assert said["453 GB of experts"] == ("no", "5 bits a weight make 453.0 GB; FP4 with FP8 scales is 407.7 GB")
    assert said["communication 4.8 x compute"][0] == "no"
    assert said["communication 4.8 x compute"][1].startswith("4.81 needs 16 GB/s")
    assert said["+20 % with compute for nothing"][1].endswith("+20.8%")
    assert said["+10 % with compute halved"][1].endswith("+9.4%")
    assert said["bound by PCIe"][0] == "not proven"
    sent = next(row for row in told["bytes"] if row["streams"] == 32)  # EP8 against TP8, for each of the sweep
    assert [round(sent[name] / 1e6, 2) for name in WIRE] == [107.35, 112.66, 105.28]
    assert [row["streams"] for row in told["bytes"]] == [1, 2, 4, 8, 16, 32, 64]


def test_every_option_of_the_story_has_a_prediction(told: dict[str, Any]) -> None:
    options = {one["option"]: (round(one["at_1"], 2), round(one["at_64"], 2)) for one in told["options"]}
    assert options["schedule policy"] == (1.0, 1.0)
    assert options["torch compile"] == (1.4, 1.08)
    assert options["overlapped scheduling"] == options["torch compile"]
    assert options["two batches overlapped"] == (1.12, 1.18)
    assert options["MTP"] == (1.86, 1.41)
    assert 0.9 < options["expert parallelism"][1] < 1.13
    assert options["peer-to-peer off"][0] < 1
    assert options["links of no cost"][1] < 1.5
    said = Recorder()
    show(told, Reporter(said))
    assert [event.kind for event in said.events].count("table") == 4


def test_the_last_line_for_a_program_holds_it_all(told: dict[str, Any]) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("invoke"), "ceiling", "--json"], cwd=ROOT, capture_output=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == told


def changed(tmp_path: Path, name: str, change: Callable[[dict[str, Any]], None]) -> BenchResult:
    folder = tmp_path / name
    shutil.copytree(EXAMPLE, folder)
    for log in sorted((folder / "raw").glob("*.bin"))[2:]:
        log.unlink()
    run = json.loads((folder / "run.json").read_text())
    change(run)
    (folder / "run.json").write_text(json.dumps(run))
    return assess(folder)


def test_a_run_against_itself_is_no_difference(tmp_path: Path) -> None:
    one = changed(tmp_path, "one", lambda run: None)
    found = compare(one, one)
    assert [(point.streams, point.change, point.word) for point in found.points] == [
        (1, 0.0, "no difference"), (2, 0.0, "no difference"),
    ]  # fmt: skip
    assert found.settings == ()


def test_a_rate_is_called_a_rate() -> None:
    """Not by the streams that it happened to have in flight, which are others in each run."""
    assert words.load({"concurrency": 7, "open": {"offered": 2.5}}) == "2.5 requests/s"
    assert (words.load({"concurrency": 1}), words.load({"concurrency": 64, "open": None})) == ("1 stream", "64 streams")


def test_only_like_with_like(tmp_path: Path) -> None:
    one = changed(tmp_path, "one", lambda run: None)
    for path, value, text in (
        ("input_len", 77, "tokens in: 256 and 77"),
        ("api", "generate", "API"),
        ("workload", "prefill-heavy", "workload: none named and prefill-heavy"),
        ("lengths", "128-384 in, 64 out", "lengths: 256 in, "),
        ("shared_len", 64, "shared prefix: 0 and 64"),
        ("open", True, "loop: closed and open"),
        ("output_len", 64, "tokens out: 256 and 64"),
        ("temperature", 0.0, "sampling: temperature 1, top_p 0.95 and temperature 0, top_p 0.95"),
        ("top_p", 1, "sampling: temperature 1, top_p 0.95 and temperature 1, top_p 1"),
        ("model.source", "zai-org/GLM-5", "model: "),
        ("gpus.count", 8, "cards: 2 x NVIDIA H200 and 8 x NVIDIA H200"),
        ("gpus.name", "NVIDIA B200", "cards: 2 x NVIDIA H200 and 2 x NVIDIA B200"),
    ):
        group, _, name = path.rpartition(".")
        other = changed(tmp_path, path, lambda run, g=group, n=name, v=value: run[g or "loadgen"].update({n: v}))  # type: ignore[misc]
        with pytest.raises(UsageError) as error:
            compare(one, other)
        assert [detail for detail in error.value.details if detail.startswith(text)], path


def test_settings_that_differ_and_points_that_cannot_be_compared(tmp_path: Path) -> None:
    one = changed(tmp_path, "one", lambda run: None)
    other = changed(
        tmp_path, "other", lambda run: run["loadgen"]["server_info_before"].update(cuda_graph_max_bs_decode=1)
    )
    found = compare(one, other)
    assert [point.streams for point in found.points] == [1]
    assert found.left_out == ("2 streams: INVALID in the second",)
    assert ("cuda_graph_max_bs_decode", "64", "1") in found.settings


@pytest.mark.parametrize(
    ("change", "noise", "word"),
    [
        (0.05, 0.02, "faster"),
        (-0.05, 0.02, "slower"),
        (0.01, 0.015, "no difference"),
        (0.5, None, "noise not known"),
        (0.05, 0.06, "cannot tell: the noise is larger"),
        (-0.187, 0.245, "cannot tell: the noise is larger"),
        (0.0, 0.06, "cannot tell: the noise is larger"),
        (0.03, 0.035, "cannot tell: the noise is larger"),
    ],
)
def test_no_word_inside_the_noise(change: float, noise: float | None, word: str) -> None:
    assert Point("8 streams", 8, 100.0, 100.0 * (1 + change), change, noise).word == word


def test_results_are_listed_and_compared_by_the_commands(tmp_path: Path) -> None:
    changed(tmp_path, "one", lambda run: None)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "points.json").write_text("{")
    said = Recorder()
    assert list_results(str(tmp_path), Reporter(said)) == 0
    rows = next(event for event in said.events if event.kind == "table").data["rows"]
    assert [row[0] for row in rows] == ["one", "broken"]
    assert rows[0][2] == "7 of 7"
    assert compare_runs(str(tmp_path / "one"), str(tmp_path / "one"), Reporter(Recorder())) == 0
    assert list_results(str(tmp_path / "nothing"), Reporter(Recorder())) == 0


def test_results_are_newest_first_with_those_of_an_experiment_and_the_example_last(tmp_path: Path) -> None:
    tuned = "2026-11-30T010203Z-glm5-a-tune"
    names = ["2026-11-30T020000Z-a", f"{tuned}/2026-11-30T010999Z-glm5-a-quick", "2026-11-29T000000Z-a", "example"]
    for name in names:
        changed(tmp_path / Path(name).parent, Path(name).name, lambda run: None)
    said = Recorder()
    assert list_results(str(tmp_path), Reporter(said)) == 0
    assert [row[0] for row in said.events[0].data["rows"]] == names


@pytest.mark.parametrize(
    ("points", "why"),
    [
        ([{"valid": False, "tok_s": 1.0, "step_ms": 1.0}], "nothing VALID"),
        ([{"valid": True, "tok_s": 1.0, "step_ms": None}], "too short"),
        ([{"valid": True, "tok_s": 1.0, "step_ms": 1.0}], "unknown cards"),
    ],
)
def test_a_run_without_a_verdict_says_why(tmp_path: Path, points: list[dict[str, Any]], why: str) -> None:
    changed(tmp_path, "one", lambda run: None)
    told = json.loads((tmp_path / "one" / "points.json").read_text()) | {"points": points}
    told["verdict"]["word"] = "no verdict"
    (tmp_path / "one" / "points.json").write_text(json.dumps(told))
    said = Recorder()
    assert list_results(str(tmp_path), Reporter(said)) == 0
    assert said.events[0].data["rows"][0][1] == why


@pytest.mark.served
def test_the_report_of_the_example_is_a_run_like_any_other(tmp_path: Path) -> None:
    out = tmp_path / "results" / "example"
    assert report_only(None, out, Reporter(Recorder())) == 0
    said = Recorder()
    assert list_results(str(out.parent), Reporter(said)) == 0
    assert [(row[0], row[2]) for row in said.events[0].data["rows"]] == [("example", "7 of 7")]
    assert compare_runs(str(out), str(out), Reporter(Recorder())) == 0
    assert report_only(None, out, Reporter(Recorder())) == 0  # and again


def test_a_run_goes_by_a_part_of_its_name_that_no_other_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("2026-11-30T005619Z-127.0.0.1", "2026-11-30T005632Z-127.0.0.1"):
        changed(tmp_path / "results", name, lambda run: None)
    assert named("005619") == Path("results/2026-11-30T005619Z-127.0.0.1")
    assert compare_runs("005619", "005632", Reporter(Recorder())) == 0
    assert report_only("005619", "", Reporter(Recorder())) == 0
    tuned = tmp_path / "results" / "2026-11-30T010203Z-glm5-a-tune"
    changed(tuned, "2026-11-30T010999Z-glm5-a-quick", lambda run: None)
    assert named("quick").parent == Path("results") / tuned.name  # the sweeps of an experiment are runs, too
    listed = f"{tuned.name}/2026-11-30T010999Z-glm5-a-quick"
    assert named(listed) == Path("results") / listed  # as `invoke results` names it
    with pytest.raises(UsageError, match="holds the runs of an experiment; name one") as experiment:
        recompute_run("tune", Reporter(Recorder()))
    assert experiment.value.details == (f"results/{listed}",)
    with pytest.raises(UsageError, match="more than one run in results has that in its name") as refused:
        named("0056")
    assert len(refused.value.details) == 2
    with pytest.raises(UsageError, match="elsewhere is not a results folder") as refused:
        compare_runs("elsewhere", "005632", Reporter(Recorder()))
    assert refused.value.next == "invoke results"


def test_where_nothing_can_be_compared_nothing_else_is_said(tmp_path: Path) -> None:
    for name in ("one", "two"):
        changed(tmp_path, name, lambda run: None)
    (tmp_path / "two" / "raw" / "00-c1.bin").unlink()
    (tmp_path / "two" / "raw" / "01-c2.bin").unlink()
    said = Recorder()
    with pytest.raises(UsageError, match="no load is VALID in both runs") as refused:
        compare_runs(str(tmp_path / "one"), str(tmp_path / "two"), Reporter(said))
    assert refused.value.details == ("1 stream: only in the first run", "2 streams: only in the first run")
    assert said.events == []
