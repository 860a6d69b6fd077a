"""The battery against a scripted server: what it costs, when it stops, and that each prompt alone catches its own
fault."""

from __future__ import annotations

import contextlib
import io
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from runbooks.canary.probe import cli
from runbooks.canary.probe.battery import BATTERIES, FULL, QUICK
from runbooks.canary.probe.client import Endpoint
from runbooks.canary.probe.run import Canary
from tests.canary.scripted_server import Asked, Scripted, healthy

pytestmark = pytest.mark.served

GARBAGE = "wet kettle " * 30


def run(server: Scripted, battery: str = "quick", **options: Any) -> tuple[str, list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    endpoint = Endpoint(server.url, "glm-5", silence=options.pop("silence", 5.0))
    canary = Canary(endpoint, battery, lambda event: events.append(dict(event)), **options)
    return canary.run(), events


def failing(events: list[dict[str, Any]]) -> set[str]:
    return {finding["prompt"] for finding in events[-1]["findings"] if finding["grade"] != "note"}


def test_a_healthy_server_is_called_healthy_at_a_known_cost() -> None:
    with Scripted() as server:
        verdict, events = run(server)
    assert verdict == "healthy"
    assert failing(events) == set()
    assert events[-1]["requests"] == len(server.seen) == 11 + 1 + 8  # single prompts, one measurement, a burst
    assert events[-1]["tokens"] < 20_000
    assert [event["name"] for event in events if event["event"] == "prompt"] == [prompt.name for prompt in QUICK]


def test_prompt_lengths_meet_the_threshold() -> None:
    with Scripted() as server:
        _, events = run(server)
    length = {event["name"]: event["prompt_tokens"] for event in events if event["event"] == "prompt"}
    assert 1400 < length["needle-below"] < 1600
    assert 2048 - 60 < length["count-across"] < 2048
    assert 3400 < length["needle-above"] < 3800


def test_a_prompt_that_is_asked_twice_is_the_same_to_the_last_word() -> None:
    with Scripted() as server:
        run(server, "full")
    long = [asked.text for asked in server.seen if asked.length > 1000]
    below = [text for text in long if len(text) == len(long[0])]
    assert long[0] == long[1]
    assert below.count(long[0]) == 2
    edges = [asked for asked in server.seen if asked.body["max_tokens"] == 16]
    assert len(edges) == len({asked.text for asked in edges}) == 10
    assert len({asked.text[:4000] for asked in edges}) == 1
    assert [asked.tokens % 64 for asked in edges] == [0, 1, 4, 5, 6, 7, 8, 9, 10, 63]
    assert all(asked.cached for asked in edges)  # one prompt that covers them all went before


def test_the_full_battery_is_healthy_too() -> None:
    with Scripted() as server:
        verdict, events = run(server, "full")
    assert (verdict, failing(events)) == ("healthy", set())
    bursts = [asked for asked in server.seen if asked.body["max_tokens"] == 32]
    assert len(bursts) == 8 + 3 + 13 + 16 + 33 + 64 + 72


def test_the_gate_sends_64_at_once() -> None:
    with Scripted() as server:
        verdict, events = run(server, "gate")
    assert (verdict, failing(events)) == ("healthy", set())
    assert len([asked for asked in server.seen if asked.body["max_tokens"] == 32]) == 64
    assert events[-1]["asked"][-2:] == ["burst-64", "again"]


def _sum(asked: Asked, number: int) -> bool:
    """The greedy sum by itself, for the so-manieth time: bursts have another limit of tokens."""
    asked_before = [one for one in asked.before if one.text == asked.text and one.body["max_tokens"] == 24]
    return "2+2" in asked.text and asked.body["max_tokens"] == 24 and len(asked_before) == number


def _burst(size: int) -> Callable[[Asked], bool]:
    """One request of the burst of this size: the last that came, which is told by the number of those before."""
    sizes = [prompt.streams for prompt in FULL if prompt.streams > 1]
    at = sum(sizes[: sizes.index(size) + 1]) - 1
    return lambda asked: (
        asked.body["max_tokens"] == 32 and sum(one.body["max_tokens"] == 32 for one in asked.before) == at
    )


def _edge(tokens: int) -> Callable[[Asked], bool]:
    return lambda asked: asked.body["max_tokens"] == 16 and asked.tokens % 64 == tokens % 64


FAULTS: dict[str, Callable[[Asked], bool]] = {
    "arithmetic": lambda asked: _sum(asked, 0),
    "capital": lambda asked: asked.logprobs and "capital" in asked.text,
    "reading": lambda asked: bool(asked.body.get("echo")),
    "story": lambda asked: asked.greedy and "story" in asked.text,
    "needle-below": lambda asked: 1300 < asked.length < 1700 and not asked.cached,
    "repeat": lambda asked: 1300 < asked.length < 1700 and asked.cached,
    "count-across": lambda asked: "1 to 20" in asked.text,
    "needle-above": lambda asked: 3000 < asked.length < 5000 and asked.greedy,
    "sampled": lambda asked: not asked.greedy and "story" in asked.text,
    "sampled-long": lambda asked: not asked.greedy and asked.length > 3000,
    "again": lambda asked: _sum(asked, 1),
    "again-72": lambda asked: _sum(asked, 2),
    "needle-far": lambda asked: asked.length > 10_000,
    "think": lambda asked: "prime" in asked.text,
    **{f"burst-{size}": _burst(size) for size in (8, 3, 13, 16, 33, 64, 72)},
    **{f"edge{tokens:+d}": _edge(tokens) for tokens in (0, 1, 4, 5, 6, 7, 8, 9, 10, -1)},
}


def alone(prompt: str, battery: str) -> tuple[str, set[str]]:
    """The verdict and the failing prompts where only this one meets its fault."""

    bad = "ca" if prompt == "reading" else GARBAGE  # what its logprob is null for, and its text sound

    def answer(asked: Asked) -> str | None:
        return bad if FAULTS[prompt](asked) else healthy(asked)

    with Scripted(answer) as server:
        verdict, events = run(server, battery)
    return verdict, failing(events)


@pytest.mark.parametrize("prompt", [prompt.name for prompt in QUICK])
def test_each_prompt_alone_catches_its_fault(prompt: str) -> None:
    assert alone(prompt, "quick") == ("nan" if prompt == "reading" else "degraded", {prompt})


@pytest.mark.parametrize("prompt", [prompt.name for prompt in FULL[len(QUICK) :]])
def test_each_prompt_of_the_full_battery_alone_catches_its_fault(prompt: str) -> None:
    assert alone(prompt, "full") == ("degraded", {prompt})


def test_no_prompt_is_without_such_a_fault() -> None:
    assert set(FAULTS) == {prompt.name for prompt in FULL}


def test_every_prompt_says_which_failure_it_stands_for() -> None:
    for battery in BATTERIES.values():
        assert all(len(prompt.why) > 30 for prompt in battery)
        assert len({prompt.name for prompt in battery}) == len(battery)


def test_it_stops_at_the_first_proof_and_never_samples_from_nan() -> None:
    with Scripted(lambda asked: "!" * 24) as server:
        verdict, _ = run(server)
    assert verdict == "nan"
    assert len(server.seen) == 1
    assert server.seen[0].greedy


def test_null_logprobs_prove_nan() -> None:
    with Scripted(lambda asked: "ca ca Paris" if asked.logprobs else healthy(asked)) as server:
        verdict, _ = run(server)
    assert verdict == "nan"


def test_a_dropped_connection_is_dead() -> None:
    with Scripted(lambda asked: None if not asked.greedy else healthy(asked)) as server:
        verdict, events = run(server)
    assert verdict == "dead"
    assert failing(events) == {"sampled"}


def test_silence_is_dead_and_bounded() -> None:
    hold = threading.Event()

    def answer(asked: Asked) -> str:
        hold.wait(3)
        return healthy(asked)

    with Scripted(answer) as server:
        verdict, events = run(server, silence=0.3)
        hold.set()
    assert verdict == "dead"
    assert events[-1]["findings"][0]["kind"] == "silent"


def test_a_health_endpoint_that_says_503_afterwards_is_not_healthy() -> None:
    with Scripted(status=503) as server:
        assert run(server)[0] == "degraded"


def test_a_strict_server_is_asked_again_without_our_extras() -> None:
    with Scripted(strict=True) as server:
        assert run(server)[0] == "healthy"
    assert all("chat_template_kwargs" not in asked.body for asked in server.seen)


def test_a_busy_server_is_asked_one_by_one() -> None:
    metrics = 'sglang:num_running_reqs{tp_rank="0"} 12.0\nsglang:num_queue_reqs{tp_rank="0"} 3.0\n'
    with Scripted(metrics=metrics) as server:
        verdict, events = run(server)
    assert verdict == "healthy"
    assert max(asked.together for asked in server.seen) == 1
    assert any("busy" in event.get("text", "") for event in events)


def test_a_budget_that_is_spent_is_said() -> None:
    """A budget of nothing asks nothing; that is never called healthy."""
    with Scripted() as server:
        verdict, events = run(server, budget=0.001)
    assert verdict != "healthy"
    assert events[-1]["findings"][0]["kind"] == "unfinished"


def test_a_model_that_knows_nothing_is_judged_by_its_numbers() -> None:
    with Scripted(lambda asked: "wet kettle on a shelf") as server:
        verdict, _ = run(server, knowledge=False)
    assert verdict == "healthy"
    assert all(asked.logprobs for asked in server.seen)


@pytest.mark.parametrize(
    ("answer", "code"),
    [(healthy, 0), (lambda asked: "wet kettle", 1), (lambda asked: "!" * 24, 3), (lambda asked: None, 4)],
)
def test_the_exit_code_is_the_verdict(answer: Any, code: int) -> None:
    out = io.StringIO()
    with Scripted(answer) as server, contextlib.redirect_stdout(out):
        assert cli.main(["--url", server.url, "--model", "glm-5", "--silence", "5"]) == code
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert lines[-1]["event"] == "verdict"


def test_nothing_listens() -> None:
    with Scripted() as server:
        url = server.url
    events: list[Any] = []
    assert Canary(Endpoint(url, "glm-5"), "quick", events.append).run() == "dead"
    assert events[-1]["findings"][0]["kind"] == "refused"
