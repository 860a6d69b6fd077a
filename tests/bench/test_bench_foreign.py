"""Results folders that are damaged, changed by hand or another program's: one clear error, and nothing half-written."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runbooks.bench import EXAMPLE, compare_runs, list_results, measured, recompute_run, report_only
from runbooks.bench.results import assess, write_points
from runbooks.deploy.recorded import recorded
from runbooks.engine.errors import RunbookError, UsageError
from runbooks.status import last_bench
from runbooks.tune.record import unfinished

ROOT = Path(__file__).parents[2]
DEEP = "[" * 100_000
DAMAGE: dict[str, Any] = {
    "of a list": "[1, 2]",
    "of nothing": "null",
    "nested without end": DEEP,
    "no text": b"\xff\xfe\x00",
    "of the future": {"format": 2},
    "without the load generator's part": {"loadgen": None},
    "with a sweep of words": {"loadgen": {"sweep": "x"}},
    "with cards of no count": {"gpus": {"name": "NVIDIA H200", "count": "many"}},
    "with a shape of another model": {"model": {"name": "x", "source": "x", "shape": {"layers": -1}}},
    "with a reference of text": {"reference": {"one": "fast"}},
    "with an endless number": {"reference": {"1": float("inf")}},
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with its two smallest logs, assessed once."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "raw").mkdir()
    for name in ("run.json", "provenance.json", "hardware.jsonl", "collectives.json", "raw/00-c1.bin", "raw/13-c1.bin"):
        shutil.copy(EXAMPLE / name, folder / name)
    told = json.loads((folder / "run.json").read_text())
    told["loadgen"]["sweep"] = [1]
    told["raw_sha256"] = {name: told["raw_sha256"][name] for name in ("00-c1.bin", "13-c1.bin")}
    (folder / "run.json").write_text(json.dumps(told))
    write_points(assess(folder))
    return folder


@pytest.fixture
def run(tmp_path: Path, small: Path) -> Path:
    """It as a run of its own."""
    folder = tmp_path / "results" / "2026-01-01T000000Z-glm5-a-final"
    shutil.copytree(small, folder)
    return folder


def change(path: Path, content: Any) -> None:
    if isinstance(content, dict):
        told = json.loads(path.read_text())
        for key, value in content.items():
            told[key] = {**told[key], **value} if isinstance(value, dict) and isinstance(told[key], dict) else value
        content = json.dumps(told)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def refusal(read: Callable[[], object]) -> str:
    """What it was refused with; "" where it could be read. Any other exception is a bug."""
    try:
        read()
    except RunbookError as refused:
        return str(refused)
    return ""


@pytest.mark.served
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_run_that_is_none_is_refused(run: Path, tmp_path: Path, damage: Any) -> None:
    change(run / "run.json", damage)
    out = tmp_path / "out"
    for said in (
        refusal(lambda: recompute_run(run)),
        refusal(lambda: report_only(run, out)),
        refusal(lambda: compare_runs(str(EXAMPLE), str(run))),
    ):
        assert not said or str(run) in said or "cannot be compared" in said
    assert not out.exists() or len(list(out.iterdir())) == 3, "half a report"


@pytest.mark.served
@pytest.mark.parametrize("name", ["raw/00-c1.bin", "hardware.jsonl", "provenance.json", "collectives.json"])
def test_any_file_of_it_may_be_damaged(run: Path, tmp_path: Path, name: str) -> None:
    for content in (b"", b"[1, 2]", b"\xff\xfe", b"RBRAW1\n\x08\0\0\0notzlib!", DEEP.encode()):
        (run / name).write_bytes(content)
        said = refusal(lambda: report_only(run, tmp_path / "out"))
        assert not said or str(run) in said


@pytest.mark.parametrize(
    "content", ["[1]", "null", DEEP, '{"format": 1}', '{"format": 1, "points": [1], "verdict": {}}', "{"]
)
def test_what_only_looks_into_folders_passes_by(run: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    for name in ("points.json", "run.json", "collectives.json"):
        (run / name).write_text(content)
    assert list_results(str(run.parent)) == 0
    assert "not readable" in capsys.readouterr().out
    assert last_bench("glm5-a", run.parent) == "-"
    assert isinstance(measured.read(run), measured.Unusable)
    with pytest.raises(UsageError, match="from: "):
        recorded(run)
    tuned = run.parent / "2026-01-01T000000Z-glm5-a-tune"
    tuned.mkdir()
    (tuned / "tune.json").write_text(content)
    assert unfinished(run.parent, "glm5-a", {}) is None


@pytest.mark.served
def test_a_run_is_brought_back_by_a_part_of_its_name(run: Path, tmp_path: Path) -> None:
    """As the other commands name one. This one recorded no release, and that is all there is to say of it."""
    words = [str(Path(sys.executable).with_name("invoke")), f"--search-root={ROOT}", "deploy", "--inventory"]
    for told, said in (
        ("000000Z", "from: results/2026-01-01T000000Z-glm5-a-final recorded no release of ours"),
        ("another", "from: another is no results folder"),
    ):
        done = subprocess.run(
            [*words, str(ROOT / "inventory.yaml"), "--from", told],
            cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    shutil.copytree(run, run.with_name("2026-01-02T000000Z-glm5-a-final"))
    done = subprocess.run(
        [*words, str(ROOT / "inventory.yaml"), "--from", "glm5-a"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "more than one run in results has that in its name" in done.stderr) == (2, True)
