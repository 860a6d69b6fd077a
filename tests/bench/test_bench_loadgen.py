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
from tests.bench.generator import measured, truth, words

pytestmark = pytest.mark.served


def test_a_sweep_counts_every_token(pyz: Path, traps: str, tmp_path: Path) -> None:
    rc, events = measured(pyz, traps, tmp_path, "--concurrency", "2,6", "--processes", "2", "--again", "0")
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


def test_a_sweep_is_what_the_server_saw(pyz: Path, traps: str, tmp_path: Path) -> None:
    """By its own list: each request once, no prompt twice in two runs, never more at once, no new connection."""
    url, sent = f"{traps}/~saw", 0
    more = ("--warmup", "0.3", "--processes", "2", "--again", "0")
    for run, seen in (("one", 1), ("two", 2)):
        assert measured(pyz, url, tmp_path / run, "--concurrency", "2,6", *more)[0] == 0
        for log in ("00-c2.bin", "01-c6.bin"):
            sent += point_of(rawlog.decode((tmp_path / run / log).read_bytes()))["requests"]["sent"]
        assert sent > 16
        assert truth(url) == {"requests": sent, "prompts": sent, "at_once": 6, "connections": seen * (2 + 6)}


def test_each_of_many_streams_has_its_connection(pyz: Path, traps: str, tmp_path: Path) -> None:
    """Above a hundred, where other clients queue, and in two processes."""
    url = f"{traps}/~many"
    more = ("--concurrency", "130", "--processes", "2", "--output-len", "200", "--window", "1", "--again", "0")
    assert measured(pyz, url, tmp_path, *more)[0] == 0
    point = point_of(rawlog.decode((tmp_path / "00-c130.bin").read_bytes()))
    assert (point["requests"]["failed"], point["client"]["processes"]) == (0, 2)
    saw = truth(url)
    assert 125 <= saw["at_once"] <= 130
    assert saw["connections"] == 130


def test_bad_arguments_and_no_server(pyz: Path, tmp_path: Path) -> None:
    assert measured(pyz, "http://127.0.0.1:9", tmp_path)[0] == 1
    assert measured(pyz, "ftp://x", tmp_path)[0] == 2
    assert measured(pyz, "http://127.0.0.1:9", tmp_path, "--concurrency", "0")[0] == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_leaves_a_valid_partial_result(pyz: Path, traps: str, tmp_path: Path, number: int) -> None:
    command = words(pyz, traps, tmp_path, "--concurrency", "2,4", "--window", "30", "--output-len", "4000")
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
    assert point["tokens"]["output"] > 20  # of answers of which none had ended
    assert point["requests"]["ok"] == 0
    assert point["requests"]["failed"] == 0
    assert point["requests"]["cut"] == 2
    assert "interrupted before its window was over" in faults(point, Limits(), None)


def test_the_client_proves_that_it_is_not_the_limit(tmp_path: Path) -> None:
    check = nullserver.self_check(lambda port: null_run(16, port, tmp_path), 16, rate=2_000.0, seconds=0.3)
    assert check["caught"] == check["expected"] == 592
    assert check["cpu_us_per_chunk"] > 0
    assert list(tmp_path.iterdir()) == []


def test_processes_follow_the_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes_for(64, 0) == 1
    assert processes_for(64, 4) == 4
    assert processes_for(2, 4) == 2
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(64))
    assert [processes_for(streams, 0) for streams in (128, 129, 256, 1000, 8000)] == [1, 2, 2, 8, 8]
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(4))
    assert processes_for(8000, 0) == 2  # the server may run on the same machine


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
