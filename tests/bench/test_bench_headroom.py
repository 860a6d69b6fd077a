"""The client's proof of itself: what the null server says of it is right, is told, and spoils what it must."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from runbooks.bench import assess
from runbooks.bench.loadgen import nullserver
from runbooks.bench.loadgen.point import processes_for
from runbooks.bench.report import proof, strip
from runbooks.bench.results import BenchResult
from runbooks.bench.validity import Limits, faults
from tests.bench.played import Played, reading
from tests.bench.test_bench_judge import CEILING, point_with

CHECK = {"ok": True, "caught": 15_000, "expected": 15_000, "rate": 10_000.0, "seen_rate": 10_000.0}
CHECK |= {"sent_rate": 10_000.0, "cpu_us_per_chunk": 9.0}


def test_lost_and_late_chunks_are_seen() -> None:
    """They carry the moment that they were sent at."""
    sent = [(time.perf_counter_ns(), nullserver.chunk(number)) for number in range(1, 101)]

    def judged(reads: list[tuple[int, bytes]]) -> dict[str, Any]:
        worker = {"kind": "worker", "reads": 100, "cpu_ns": 10**6, "wall_ns": 10**9}
        request = {"kind": "request", "slot": 0}
        return nullserver.judge([(request, [(sent[0][0], nullserver.HEAD), *reads]), (worker, [])], 1, 1_000.0, 0.1)

    after = sent[-1][0]  # all of them were sent by then
    in_time = [(after, data) for _, data in sent]
    assert judged(in_time)["ok"]
    assert judged(in_time)["caught"] == judged(in_time)["expected"] == 100
    assert not judged(in_time[:98])["ok"]
    late = judged([*in_time[:-1], (after + 500_000_000, in_time[-1][1])])  # the last one half a second later
    assert not late["ok"]
    assert late["seen_rate"] < 250
    assert late["late_ms"]["p99"] < 500 < judged([(at + 600_000_000, data) for at, data in in_time])["late_ms"]["p50"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"seen_rate": 500.0}, "the client reads 500 chunks/s at most, and 270 came"),
        ({"seen_rate": 6_000.0}, ""),  # behind, and twenty times faster than it has to be
        ({"caught": 14_000}, "the client lost chunks of the null server: 14000 of 15000 came"),
        ({"ok": True, "seen_rate": 500.0}, ""),
    ],
)
def test_a_client_that_fell_behind_spoils_what_it_could_not_have_read(change: dict[str, Any], reason: str) -> None:
    assert faults(point_with({}), Limits(), CEILING, CHECK | {"ok": False} | change) == ([reason] if reason else [])
    assert faults(point_with({}), Limits(), CEILING, None) == []


def checked(folder: Path, check: dict[str, Any] | None) -> BenchResult:
    Played(lambda b: reading(b) / 0.8 + 3, lambda b: 15.0 + b / 4).sweep(folder, random.Random(1))
    run = json.loads((folder / "run.json").read_text())
    run["loadgen"]["self_check"] = check
    (folder / "run.json").write_text(json.dumps(run))
    return assess(folder)


@pytest.mark.served
def test_it_is_told_and_it_counts(tmp_path: Path) -> None:
    well = checked(tmp_path / "well", CHECK)
    assert well.valid
    assert "x headroom (10,000 chunks/s from a null server, " in proof(well)
    assert "in the run late by " in proof(well)
    assert ("null server", "10,000 chunks/s", True) in strip(well)
    some = checked(tmp_path / "some", CHECK | {"ok": False, "seen_rate": 9_000.0})
    assert some.valid
    assert "where it fell behind (15000 of 15000 chunks, 9,000 of 10,000/s)" in proof(some)
    none = checked(tmp_path / "none", CHECK | {"ok": False, "seen_rate": 100.0})
    assert "DID NOT KEEP UP" in proof(none)
    assert {point["valid"] for point in none.points if point["tok_s"] > 50} == {False}
    assert ("null server", "100 chunks/s", False) in strip(none)
    assert "not checked against a null server" in proof(checked(tmp_path / "not", None))


def test_one_process_for_each_128_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    assert [processes_for(streams, 0) for streams in (64, 128, 129, 512, 8_000)] == [1, 1, 2, 4, 8]
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert [processes_for(streams, 0) for streams in (64, 512)] == [1, 1]
