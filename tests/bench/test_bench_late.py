"""A client that was late: it is first in line where it may be, told of where not, and measured again, within bounds."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from runbooks.bench.loadgen import rawlog, run
from runbooks.bench.loadgen.lateness import late, why_again
from runbooks.bench.loadgen.options import Options, options_of
from runbooks.bench.loadgen.point import Load
from runbooks.bench.loadgen.priority import Line, first_in_line
from runbooks.bench.loadgen.summary import points_of
from runbooks.bench.validity import Limits, faults
from runbooks.bench.words import attempts
from tests.bench.test_bench_judge import point_with

MS = 1_000_000


def played(late_ms: Sequence[float], load: Load) -> list[rawlog.Block]:
    """A log of two streams, 20 ms a token, whose reads waited as long as `late_ms` says for this attempt."""
    bit = round(late_ms[load.attempt] * MS).bit_length()
    window = [10 * MS, 1_510 * MS]
    told = {"kind": "point", "concurrency": load.streams, "interrupted": False, "input_len": 8, "output_len": 50}
    told |= {"go": 0, "window": window, "counters": dict.fromkeys(("before", "after", "window_begin", "window_end"))}
    told |= {"rate": 0.0, "repeat": load.repeat, "attempt": load.attempt}
    worker: dict[str, Any] = {"kind": "worker", "wall_ns": 1_500 * MS, "cpu_ns": 15 * MS, "reads": 100, "switches": 0}
    worker |= {"busy_log2_ns": [100 * (place == bit) for place in range(64)], "busy_max_ns": 2**bit}
    blocks: list[rawlog.Block] = [(told, []), (worker, [])]
    for slot in range(load.streams):
        for start in (0, 1_000 * MS):
            reads = [(start + 1, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")]
            for made in range(1, 51):
                reason = b'"length"' if made == 50 else b"null"
                data = b'data: {"choices":[{"delta":{"content":"w%d "},"finish_reason":%s}],' % (made, reason)
                data += b'"usage":{"completion_tokens":%d,"prompt_tokens":8}}\n\n' % made
                reads.append((start + made * 20 * MS - 1, b"%x\r\n%s\r\n" % (len(data), data)))
            reads.append((start + 1_000 * MS - 1, b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"))
            meta = {"kind": "request", "slot": slot, "asked": 50, "start": start, "end": reads[-1][0]}
            blocks.append((meta | {"status": 200, "cut": False, "first": start == 0}, reads))
    return blocks


class Told:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, event: str, **fields: Any) -> None:
        self.events.append((event, fields))

    def of(self, event: str) -> list[dict[str, Any]]:
        return [fields for kind, fields in self.events if kind == event]


def sweep(
    folder: Path, late_ms: Sequence[float], monkeypatch: pytest.MonkeyPatch, *more: str, kept: set[Path] | None = None
) -> tuple[list[str], Told, int]:
    """The names of what was measured, what was told, and how many points were there before."""
    measured: list[str] = []

    def measure(_server: Any, _shape: Any, _prompts: Any, load: Load, _settings: Any, log: Path, _tell: Any) -> None:
        measured.append(log.name)
        rawlog.write(log, played(late_ms, load))

    monkeypatch.setattr(run, "measure", measure)
    told, none = Told(), Any
    options: Options = options_of(["--url", "http://x", "--concurrency", "2", "--out", str(folder), *more])
    _, before, interrupted = run._measure(options, none, none, none, kept or set(), told)  # type: ignore[arg-type]
    assert not interrupted
    return measured, told, before


def read(folder: Path) -> dict[str, Any]:
    (only,) = points_of((log.name, rawlog.decode(log.read_bytes())) for log in sorted(folder.glob("*.bin")))
    return only


def test_a_late_point_is_measured_again_and_its_first_attempt_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, told, _ = sweep(tmp_path, [9.0, 0.1], monkeypatch)
    assert measured == ["00-c2.bin", "00-c2-again1.bin"]
    assert [one["text"] for one in told.of("note")] == [
        "2 streams: the client was late: reads waited up to 16.8 ms (p99), ITL is 20.0 ms; "
        "measured again, 1 of at most 2 times"
    ]
    assert len(told.of("point")) == 1
    only = read(tmp_path)
    assert faults(only, Limits(), None) == []
    assert only["log"] == "00-c2-again1.bin"
    assert len(only["repeats"]) == len(only["windows"]) == 1  # the late one is in no number
    assert only["attempts"] == [{"log": "00-c2.bin", "repeat": 0, "tok_s": pytest.approx(100, rel=0.02),
                                 "late_p99_ms": 2**24 / MS}]  # fmt: skip
    assert attempts(only) == [
        "2 streams, measured again: in 00-c2.bin, which is kept, the client was late by 16.8 ms (p99)"
    ]


def test_a_machine_that_stays_busy_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured, told, _ = sweep(tmp_path, [9.0, 9.0, 9.0, 9.0], monkeypatch)
    assert measured == ["00-c2.bin", "00-c2-again1.bin", "00-c2-again2.bin"]
    assert len(told.of("note")) == 2
    only = read(tmp_path)
    assert [one["log"] for one in only["attempts"]] == ["00-c2-again1.bin", "00-c2.bin"]
    assert "the client was late" in faults(only, Limits(), None)[0]
    assert sweep(tmp_path, [9.0], monkeypatch, "--again", "0")[0] == ["00-c2.bin"]


def test_each_pass_has_attempts_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured, _, _ = sweep(tmp_path, [9.0, 0.1], monkeypatch, "--repeats", "2")
    assert measured == ["00-c2.bin", "00-c2-again1.bin", "01-c2.bin", "01-c2-again1.bin"]
    only = read(tmp_path)
    assert [one["repeat"] for one in only["repeats"]] == [0, 1]
    assert [one["log"] for one in only["attempts"]] == ["00-c2.bin", "01-c2.bin"]


def test_a_resumed_run_goes_on_after_the_late_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep(tmp_path, [9.0], monkeypatch, "--again", "0")
    kept = {tmp_path / "00-c2.bin"}
    measured, told, before = sweep(tmp_path, [9.0, 0.1], monkeypatch, kept=kept)
    assert (measured, before, told.of("point")[0]["resumed"]) == (["00-c2-again1.bin"], 0, False)
    kept |= {tmp_path / "00-c2-again1.bin"}
    measured, told, before = sweep(tmp_path, [9.0, 0.1], monkeypatch, kept=kept)
    assert (measured, before, told.of("point")[0]["resumed"]) == ([], 1, True)


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ({"client.late_p99_ms": 8.0}, True),
        ({"client.late_p99_ms": 0.5}, False),
        ({"client.late_p99_ms": 2**20 / MS, "itl_ms": {"p50": 2.0}}, False),  # a bin's upper edge: 0.52 ms or more
        ({"client.late_p99_ms": 2**21 / MS, "itl_ms": {"p50": 2.0}}, True),
        ({"client.late_p99_ms": 8.0, "client.cpu_share": 0.8}, False),  # its own limit: it would be late again
        ({"client.late_p99_ms": 8.0, "interrupted": True}, False),
        ({"client.late_p99_ms": 8.0, "requests.failed": 40}, False),
        ({"client.late_p99_ms": 8.0, "tok_s": 0.0}, False),
        ({"open": {"late_ms": {"p99": 900.0}}}, True),
    ],
)
def test_only_what_another_attempt_can_mend_is_measured_again(change: dict[str, Any], again: bool) -> None:
    assert bool(why_again(point_with(change))) is again
    assert again <= bool(late(point_with(change)))


@pytest.fixture
def crowd() -> Iterator[None]:
    """One core for this process and three that are busy."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mine)})  # who is started from here stays on it, too
    spin = "import time\nuntil = time.time() + 60\nwhile time.time() < until: pass"
    busy = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(3)]
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)
        for process in busy:
            process.kill()
            process.wait()


@pytest.mark.served
def test_the_kernels_account_of_the_wait_for_a_core(crowd: None) -> None:
    """Without the priority the wait is told; with it there is none."""
    line, waits = Line(), []
    for _ in range(25):
        wall, used = time.perf_counter_ns(), time.process_time_ns()
        while time.process_time_ns() - used < 4 * MS:
            pass  # who wants a core for so long has to share it
        stood = time.perf_counter_ns() - wall - (time.process_time_ns() - used)
        waits.append((line.since(), stood))
    told, stood = sum(wait for wait, _ in waits), sum(one for _, one in waits)
    assert told == pytest.approx(stood, rel=0.3, abs=25 * MS)
    assert told > 50 * MS  # each of four gets a quarter: 300 ms
    with first_in_line() as first:
        if not first:
            pytest.skip("the system gives no real-time priority here")
        line.since()
        for _ in range(25):
            time.sleep(0.01)
        assert line.since() < 5 * MS
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
