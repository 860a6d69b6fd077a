"""The simulated scheduler by count: steps, tokens, queues and failures, with a clock that the test turns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from lab.standins.sglang.src import words
from lab.standins.sglang.src.engine import Death, Engine, Limits, Request
from lab.standins.sglang.src.prefix import PrefixCache
from lab.standins.sglang.src.speed import Speed
from lab.standins.sglang.src.words import Piece

PUBLISHED = {1: 50.4, 2: 95.2, 4: 164.2, 8: 276.9, 16: 427.4, 32: 659.7, 64: 1010.6}
"""tok/s of GLM-5-NVFP4 on eight RTX PRO 6000, voipmonitor/rtx6kpro, models/glm5.md."""

EOS = 154_827


def speed(graph_max_bs: int = 512) -> Speed:
    return Speed(18.4, 41.8, 0.129, 0.02, graph_max_bs, 1.6)


class Bench:
    """An engine and its clock."""

    def __init__(self, *, failure: str = "", detail: int | None = None, max_running: int = 256, page: int = 1) -> None:
        cache = PrefixCache(page=page, capacity=1_000_000)
        self.engine = Engine(speed(), Limits(max_running, 1_000_000, 16_384), cache, failure=failure, detail=detail)
        self.now = 0.0
        self.tokens: dict[str, list[str]] = {}
        self.done: list[Request] = []
        self._numbers = itertools.count()

    def submit(
        self, *, prompt: int = 8, max_new: int = 10, script: Iterator[Piece] | None = None, **rest: object
    ) -> Request:
        number = next(self._numbers)
        rid = f"r{number}"
        self.tokens[rid] = []
        request = Request(
            rid=rid,
            prompt=tuple(range(number * 100_000, number * 100_000 + prompt)),
            max_new=max_new,
            script=script or (Piece(f" w{n}") for n in itertools.count()),
            eos=EOS,
            on_token=lambda one, piece: self.tokens[one.rid].append(piece.text),
            on_finish=self.done.append,
            **rest,  # type: ignore[arg-type]
        )
        self.engine.submit(request, self.now)
        return request

    def run(self, seconds: float = 1e9) -> None:
        """Let it work until it rests, or for so long."""
        end = self.now + seconds
        while (due := self.engine.advance(self.now)) is not None and due <= end:
            self.now = due


@pytest.mark.parametrize("streams", PUBLISHED)
def test_the_speed_model_is_the_published_sweep(streams: int) -> None:
    assert streams / speed().decode(streams) == pytest.approx(PUBLISHED[streams], rel=0.025)


@pytest.mark.parametrize("streams", [1, 7, 64])
def test_every_stream_gets_one_token_a_step(streams: int) -> None:
    bench = Bench()
    for _ in range(streams):
        bench.submit(max_new=50)
    bench.run()
    totals = bench.engine.totals
    assert totals.prefill_passes == 1
    assert totals.decode_passes == 49  # the prefill brought the first token
    assert totals.decode_tokens == 49 * streams
    assert {len(one) for one in bench.tokens.values()} == {50}
    assert bench.now == pytest.approx(49 * speed().decode(streams) + speed().prefill(8 * streams))


def test_a_late_loop_does_not_slow_the_model() -> None:
    bench = Bench()
    bench.submit(max_new=100)
    bench.engine.advance(0.0)
    for at in (0.1, 0.2, 0.35, 0.5, 0.7, 0.9):  # the event loop comes by when it can
        bench.engine.advance(at)
    assert len(bench.tokens["r0"]) == 1 + int((0.9 - speed().prefill(8)) / speed().decode(1))


def test_above_the_captured_graphs_steps_are_slower() -> None:
    one = speed(graph_max_bs=8)
    assert one.decode(9) == pytest.approx(speed().decode(9) * 1.6)
    assert one.decode(8) == speed().decode(8)


def test_more_than_may_run_wait_their_turn() -> None:
    bench = Bench(max_running=2)
    for _ in range(5):
        bench.submit(max_new=4)
    bench.engine.advance(0.0)
    bench.run(speed().prefill(16) + 1e-6)
    assert (len(bench.engine.running), len(bench.engine.waiting)) == (2, 3)
    bench.run()
    assert [one.rid for one in bench.done] == ["r0", "r1", "r2", "r3", "r4"]
    assert bench.engine.used == 0


def test_a_prompt_seen_before_is_cached_but_for_its_last_token() -> None:
    bench = Bench()
    first = bench.submit(prompt=300)
    bench.run()
    again = bench.submit(prompt=300)
    again.prompt = first.prompt
    bench.run()
    assert (first.cached, again.cached) == (0, 299)


@pytest.mark.parametrize(("page", "hit"), [(64, 256), (1, 299)])
def test_the_cache_counts_whole_pages(page: int, hit: int) -> None:
    cache = PrefixCache(page=page, capacity=10_000)
    cache.insert(range(300))
    assert cache.match(range(300)) == hit
    cache.clear()
    assert cache.match(range(300)) == 0


def test_a_switched_off_cache_holds_nothing() -> None:
    cache = PrefixCache(page=1, capacity=100, enabled=False)
    cache.insert(range(50))
    assert cache.match(range(50)) == 0


def test_the_end_of_turn_is_a_token() -> None:
    bench = Bench()
    request = bench.submit(script=iter([Piece("2+2"), Piece(" equals"), Piece(" 4.")]))
    bench.run()
    assert request.ids[-1] == EOS
    assert len(request.ids) == 4
    assert request.finish is not None
    assert (request.finish.kind, request.finish.matched) == ("stop", EOS)


def test_a_stop_text_is_cut_off() -> None:
    bench = Bench()
    request = bench.submit(script=iter([Piece("2+2"), Piece(" equals"), Piece(" 4.")]), stop=(" equals",))
    bench.run()
    assert bench.tokens["r0"] == ["2+2"]
    assert len(request.ids) == 2
    assert request.finish is not None
    assert request.finish.matched == " equals"


def test_abort_ends_what_runs_and_what_waits() -> None:
    bench = Bench(max_running=1)
    for _ in range(2):
        bench.submit(max_new=1000)
    bench.run(1.0)
    bench.engine.abort("", bench.now)
    assert [one.finish.kind for one in bench.done if one.finish] == ["abort", "abort"]
    assert (bench.engine.running, len(bench.engine.waiting), bench.engine.used) == ([], 0, 0)
    bench.run()


# -- failures --------------------------------------------------------------------------------------------------------


def test_nan_makes_greedy_answers_token_zero() -> None:
    bench = Bench(failure="nan")
    request = bench.submit(max_new=32)
    bench.run()
    assert "".join(bench.tokens["r0"]) == "!" * 32
    assert set(request.ids) == {0}
    assert request.finish is not None
    assert request.finish.kind == "length"


def test_nan_kills_the_scheduler_when_something_is_sampled() -> None:
    bench = Bench(failure="nan")
    bench.submit(sampled=True)
    with pytest.raises(Death, match="nan"):
        bench.run()


@pytest.mark.parametrize(("tokens", "broken"), [(2048, False), (2049, True)])
def test_nan_long_is_for_long_prompts(tokens: int, broken: bool) -> None:
    bench = Bench(failure="nan_long")
    request = bench.submit(prompt=tokens)
    bench.run()
    assert request.broken is broken


def test_nan_busy_breaks_what_runs_in_a_crowd() -> None:
    bench = Bench(failure="nan_busy", detail=3)
    crowd = [bench.submit(max_new=4) for _ in range(4)]
    bench.run()
    alone = bench.submit(max_new=4)
    bench.run()
    assert [one.broken for one in crowd] == [True] * 4
    assert not alone.broken


def test_nan_stop_ends_normally_without_a_token() -> None:
    bench = Bench(failure="nan_stop")
    request = bench.submit()
    bench.run()
    assert request.ids == []
    assert request.finish is not None
    assert (request.finish.kind, request.finish.matched) == ("stop", "NaN happened")


def test_one_token() -> None:
    bench = Bench(failure="one_token")
    request = bench.submit()
    bench.run()
    assert len(request.ids) == 1


def test_after_its_requests_it_hangs() -> None:
    bench = Bench(failure="hang_after", detail=2)
    for _ in range(2):
        bench.submit(max_new=5)
    bench.submit(max_new=5)
    bench.run()
    assert bench.engine.advance(bench.now + 1e6) is None  # not one token more, however long one waits
    assert len(bench.done) == 0


def test_after_its_requests_it_crashes() -> None:
    bench = Bench(failure="crash_after", detail=1)
    bench.submit(max_new=5)
    bench.run()
    bench.submit(max_new=5)
    with pytest.raises(Death, match="cuda"):
        bench.run()


# -- what it says ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("What is 2+2?", "2+2 equals 4."),
        ("What is 17 times 3?", "17*3 equals 51."),
        ("What is the capital of France?", "The capital of France is Paris."),
        ("What color is the sky?", "The sky is blue."),
        ("Count from 1 to 5.", "1, 2, 3, 4, 5."),
        ("Repeat the word: canary", "canary"),
        ("How many prime numbers lie between 100 and 200?", "There are 21 prime numbers"),
        (
            "Hay. The secret number is 7413. More hay.\n\nWhat is the secret number? Answer with the number alone.",
            "7413",
        ),
    ],
)
def test_known_answers(prompt: str, text: str) -> None:
    assert text in "".join(piece.text for piece in words.script(prompt, seed=1))


def test_prose_is_varied_stable_and_one_token_a_word() -> None:
    def tokens(seed: int) -> list[str]:
        return [one.text for one in itertools.islice(words.script("x", seed=seed, ignore_eos=True), 500)]

    text = "".join(tokens(1))
    assert tokens(1) == tokens(1) != tokens(2)
    assert words.split(text) == tokens(1)
    assert len(text.split()) == 500
    assert len(set(tokens(1))) > 200


def test_a_knob_adds_answers() -> None:
    found = words.script("who are you", seed=1, answers={"who are you": "a stand-in"})
    assert "".join(one.text for one in found) == "a stand-in"
