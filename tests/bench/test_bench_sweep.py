"""The controller's side, on a connection to this machine: what is sent, what comes home, what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest

from runbooks import paths
from runbooks.bench import BenchOptions, bench_url, recompute, run_bench
from runbooks.bench.follower import Follower
from runbooks.bench.results import BenchResult
from runbooks.engine.errors import RunbookError, UsageError
from runbooks.engine.report import Reporter
from runbooks.engine.transport import Connection, Target
from runbooks.inventory import Loaded, load
from runbooks.inventory.shape import Bench, SecretRef, Server
from tests.engine.conftest import LocalConnection
from tests.recorder import Recorder

pytestmark = pytest.mark.served

ROOT = Path(__file__).parents[2]
KEY = "sk-bench-secret"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    words = [sys.executable, str(ROOT / "lab" / "traps.py")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    for name in ("JOBS", "TOOLS", "STATE", "CURRENT"):
        monkeypatch.setattr(paths, name, str(tmp_path / name.lower()))
    (tmp_path / "current").mkdir()
    (tmp_path / "current" / "release.json").write_text('{"number": 3, "profile": "final"}')
    with LocalConnection(Target(name="glm5-a", address="127.0.0.1", known_hosts=tmp_path / "known_hosts")) as found:
        yield found


def inventory(port: int, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    loaded = load(ROOT / "lab" / "inventory.yaml")
    monkeypatch.setenv("BENCH_KEY", KEY)
    bench = Bench(
        concurrency=(1, 2), input_len=40, output_len=32, warmup=0.0, window=0.3, repeats=2, reference={1: 400.0}
    )
    server = Server(port=port, api_key=SecretRef(env="BENCH_KEY"))
    changed = msgspec.structs.replace(loaded.inventory, bench=bench, server=server)
    return Loaded(changed, loaded.path, loaded.document)


def test_a_sweep_comes_home_with_all_that_judges_it(
    host: Connection, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Recorder()
    loaded = inventory(port, monkeypatch)
    options = BenchOptions(canary=False, self_check=False)
    result = run_bench(host, loaded, "glm5-a", options=options, report=Reporter(said), out=tmp_path / "results")
    assert [point["concurrency"] for point in result.points] == [1, 2]
    passes = [[one["repeat"] for one in point["repeats"]] for point in result.points]
    assert passes == [[0, 1], [0, 1]]
    assert result.points[1]["split"]["processes"] == [1, 2]
    assert all(point["requests"]["failed"] == 0 and point["server"]["difference"] == 0.0 for point in result.points)
    assert result.folder.name.endswith("-glm5-a-final")
    names = {path.name for path in result.folder.iterdir()}
    assert names == {
        "run.json",
        "hardware.jsonl",
        "points.csv",
        "points.json",
        "provenance.json",
        "report.md",
        "report.html",
        "raw",
    }
    assert recompute(result.folder).differences == ()
    run: dict[str, Any] = json.loads((result.folder / "run.json").read_text())
    assert run["release"]["number"] == 3
    assert (tmp_path / "tools" / f"loadgen-{run['tool']['loadgen']}.pyz").exists()  # the one that was pushed
    assert run["tool"]["version"] == metadata.version("glm-runbooks")
    assert {event.kind for event in said.events} >= {"progress", "note"}
    left = [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert left == []  # the key is nowhere: no job, no log, no result
    assert not any((tmp_path / "state" / "bench").iterdir())


def test_a_sweep_killed_in_the_middle_is_resumed(
    host: Connection, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9, as the kernel does when memory runs out: no handler, no goodbye."""
    loaded, out = inventory(port, monkeypatch), tmp_path / "results"

    def bench(**more: Any) -> BenchResult:
        options = BenchOptions(concurrency=(1, 2, 3), canary=False, self_check=False, **more)
        return run_bench(host, loaded, "glm5-a", options=options, report=Reporter(Recorder()), out=out)

    killed = Thread(target=lambda: kill_after(tmp_path / "state" / "bench", "00-c1.bin"))
    killed.start()
    with pytest.raises(RunbookError, match="ended with 137") as error:
        bench()
    killed.join()
    assert "--resume" in (error.value.next or "")
    assert not out.exists()
    (work,) = (tmp_path / "state" / "bench").iterdir()
    first = (work / "out" / "00-c1.bin").read_bytes()
    with pytest.raises(UsageError, match="no sweep of these options"):
        bench(resume=True, window=0.4)
    assert (work / "out" / "00-c1.bin").read_bytes() == first  # a refusal takes nothing away

    result = bench(resume=True)
    assert [point["concurrency"] for point in result.points] == [1, 2, 3]
    assert [len(point["repeats"]) for point in result.points] == [2, 2, 2]
    assert (result.folder / "raw" / "00-c1.bin").read_bytes() == first  # not measured again
    late = list((result.folder / "raw").glob("00-c1-again*.bin"))  # on a busy machine: measured anew, beside the first
    assert result.run["loadgen"]["resumed"] >= (0 if late else 1)
    assert result.run["loadgen"]["interrupted"] is False
    assert recompute(result.folder).differences == ()
    with pytest.raises(UsageError, match="no sweep of these options"):
        bench(resume=True)  # that one is over


def kill_after(folder: Path, log: str) -> None:
    """Kill the load generator once this log is whole, within the point after it."""
    until = time.monotonic() + 60
    while not list(folder.glob(f"*/out/{log}")) and time.monotonic() < until:
        time.sleep(0.01)
    (pid,) = folder.glob("*/pid")
    time.sleep(0.2)
    os.kill(int(pid.read_text()), signal.SIGKILL)


def test_progress_tells_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = [1000.0], Recorder()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    follower = Follower(Reporter(said), "glm5-a", points=4, each=100.0)
    rate = {"tok_s": 9.0, "tok_s_ci": None, "requests": {"failed": 0}, "concurrency": 4, "window_s": 60.0}

    def after(seconds: float, event: dict[str, object]) -> tuple[float, str]:
        now[0] += seconds
        follower.line(json.dumps(event))
        return said.events[-1].data.get("done", 0), said.events[-1].data.get("detail", "")

    window = {"event": "progress", "phase": "window", "point": 8, "rate": 99.7, "failed": 2}
    ramp = {"event": "progress", "phase": "ramp", "point": 4}
    assert after(9, ramp) == (0, "point 1 of 4: 4 streams, ramp, 6:40 min left")  # what came before is no part of it
    assert after(0.2, ramp)[1].endswith("6:40 min left")  # 399.8 s, and not 6:60
    assert after(49.8, ramp) == (12, "point 1 of 4: 4 streams, ramp, 5:50 min left")
    after(30, {"event": "point", **rate})  # now it is known: 80 s
    assert after(20, window) == (31, "point 2 of 4: 8 streams, window, about 100 tok/s, 2 failed, 3:40 min left")
    assert after(600, window)[0] == 49  # never before it is over
    after(0, {"event": "point", "resumed": True, **rate})
    assert after(0, ramp) == (50, "point 3 of 4: 4 streams, ramp, 2:40 min left")
    follower.line("not JSON: a warning of the system")
    assert "a warning of the system" in said.events[-1].text


def test_refusals_say_what_to_do(host: Connection, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for where, text, advice in (
        (9, "127.0.0.1:9", "invoke health"),
        (port, "3 live or queued", "invoke bench --force"),
    ):
        loaded = inventory(where, monkeypatch)
        if where == port:
            monkeypatch.setattr("runbooks.bench.sweep.url_of", lambda server: f"http://127.0.0.1:{server.port}/busy")
        with pytest.raises(RunbookError, match=text) as error:
            run_bench(
                host, loaded, "glm5-a", options=BenchOptions(), report=Reporter(Recorder()), out=tmp_path / "results"
            )
        assert advice in (error.value.next or "")
    assert not (tmp_path / "results").exists()


def test_any_server_by_its_address(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNBOOKS_API_KEY", KEY)
    short = BenchOptions(concurrency=(2,), input_len=40, output_len=32, window=0.3, warmup=0.0, repeats=1)
    said = Recorder()
    bench_url(f"http://127.0.0.1:{port}", short, out=str(tmp_path), reporter=Reporter(said))
    folder = next(tmp_path.iterdir())
    point = json.loads((folder / "points.json").read_text())["points"][0]
    assert [fault for fault in point["faults"] if not fault.startswith("the client was late")] == []  # a busy machine
    assert set(json.loads((folder / "run.json").read_text())["tool"]) >= {"version", "loadgen"}
    assert recompute(folder).differences == ()
    assert json.loads((folder / "points.json").read_text())["verdict"]["word"] == "no verdict"
    assert "unknown cards" in (folder / "report.html").read_text()
    assert not [path for path in folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    with pytest.raises(RunbookError, match="3 live or queued"):
        bench_url(f"http://127.0.0.1:{port}/busy", short, out=str(tmp_path), reporter=Reporter(said))
    with pytest.raises(UsageError, match="not an http"):
        bench_url("ftp://x", short, reporter=Reporter(said))
