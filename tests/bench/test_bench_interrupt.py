"""Ctrl-C, SIGTERM and a closed pipe, however often and whenever: one true sentence, a valid partial result, 130."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runbooks import bench as bench_package
from runbooks.bench import BenchOptions, bench_hosts, list_results, recompute, sweep
from runbooks.bench.follower import Follower
from runbooks.bench.validity import Limits, faults
from runbooks.commands.bench import interrupted
from runbooks.engine.errors import RunbookError
from runbooks.engine.follow import JobResult
from runbooks.engine.report import Reporter
from runbooks.inventory import load
from tests.bench.generator import words
from tests.recorder import Recorder

pytestmark = pytest.mark.served

ROOT = Path(__file__).parents[2]
INVOKE = Path(sys.executable).with_name("invoke")
BENCH = ("--concurrency", "1", "--concurrency", "2", "--input-len", "40", "--output-len", "32", "--repeats", "1")


def bench(url: str, out: Path, *more: str, window: int = 30) -> subprocess.Popen[str]:
    """`invoke bench --url` as a terminal starts it: with its children in a process group of its own."""
    command = [str(INVOKE), "bench", "--json", "--url", url, "--out", str(out), "--window", str(window), *BENCH, *more]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def ended(process: subprocess.Popen[str], until: str, pauses: tuple[float, ...], number: int) -> tuple[list[str], str]:
    """What it said after signals to its group: the first once `until` was told, others after pauses."""
    assert process.stdout is not None
    said: list[str] = []
    for line in process.stdout if until else ():
        said.append(line)
        if until in line:
            break
    for pause in pauses:
        time.sleep(pause)
        if process.poll() is None:
            os.killpg(process.pid, number)
    try:
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()  # its load generator stops when nobody reads on
    return [json.loads(line)["text"] for line in [*said, *out.splitlines()]], err


@pytest.mark.parametrize(
    ("until", "pauses", "number"),
    [
        ("ramp", (0.0,), signal.SIGINT),
        ("window", (0.5, 0.02), signal.SIGINT),
        ("window", (0.5, 0.3), signal.SIGINT),
        ("window", (0.5, 1.0, 1.0), signal.SIGINT),
        ("window", (0.3, *[0.005] * 40), signal.SIGINT),
        ("window", (0.3, 0.02), signal.SIGTERM),
    ],
)
def test_whatever_is_typed_what_was_measured_is_kept(
    traps: str, tmp_path: Path, until: str, pauses: tuple[float, ...], number: int
) -> None:
    process = bench(traps, tmp_path)
    said, err = ended(process, until, pauses, number)
    assert (err, process.returncode) == ("", 130)
    sentences = [text for text in said if text.startswith("interrupted")]
    assert sentences == ["interrupted; what was measured is kept, and the same command with --resume measures the rest"]
    assert [text for text in said if "INVALID: " in text] == [
        "1 stream INVALID: interrupted before its window was over"
    ]
    folder = next(tmp_path.iterdir())
    assert recompute(folder).differences == ()
    assert "0 of 2 points VALID" in (folder / "report.md").read_text()
    shown = Recorder()
    assert list_results(str(tmp_path), Reporter(shown)) == 0
    row = next(event for event in shown.events if event.kind == "table").data["rows"][0]
    assert (row[0], row[2]) == (folder.name, "0 of 2")


@pytest.mark.parametrize("pauses", [(0.0,), (0.0, 0.02, 0.3)])
def test_before_anything_was_measured_nothing_is_left(traps: str, tmp_path: Path, pauses: tuple[float, ...]) -> None:
    process = bench(traps, tmp_path)
    said, err = ended(process, "fitting", pauses, signal.SIGINT)
    assert process.returncode == 130
    assert err == "bench: interrupted before anything was measured; nothing goes on\n"
    assert not any("interrupted" in text for text in said)
    assert list(tmp_path.iterdir()) == []


def test_a_sentence_for_the_moments_before_it_asks_the_server() -> None:
    assert interrupted({"url": "http://127.0.0.1:1"}) == "interrupted; nothing goes on"
    assert "invoke jobs" in interrupted({"url": ""})


def test_resume_goes_on_where_it_was_interrupted(traps: str, tmp_path: Path) -> None:
    first = bench(traps, tmp_path, window=2)
    _, err = ended(first, "2 streams, window", (0.2,), signal.SIGINT)
    assert (err, first.returncode) == ("", 130)
    again = bench(traps, tmp_path, "--resume", window=2)
    said, err = ended(again, "", (), signal.SIGINT)
    assert (err, any(text.endswith("kept from before") for text in said)) == ("", True)
    run = json.loads((next(tmp_path.iterdir()) / "run.json").read_text())["loadgen"]
    assert (run["interrupted"], run["points"]) == (False, [1, 2])


def test_who_reads_no_further_leaves_a_result(traps: str, tmp_path: Path) -> None:
    process = bench(traps, tmp_path)
    assert process.stdout is not None
    assert process.stderr is not None
    for line in process.stdout:
        if "window" in line:
            break
    process.stdout.close()
    assert (process.stderr.read(), process.wait(30)) == ("", 1)
    assert recompute(next(tmp_path.iterdir())).differences == ()


@pytest.mark.parametrize("phase", ["ramp", "window", "drain"])
def test_the_load_generator_and_its_workers_by_themselves(pyz: Path, traps: str, tmp_path: Path, phase: str) -> None:
    more = ("--concurrency", "2", "--processes", "2", "--window", "1" if phase == "drain" else "30")
    command = words(pyz, traps, tmp_path, *more)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line).get("phase") == phase:
                break
        for _ in range(20):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
                time.sleep(0.005)
        _, err = process.communicate(timeout=20)
    assert err == ""
    if phase == "drain":  # all was measured
        assert process.returncode == 0
        return
    assert process.returncode == 130
    assert json.loads((tmp_path / "run.json").read_text())["interrupted"] is True
    assert not list(tmp_path.glob("*.part"))


def test_the_load_generator_whose_reader_is_gone(pyz: Path, traps: str, tmp_path: Path) -> None:
    command = words(pyz, traps, tmp_path, "--concurrency", "2", "--window", "30")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if json.loads(line).get("phase") == "window":
                break
        process.stdout.close()
        assert (process.stderr.read(), process.wait(20)) == ("", 130)
    assert json.loads((tmp_path / "run.json").read_text())["points"] == [2]


LOADING = """
import os, runpy, signal, sys

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name.endswith("loadgen.options"):
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
what = sys.argv.pop(1)
runpy.run_path(what, run_name="__main__") if what.endswith("pyz") else runpy.run_module(what, run_name="__main__")
"""


@pytest.mark.parametrize("module", [False, True])
def test_ctrl_c_while_the_load_generator_loads(pyz: Path, module: bool) -> None:
    command = [sys.executable, "-c", LOADING, "runbooks.bench.loadgen" if module else str(pyz)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_everything_that_the_bench_offers_is_there() -> None:
    assert sorted(bench_package.__all__) == sorted(name for names in bench_package._PLACES.values() for name in names)
    assert all(getattr(bench_package, name) is not None for name in bench_package.__all__)
    script = "import sys, runbooks.bench.loadgen.cli; print('msgspec' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_cut_answer_is_no_server_that_sends_no_usage() -> None:
    point = {"interrupted": True, "requests": {"sent": 1, "failed": 0, "failures": {}}, "tok_s": 5.0}
    assert faults(point, Limits(), None) == ["interrupted before its window was over"]


@pytest.mark.parametrize("rc", [130, 143, -15])
def test_on_a_host_a_load_generator_that_was_told_to_end_has_not_failed(
    rc: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sweep, "push_zipapp", lambda *_: "loadgen.pyz")
    monkeypatch.setattr(sweep, "run_job", lambda *_, **__: JobResult(rc, (), 1.0, str(tmp_path)))
    conn: Any = SimpleNamespace(name="glm5-a")
    options, report = BenchOptions(), Reporter(Recorder())
    asked = options.checked(load(ROOT / "inventory.yaml").inventory.bench)
    follower = Follower(report, "glm5-a", 7, 70.0)

    def drive(*, stopping: bool) -> bool:
        return sweep._drive(conn, [], options, asked, None, "/x", follower, report, lambda: stopping)

    assert drive(stopping=True)
    if rc != 130:  # nobody told it to
        with pytest.raises(RunbookError, match=f"the load generator ended with {rc}"):
            drive(stopping=False)


def test_a_sweep_of_hosts_that_was_interrupted_ends_with_130(tmp_path: Path) -> None:
    nothing: dict[str, Any] = {"each": lambda *_, **__: [], "tell_errors": lambda _: False}
    session: Any = SimpleNamespace(loaded=load(ROOT / "inventory.yaml"), interrupt=True, **nothing)
    assert bench_hosts(session, BenchOptions(), out=str(tmp_path)) == 130
    session.interrupt = False
    assert bench_hosts(session, BenchOptions(), out=str(tmp_path)) == 0
