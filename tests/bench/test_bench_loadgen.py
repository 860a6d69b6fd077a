"""The load generator as a program, against a small server of streams: counts, traps, interruption, proof of itself."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runbooks.bench.loadgen import nullserver, rawlog
from runbooks.bench.loadgen.point import null_run, processes_for
from runbooks.bench.loadgen.summary import point_of
from runbooks.bench.validity import Limits, faults
from tests.bench.generator import measured, words

pytestmark = pytest.mark.served


def test_a_sweep_counts_every_token(pyz: Path, traps: str, tmp_path: Path) -> None:
    rc, events = measured(pyz, traps, tmp_path, "--concurrency", "2,6", "--processes", "2")
    assert rc == 0
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["points"] == [2, 6]
    assert run["prompt_tokens"] == 40
    assert run["server_info_before"]["api_key"] == "***"
    for streams, log in ((2, "00-c2.bin"), (6, "01-c6.bin")):
        point = point_of(rawlog.decode((tmp_path / log).read_bytes()))
        told = next(e for e in events if e["event"] == "point" and e["concurrency"] == streams)
        assert told | json.loads(json.dumps(point)) == told  # computed there and here: the same
        assert point["requests"]["failed"] == 0
        assert point["requests"]["cut"] == 0
        assert point["server"]["difference"] == 0.0
        assert point["tokens"]["prompt_min"] == point["tokens"]["prompt_max"] == 40
        assert point["client"]["processes"] == 2
        asked = [meta["asked"] for meta, _ in rawlog.decode((tmp_path / log).read_bytes()) if meta["kind"] == "request"]
        assert sum(asked) == point["tokens"]["output"]
        assert (
            len({meta["slot"] for meta, _ in rawlog.decode((tmp_path / log).read_bytes()) if "slot" in meta}) == streams
        )
    assert not list(tmp_path.glob("*.part"))


def test_bad_arguments_and_no_server(pyz: Path, tmp_path: Path) -> None:
    assert measured(pyz, "http://127.0.0.1:9", tmp_path)[0] == 1
    assert measured(pyz, "ftp://x", tmp_path)[0] == 2
    assert measured(pyz, "http://127.0.0.1:9", tmp_path, "--concurrency", "0")[0] == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_leaves_a_valid_partial_result(pyz: Path, traps: str, tmp_path: Path, number: int) -> None:
    command = words(pyz, traps, tmp_path, "--concurrency", "2,4", "--window", "30")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line).get("phase") == "window":
                break
        time.sleep(0.2)
        process.send_signal(number)
        process.stdout.read()
        assert process.wait(10) == 130
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["interrupted"] is True
    assert run["points"] == [2]
    point = point_of(rawlog.decode((tmp_path / "00-c2.bin").read_bytes()))
    assert point["tokens"]["output"] > 0
    assert point["requests"]["failed"] == 0
    assert point["requests"]["cut"] == 2
    assert "interrupted before its window was over" in faults(point, Limits(), None)


def test_the_client_proves_that_it_is_not_the_limit(tmp_path: Path) -> None:
    check = nullserver.self_check(lambda port: null_run(16, port, tmp_path), 16, rate=2_000.0, seconds=0.3)
    assert check["caught"] == check["expected"] == 592
    assert check["cpu_us_per_chunk"] > 0
    assert list(tmp_path.iterdir()) == []


def test_processes_follow_the_streams() -> None:
    assert processes_for(64, 0) == 1
    assert processes_for(64, 4) == 4
    assert processes_for(2, 4) == 2


@pytest.mark.slow
def test_the_whole_sweep_agrees_with_the_simulated_server(pyz: Path, tmp_path: Path) -> None:
    """1 to 64 streams against the lab's SGLang: its counters within 1 %, its speed model within 5 %."""
    from bench.make_example import main

    sys.argv = ["make_example", "--out", str(tmp_path / "example"), "--port", "18461"]
    assert main() == 0
    from runbooks.bench import assess

    for point in assess(tmp_path / "example").points:
        assert abs(point["server"]["difference"]) < 0.01
        b = point["concurrency"]
        assert point["step_ms"] == pytest.approx(18.4 + 41.8 * (1 - (31 / 32) ** b) + 0.129 * b, rel=0.05)
