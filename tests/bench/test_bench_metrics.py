"""The numbers of a point, on requests whose truth is known by construction."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from runbooks.bench.loadgen.lengths import WORKLOADS, lengths_of
from runbooks.bench.loadgen.load import APART, arrivals, first_length
from runbooks.bench.loadgen.metrics import (
    batch_rates,
    full_spans,
    half_width,
    percentile,
    spread,
    step_batches,
    student,
    tokens_between,
)
from runbooks.bench.loadgen.point import Steady
from runbooks.bench.loadgen.prompts import FILLER, LEAD, TokenIds, fit
from runbooks.bench.loadgen.rawlog import Block
from runbooks.bench.loadgen.records import Request
from runbooks.bench.loadgen.summary import point_of, points_of

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
    batches = step_batches(requests, full_spans(requests, 3, (0, 5_000 * MS)))
    assert len(batches) == 10
    assert [time / tokens for time, tokens in batches] == pytest.approx([10 * MS] * 10)


def test_interval_of_a_steady_rate_is_small_and_of_a_drifting_one_is_not() -> None:
    steady = [request(0, 0, 10, 1001)]
    rates = batch_rates(steady, (0, 10_000 * MS))
    assert sum(rates) / 10 == pytest.approx(100.1, abs=0.2)
    assert half_width(rates) == pytest.approx(0.0, abs=0.3)
    drifting = [Request(0, 999, 0, 0, arrivals=[(i * i * 100, i) for i in range(1, 1000)], tokens=999)]
    rates = batch_rates(drifting, (0, 99_000_000))
    assert half_width(rates) > 0.3 * sum(rates) / 10
    assert batch_rates([], (0, 100)) == [0.0] * 10
    assert batch_rates(steady, (5, 5)) == []
    for freedom, known in ((9, 2.262), (19, 2.093), (29, 2.045), (10_000, 1.960)):  # printed tables of Student's t
        assert student(freedom) == pytest.approx(known, rel=0.003)


def test_the_interval_holds_the_truth_nineteen_times_in_twenty() -> None:
    rng = random.Random(7)
    held = 0
    for _ in range(2_000):
        batches = [rng.gauss(100.0, 5.0) for _ in range(20)]
        held += abs(sum(batches) / 20 - 100.0) <= half_width(batches)
    assert 0.93 < held / 2_000 < 0.97


def test_a_window_ends_when_the_rate_is_known_and_not_before() -> None:
    def until(precision: float, noise: float) -> float:
        rng, watch, reads, at = random.Random(3), Steady(precision), 0.0, 0.0
        while at < 60.0:
            at += 0.1
            reads += 100.0 * (1 + noise * rng.uniform(-1, 1))
            if watch.seen(at, round(reads)):
                break
        return at

    assert until(0.02, 0.0) == pytest.approx(5.0, abs=0.3)
    assert 5.3 < until(0.02, 0.3) < 60.0
    assert until(0.002, 0.9) == pytest.approx(60.0, abs=0.2)
    assert until(0.0, 0.0) == pytest.approx(60.0, abs=0.2)


def stream(slot: int, first_ms: int, step_ms: float, tokens: int, lump: int = 1, **more: Any) -> Block:
    """A token each `step_ms`; `lump` of them an event."""
    reads = [(round((first_ms - 1) * MS), HEAD)]
    for i in range(lump, tokens + 1, lump):
        usage = {"completion_tokens": i, "prompt_tokens": 10}
        message = {"choices": [{"delta": {"content": f"w{i % 9} "}, "finish_reason": None}], "usage": usage}
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
        "sent": 6, "ok": 6, "cut": 0, "failed": 0, "failures": {}, "texts": 1, "random": 0, "without_done": 0,
    }  # fmt: skip
    assert told["step_ms"] == pytest.approx(10.0)
    assert told["decode_tok_s"] == pytest.approx(200.0)
    assert told["user_tok_s"] == pytest.approx(100.0)
    assert [told["itl_ms"][name] for name in ("n", "mean", "p50", "p99", "max")] == pytest.approx(
        [2 * (10 + 99 + 83), 10.0, 10.0, 10.0, 10.0]  # pauses that end in the window, and never the wait for the first
    )
    assert told["tok_s"] == pytest.approx(192.5, rel=0.02)  # 40 ms of each 1,030 belong to the next prefill
    assert told["ttft_ms"]["p50"] == pytest.approx(30.0)
    assert told["ttft_ms"]["n"] == 4
    assert told["tpot_ms"]["p99"] == pytest.approx(10.0)
    assert told["e2e_ms"]["max"] == pytest.approx(30.0 + 99 * 10)
    assert told["server"]["difference"] == 0.0
    assert told["client"] == {
        "processes": 1, "cpu_share": 0.01, "cpu_us_per_read": 50.0, "late_p99_ms": 2**17 * 1e-6, "late_max_ms": 2.0,
        "switches": 1, "first_in_line": False,
    }  # fmt: skip
    assert sum(told["timeline"]["tok_s"]) * told["timeline"]["bin_s"] == pytest.approx(600, abs=2)


def test_a_pause_is_not_the_time_of_a_token() -> None:
    """Five tokens an event: the reader waits for five steps (ITL), and a token took one (TPOT, step)."""
    blocks = one_pass(0, 1, 10)
    (told,) = points_of([("00-c1.bin", [*blocks[:-1], stream(0, 100, 10, 300, lump=5)])])
    assert told["itl_ms"]["p50"] == pytest.approx(50.0)
    assert told["step_ms"] == pytest.approx(10.0)
    assert told["tok_s"] == pytest.approx(100.0, rel=0.01)
    (ended,) = points_of([("00-c1.bin", [*blocks[:-1], stream(0, 100, 10, 150, lump=5)])])
    assert ended["tpot_ms"]["p50"] == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("before", "after", "cached"),
    [
        ({"at": 0, "running": 0.0}, {"at": 9, "cached_tokens": 70.0}, 70.0),  # SGLang names it from the first hit on
        ({"at": 0, "cached_tokens": 30.0}, {"at": 9, "cached_tokens": 70.0}, 40.0),
        ({"at": 0, "running": 0.0}, {"at": 9, "running": 0.0}, None),
        (None, {"at": 9, "cached_tokens": 70.0}, None),  # it did not answer: nobody knows since when
    ],
)
def test_what_the_cache_gave_by_the_servers_own_counter(
    before: dict[str, float] | None, after: dict[str, float], cached: float | None
) -> None:
    counters = {"before": before, "after": after, "window_begin": None, "window_end": None}
    (told,) = points_of([("00-c1.bin", one_pass(0, 1, 10, counters=counters))])
    assert told["server"].get("cached_tokens") == cached


def test_slots_end_in_groups_that_are_never_too_close() -> None:
    for slots, length in ((1, 64), (8, 64), (64, 64), (64, 512), (3, 5)):
        ends = sorted({first_length(slot, slots, length) for slot in range(slots)})
        assert ends[-1] == length
        assert all(after - before >= APART - 1 for before, after in pairwise(ends))
    assert len({first_length(slot, 64, 512) for slot in range(64)}) == 32


def one_pass(repeat: int, processes: int, step: float, **more: Any) -> list[Block]:
    point = {"kind": "point", "concurrency": 1, "rate": 0.0, "repeat": repeat, "interrupted": False, "go": 0} | {
        "input_len": 10, "output_len": 300, "window": [1_000 * MS, 2_000 * MS],
        "counters": dict.fromkeys(("before", "after", "window_begin", "window_end")),
    } | more  # fmt: skip
    worker: dict[str, Any] = {"kind": "worker", "wall_ns": 1, "cpu_ns": 1, "reads": 1, "switches": 0}
    worker |= {"busy_log2_ns": [0] * 64, "busy_max_ns": 0}
    return [(point, []), *[(worker, [])] * processes, stream(0, 100, step, 300)]


def test_passes_are_one_point_and_the_split_test_is_two_of_them() -> None:
    slow, fast, broken = one_pass(0, 1, 10), one_pass(1, 2, 8), one_pass(1, 2, 1, interrupted=True)
    (point,) = points_of([("00-c1.bin", slow), ("13-c1.bin", fast)])
    assert point["tok_s"] == pytest.approx((100 + 125) / 2, rel=0.01)
    assert point["tok_s_ci"] > 3  # what lies between the passes is in the interval
    assert [one["tok_s"] for one in point["repeats"]] == pytest.approx([100, 125], rel=0.01)
    assert point["split"]["processes"] == [1, 2]
    assert point["split"]["gain"] == pytest.approx(0.25, rel=0.02)
    assert point["log"] == "00-c1.bin"
    (kept,) = points_of([("00-c1.bin", slow), ("13-c1.bin", broken)])
    assert (kept["interrupted"], kept["split"], len(kept["repeats"])) == (False, None, 1)
    (cut,) = points_of([("00-c1.bin", broken)])
    assert cut["interrupted"]


def test_an_open_loop_counts_from_the_intended_time() -> None:
    """Ten a second were due; the server held each back for 300 ms, and they were sent 200 ms late."""
    blocks = one_pass(0, 1, 10, concurrency=0, rate=10.0)[:2]
    for number in range(40):
        due = 500 + 100 * number
        blocks.append(stream(number, due + 500, 10, 20, start=due * MS, sent=(due + 200) * MS))
    (point,) = points_of([("00-r10.bin", blocks)])
    assert point["ttft_ms"]["p50"] == pytest.approx(500)
    assert point["open"]["offered"] == 10.0
    assert point["open"]["started"] == pytest.approx(10.0)
    assert point["open"]["late_ms"]["p50"] == pytest.approx(200)
    assert point["concurrency"] == round(point["in_flight"]) == 7
    assert point["decode_tok_s"] is None


def test_arrivals_are_what_was_asked_for() -> None:
    every = sorted(one for i in range(2) for one in islice(arrivals(100.0, i, 2, steady=False), 5_000))
    gaps = [after - before for before, after in pairwise(every[:9_000])]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.01, rel=0.05)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.1)  # Poisson
    steady = sorted(one for i in range(3) for one in islice(arrivals(10.0, i, 3, steady=True), 10))
    assert [round(after - before, 9) for before, after in pairwise(steady)] == [0.1] * 29


def test_lengths(tmp_path: Path) -> None:
    rng = random.Random(1)
    fixed = lengths_of("512", "64")
    assert (fixed.draw(rng), fixed.longest, fixed.mean) == ((512, 64), 576, (512, 64))
    drawn = [lengths_of("100-200", "10").draw(rng) for _ in range(3_000)]
    assert {out for _, out in drawn} == {10}
    assert {min(one for one, _ in drawn), max(one for one, _ in drawn)} == {100, 200}
    file = tmp_path / "pairs.json"
    file.write_text("[[10, 5], [30, 7]]")
    given = lengths_of("1", "1", file)
    assert ({given.draw(rng) for _ in range(50)}, given.longest, given.mean) == ({(10, 5), (30, 7)}, 37, (20, 6))
    for prompt, answer in (("x", "1"), ("9-3", "1"), ("1", "0"), ("-5", "1"), ("1", "")):
        with pytest.raises(ValueError, match="-len"):
            lengths_of(prompt, answer)
    for text in ("", "{}", "[]", "[[1]]", "[[1, 0]]", '[["a", 2]]'):
        file.write_text(text)
        with pytest.raises(ValueError, match="lengths"):
            lengths_of("1", "1", file)
    with pytest.raises(ValueError, match="No such file"):
        lengths_of("1", "1", tmp_path / "absent")
    assert {lengths_of(*WORKLOADS[name][:2]).fixed for name in WORKLOADS} == {True}


def tokenizer(template: int, costly: int) -> Callable[[str], int]:
    """Words of more than `costly` letters are two tokens."""

    def count(prompt: str) -> int:
        return template + 2 + sum(2 if len(word) > costly else 1 for word in prompt.removeprefix(LEAD).split())

    return count


@pytest.mark.parametrize(("target", "template"), [(128, 9), (1024, 4), (40, 12), (4, 20)])
@pytest.mark.parametrize("costly", [6, 99])
def test_prompts_are_of_exactly_the_length_asked_for(target: int, template: int, costly: int) -> None:
    count, asked = tokenizer(template, costly), 0

    def counted(prompt: str) -> int:
        nonlocal asked
        asked += 1
        return count(prompt)

    rng = random.Random(1)
    prompts = fit(counted, target, rng)
    assert asked <= (5 if costly > 50 else 40)
    assert prompts.exact
    made = {prompts.new(rng, target) for _ in range(20)}
    assert len(made) == 20 or target < 30
    for prompt in made if target > 100 else ():  # of many words: one word repeated is one expert asked again
        kinds = Counter(prompt.split())
        assert len(kinds) > 20
        assert kinds.most_common(1)[0][1] < 0.1 * target
    if target > template + 10:
        for length in (target, target // 2 + 10, 3 * target + 1):
            assert count(prompts.new(rng, length)) == length
    shared = prompts.sharing(rng, max(30, target // 2))
    one, other = shared.new(rng, 2 * target + 60), shared.new(rng, 2 * target + 60)
    assert one != other
    assert one.startswith(shared.prefix)
    assert other.startswith(shared.prefix)
    assert count(one) == count(other) == 2 * target + 60
    assert FILLER == "a"


@pytest.mark.parametrize("target", [24, 40, 500])
def test_prompts_are_exact_where_a_word_is_many_tokens(target: int) -> None:
    """A token for each letter, as in a tokenizer that knows no words: six words are more than a short prompt."""
    rng = random.Random(1)

    def count(prompt: str) -> int:
        return 10 + sum(len(word) for word in prompt.split())

    prompts = fit(count, target, rng)
    made = {prompts.new(rng, target) for _ in range(50)}
    assert {count(one) for one in made} == {target}
    assert len(made) > 20


def test_a_template_that_is_off_by_some_is_set_right() -> None:
    """A template that costs two more as soon as a prompt is long, as some do."""
    count = tokenizer(5, 99)
    prompts = fit(lambda prompt: count(prompt) + 2 * (len(prompt) > 600), 500, random.Random(1))
    assert count(prompts.new(random.Random(2), 500)) + 2 == 500


def test_prompts_without_a_count_say_so() -> None:
    assert fit(lambda _: None, 100, random.Random(1)).exact is False


def test_token_ids_are_exact_by_construction() -> None:
    ids = TokenIds(1000, 2000)
    assert {len(ids.new(random.Random(seed), 64)) for seed in range(5)} == {64}
    assert set(ids.new(random.Random(1), 500)) <= set(range(1000, 2001))
    shared = ids.sharing(random.Random(1), 40)
    one, other = shared.new(random.Random(2), 64), shared.new(random.Random(3), 64)
    assert one[:40] == other[:40]
    assert one[40:] != other[40:]
