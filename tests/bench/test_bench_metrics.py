"""The numbers of a point, on requests whose truth is known by construction."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import pytest

from runbooks.bench.loadgen.loop import APART, first_length
from runbooks.bench.loadgen.metrics import (
    full_spans,
    percentile,
    point_of,
    rate_over,
    spread,
    step_time,
    tokens_between,
)
from runbooks.bench.loadgen.prompts import FILLER, LEAD, fit
from runbooks.bench.loadgen.rawlog import Block
from runbooks.bench.loadgen.records import Request

MS = 1_000_000
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def request(slot: int, first: int, step: int, tokens: int) -> Request:
    """One token each `step` ms from `first` ms on."""
    arrivals = [((first + i * step) * MS, i + 1) for i in range(tokens)]
    return Request(slot, tokens, (first - 5) * MS, arrivals[-1][0], arrivals=arrivals, tokens=tokens, done=True)


def test_percentiles() -> None:
    assert percentile([1.0], 99) == 1.0
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.5
    assert percentile([float(i) for i in range(101)], 99) == 99.0
    assert spread([]) is None
    assert spread([3.0, 1.0])["mean"] == 2.0  # type: ignore[index]


def test_borders_cut_a_step_in_two() -> None:
    one = request(0, 100, 10, 11)  # tokens at 100, 110, ... 200
    assert tokens_between(one, 100 * MS, 200 * MS) == 10.0  # the one at 100 had come
    assert tokens_between(one, 0, 100 * MS) == 1.0
    assert tokens_between(one, 105 * MS, 115 * MS) == pytest.approx(1.0)
    assert tokens_between(one, 0, 300 * MS) == 11.0
    assert sum(tokens_between(one, a * MS, (a + 7) * MS) for a in range(0, 301, 7)) == pytest.approx(11.0)


def test_full_spans_are_where_all_slots_decode() -> None:
    requests = [request(0, 0, 10, 101), request(1, 200, 10, 31), request(1, 700, 10, 31)]
    assert full_spans(requests, 2, (0, 10_000 * MS)) == [(200 * MS, 500 * MS), (700 * MS, 1000 * MS)]
    assert full_spans(requests, 2, (300 * MS, 400 * MS)) == [(300 * MS, 400 * MS)]
    assert full_spans(requests, 3, (0, 10_000 * MS)) == []


def test_step_is_not_skewed_by_the_order_of_delivery_nor_by_prefill() -> None:
    """Tokens of one step reach the client up to 3 ms apart, and a pause of 50 ms stands before each new request."""
    requests = []
    for slot, late in enumerate((0, 1, 3)):
        at = 100 + late
        for _ in range(6):
            requests.append(request(slot, at, 10, 20))
            at += 19 * 10 + 50
    step, half = step_time(requests, full_spans(requests, 3, (0, 5_000 * MS)))
    assert step == pytest.approx(10 * MS)
    assert half == pytest.approx(0.0)


def test_interval_of_a_steady_rate_is_small_and_of_a_drifting_one_is_not() -> None:
    steady = [request(0, 0, 10, 1001)]
    rate, half = rate_over(steady, (0, 10_000 * MS))
    assert rate == pytest.approx(100.1, abs=0.2)
    assert half == pytest.approx(0.0, abs=0.3)
    drifting = [Request(0, 999, 0, 0, arrivals=[(i * i * 100, i) for i in range(1, 1000)], tokens=999)]
    rate, half = rate_over(drifting, (0, 99_000_000))
    assert half is not None
    assert half > 0.3 * rate
    assert rate_over([], (0, 100)) == (0.0, None)
    assert rate_over(steady, (5, 5)) == (0.0, None)


def stream(slot: int, first_ms: int, step_ms: float, tokens: int, **more: Any) -> Block:
    reads = [(round((first_ms - 1) * MS), HEAD)]
    for i in range(1, tokens + 1):
        usage = {"completion_tokens": i, "prompt_tokens": 10}
        message = {"choices": [{"delta": {"content": f"w{i} "}, "finish_reason": None}], "usage": usage}
        if i == tokens:
            message["choices"][0]["finish_reason"] = "length"  # type: ignore[index]
        data = b"data: " + json.dumps(message).encode() + b"\n\n"
        reads.append((round((first_ms + (i - 1) * step_ms) * MS), b"%x\r\n%s\r\n" % (len(data), data)))
    end = reads[-1][0] + 10
    reads.append((end, b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"))
    meta = {"kind": "request", "slot": slot, "asked": tokens, "start": (first_ms - 30) * MS, "end": end, "status": 200}
    return meta | more, reads


def test_a_whole_point() -> None:
    point = {
        "kind": "point", "concurrency": 2, "interrupted": False, "input_len": 10, "output_len": 100, "go": 0,
        "window": [1_000 * MS, 3_000 * MS],
        "counters": {
            "before": {"at": 0, "generation_tokens": 1000.0}, "after": {"at": 9, "generation_tokens": 1600.0},
            "window_begin": None, "window_end": None,
        },
    }  # fmt: skip
    worker = {"kind": "worker", "wall_ns": 2_000 * MS, "cpu_ns": 20 * MS, "reads": 400, "switches": 1}
    worker |= {"busy_log2_ns": [0] * 17 + [400] + [0] * 46, "busy_max_ns": 2 * MS}
    streams = [stream(slot, at + 7 * slot, 10, 100) for slot in (0, 1) for at in (100, 1_130, 2_160)]
    told = point_of([(point, []), (worker, []), *streams])
    assert told["requests"] == {
        "sent": 6, "ok": 6, "cut": 0, "failed": 0, "failures": {}, "texts": 1, "without_done": 0,
    }  # fmt: skip
    assert told["step_ms"] == pytest.approx(10.0)
    assert told["decode_tok_s"] == pytest.approx(200.0)
    assert told["tok_s"] == pytest.approx(192.5, rel=0.02)  # 40 ms of each 1,030 belong to the next prefill
    assert told["ttft_ms"]["p50"] == pytest.approx(30.0)
    assert told["ttft_ms"]["n"] == 4
    assert told["tpot_ms"]["p99"] == pytest.approx(10.0)
    assert told["e2e_ms"]["max"] == pytest.approx(30.0 + 99 * 10)
    assert told["server"]["difference"] == 0.0
    assert told["client"] == {
        "processes": 1, "cpu_share": 0.01, "cpu_us_per_read": 50.0, "late_p99_ms": 2**17 * 1e-6, "late_max_ms": 2.0,
        "switches": 1,
    }  # fmt: skip
    assert sum(told["timeline"]["tok_s"]) * told["timeline"]["bin_s"] == pytest.approx(600, abs=2)


def test_slots_end_in_groups_that_are_never_too_close() -> None:
    for slots, length in ((1, 64), (8, 64), (64, 64), (64, 512), (3, 5)):
        ends = sorted({first_length(slot, slots, length) for slot in range(slots)})
        assert ends[-1] == length
        assert all(after - before >= APART - 1 for before, after in pairwise(ends))
    assert len({first_length(slot, 64, 512) for slot in range(64)}) == 32


@pytest.mark.parametrize(("target", "template"), [(128, 9), (1024, 4), (40, 12), (4, 20)])
def test_prompts_are_fitted_to_the_token(target: int, template: int) -> None:
    """Against a tokenizer in which some words are two tokens and the template has some of its own."""
    asked = 0

    def count(prompt: str) -> int:
        nonlocal asked
        asked += 1
        return template + 2 + sum(2 if len(word) > 6 else 1 for word in prompt.removeprefix(LEAD).split())

    rng = random.Random(1)
    prompts = fit(count, target, rng)
    made = {prompts.new(rng) for _ in range(20)}
    assert asked <= 10
    assert len(made) == 20 or target < 30
    if target > template + 10:
        assert prompts.tokens == target
        assert {count(prompt) for prompt in made} == {target}
    assert FILLER == "a"


def test_prompts_without_a_count_say_so() -> None:
    assert fit(lambda _: None, 100, random.Random(1)).tokens is None
