"""Sixteen kinds of server with known truth, their figures drawn anew for each seed: the verdict is right in all."""

from __future__ import annotations

import ast
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from runbooks.bench.results import BenchResult, assess
from tests.bench import played
from tests.bench.played import STREAMS, Played, reading

TOP = STREAMS[-1]
Draw = Callable[[random.Random], Played]
Right = Callable[[BenchResult, Played], None]


def quick(rng: random.Random) -> Callable[[int], float]:
    """All-reduces of a healthy machine, in microseconds."""
    alpha, beta = rng.uniform(8, 20), rng.uniform(0.2, 0.5)
    return lambda b: alpha + beta * b


def latency(rng: random.Random) -> Played:
    share, flat = rng.uniform(0.62, 0.85), rng.uniform(0.5, 3.0)
    alpha = (reading(TOP) + flat) * share / (1 - share) / 156 * 1e3
    return Played(lambda b: reading(b) + flat + 156 * alpha / 1e3, lambda b: alpha)


def bandwidth(rng: random.Random) -> Played:
    share, alpha = rng.uniform(0.65, 0.85), rng.uniform(5, 30)
    beta = (reading(TOP) * share / (1 - share) / 156 * 1e3 - alpha) / TOP
    return Played(lambda b: reading(b) * 1.05 + 156 * (alpha + beta * b) / 1e3, lambda b: alpha + beta * b)


def weights(rng: random.Random) -> Played:
    speed, flat, reduce = rng.uniform(0.68, 0.92), rng.uniform(0.2, 1.5), quick(rng)
    return Played(lambda b: reading(b) / speed + flat + 156 * reduce(b) / 1e3, reduce)


def mixed(rng: random.Random) -> Played:
    memory, wire = rng.uniform(0.40, 0.46), rng.uniform(0.28, 0.38)
    whole = reading(TOP) / memory
    alpha = whole * wire / 156 * 1e3
    flat = whole * (1 - memory - wire)
    return Played(lambda b: reading(b) + flat + 156 * alpha / 1e3, lambda b: alpha)


def unknown(rng: random.Random) -> Played:
    memory, reduce = rng.uniform(0.12, 0.30), quick(rng)
    lost = reading(TOP) / memory - reading(TOP)
    each = rng.uniform(0.0, 0.5) * lost / TOP
    return Played(lambda b: reading(b) + lost - each * (TOP - b) + 156 * reduce(b) / 1e3, reduce)


def no_graphs(rng: random.Random) -> Played:
    launches, reduce = rng.uniform(45, 120), quick(rng)
    step = lambda b: reading(b) / 0.8 + launches + 156 * reduce(b) / 1e3  # noqa: E731
    return Played(step, reduce, info={"disable_cuda_graph": True, "cuda_graph_max_bs_decode": None})


def graphs_end(rng: random.Random) -> Played:
    end, factor, reduce = rng.choice((8, 16, 32)), rng.uniform(2.0, 3.0), quick(rng)

    def step(b: int) -> float:
        return (reading(b) / 0.8 + 3 + 156 * reduce(b) / 1e3) * (factor if b > end else 1)

    return Played(step, reduce, info={"cuda_graph_max_bs_decode": None, "truth": end})


def graphs_end_and_told(rng: random.Random) -> Played:
    played = graphs_end(rng)
    played.info["cuda_graph_max_bs_decode"] = played.info["truth"]
    return played


def client(rng: random.Random) -> Played:
    played, share = weights(rng), rng.uniform(0.7, 1.0)
    played.client_cpu = lambda b: share if b >= 8 else 0.05
    return played


def prefill(rng: random.Random) -> Played:
    played, share = weights(rng), rng.uniform(0.25, 0.5)
    played.prefill_ms = played.step(TOP) * share / (1 - share) * 48 / TOP * 1.05  # one of 64 begins each 48/64 step
    return played


def throttled(rng: random.Random) -> Played:
    slower, low, played = rng.uniform(2.2, 3.0), rng.uniform(0.35, 0.6), weights(rng)
    return Played(
        lambda b: played.step(b) * slower,
        played.reduce_us,
        throttled={rng.choice((0x04, 0x20, 0x40, 0x80)): rng.uniform(0.5, 1.0)},
        sm_mhz=lambda b: 2400 * low,
    )


def slower_when_hot(rng: random.Random) -> Played:
    """No reason is told, but the clock falls as the load grows."""
    slower, low, played = rng.uniform(2.2, 3.0), rng.uniform(0.4, 0.7), weights(rng)
    return Played(
        lambda b: played.step(b) * (slower if b > 4 else 1.0),
        played.reduce_us,
        sm_mhz=lambda b: 2400 * (low if b > 4 else 1.0),
    )


def spinning(rng: random.Random) -> Played:
    played = latency(rng)
    return Played(played.step, None, watts=rng.uniform(85, 130))


def queued(rng: random.Random) -> Played:
    played = weights(rng)
    played.info["max_running_requests"] = rng.choice((16, 24, 32, 48))
    return played


def another_model(rng: random.Random) -> Played:
    smaller = rng.uniform(0.2, 0.6)
    return Played(lambda b: reading(b) * smaller + 0.1)


def experts_apart(rng: random.Random) -> Played:
    share, reduce = rng.uniform(0.62, 0.8), quick(rng)
    rest = reading(TOP) * 1.1 + (78 + 3) * reduce(TOP) / 1e3
    away = (rest * share / (1 - share)) / 150 * 1e3
    return Played(
        lambda b: reading(b) * 1.1 + 81 * reduce(b) / 1e3 + 150 * away / 1e3,
        reduce,
        away_us=lambda b: away,
        info={"ep_size": 8},
        sent_each_token=78 * 12_288 * 1.75 + 2 * 75 * 12_288,
    )


def more_on_the_wire(rng: random.Random) -> Played:
    played = weights(rng)
    played.link = rng.choice((rng.uniform(3.5, 10), rng.uniform(0.02, 0.3)))
    return played


def says(word: str, *, collectives: str = "", suspect: str = "", against: str = "") -> Right:
    def right(result: BenchResult, _: Played) -> None:
        verdict = result.verdict
        assert all(point["valid"] for point in result.points), [point["faults"] for point in result.points]
        assert verdict.word == word, verdict.line
        assert collectives in verdict.collectives
        assert not suspect or verdict.suspects[0].startswith(suspect), verdict.suspects
        assert against in "; ".join(verdict.contradictions) if against else verdict.contradictions == ()
        assert verdict.interference == ""
        if word in ("unexplained", "communication"):
            assert "STOP TUNING" not in verdict.advice

    return right


def blames_graphs(result: BenchResult, played: Played) -> None:
    end = played.info["truth"]
    assert all(point["valid"] for point in result.points)
    assert result.verdict.word in ("unexplained", "mixed", "memory")  # the share depends on the factor
    assert result.verdict.suspects[0].startswith(f"between {end} and {2 * end} streams"), result.verdict.suspects
    assert "CUDA graphs" in result.verdict.suspects[0]


def invalid_above(reason: str, limit: Callable[[Played], int]) -> Right:
    def right(result: BenchResult, played: Played) -> None:
        most = limit(played)
        for point in result.points:
            assert point["valid"] == (point["concurrency"] <= most), (point["concurrency"], point["faults"])
            assert point["valid"] or any(reason in fault for fault in point["faults"]), point["faults"]
        assert [share.b for share in result.verdict.shares] == [b for b in STREAMS if b <= most]

    return right


def tells_of_prefill(result: BenchResult, _: Played) -> None:
    assert result.verdict.word == "memory"
    assert result.verdict.interference.startswith("Prefill stops decode for ")


def is_refused(result: BenchResult, _: Played) -> None:
    assert not any(point["valid"] for point in result.points if point["concurrency"] > 1)
    assert all("above the roofline" in "".join(p["faults"]) for p in result.points if p["concurrency"] > 1)
    assert result.verdict.word == "no verdict"


KINDS: dict[str, tuple[Draw, Right]] = {
    "pure latency": (latency, says("communication", collectives="latency rules")),
    "pure bandwidth": (bandwidth, says("communication", collectives="bandwidth rules")),
    "weight-bound": (weights, says("memory")),
    "mixed": (mixed, says("mixed")),
    "unexplained": (unknown, says("unexplained", suspect="attention backend")),
    "graphs off": (no_graphs, says("unexplained", suspect="CUDA graphs are off")),
    "graphs end untold": (graphs_end, blames_graphs),
    "graphs end": (graphs_end_and_told, invalid_above("CUDA graphs end at", lambda played: played.info["truth"])),
    "client-bound": (client, invalid_above("the client was near its limit", lambda played: 4)),
    "prefill interference": (prefill, tells_of_prefill),
    "throttled": (throttled, says("unexplained", suspect="clocks: ")),
    "slower when hot": (slower_when_hot, says("unexplained", suspect="clocks: SM at", against="no smooth line")),
    "spinning": (spinning, says("unexplained", suspect="waiting: ")),
    "queued": (
        queued,
        invalid_above("max_running_requests is", lambda played: int(played.info["max_running_requests"])),
    ),
    "another model": (another_model, is_refused),
    "experts apart": (experts_apart, says("communication")),
    "more on the wire": (more_on_the_wire, says("memory", against="the links carried")),
}
SEED = int(os.environ.get("RUNBOOKS_SEED") or random.SystemRandom().randrange(10**6))


def test_the_servers_share_no_figure_with_what_judges_them() -> None:
    """They know the log's format and the inventory's words for a model; no threshold, no formula."""
    format_, results = {"runbooks.bench.loadgen", "runbooks.inventory.shape"}, {"runbooks.bench.results"}
    for path, known in ((Path(played.__file__), format_), (Path(__file__), results)):
        nodes = [
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, (ast.Import, ast.ImportFrom))
        ]
        named = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        named |= {one.name for node in nodes if isinstance(node, ast.Import) for one in node.names}
        assert {name for name in named if name.startswith("runbooks")} <= known, path


@pytest.mark.served
@pytest.mark.parametrize("kind", KINDS)
def test_the_verdict_is_right(kind: str, tmp_path: Path) -> None:
    judged(kind, SEED, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_verdict_is_right_for_many(kind: str, tmp_path: Path) -> None:
    for number in range(30):
        judged(kind, SEED + number, tmp_path / str(number))


def judged(kind: str, seed: int, folder: Path) -> None:
    draw, right = KINDS[kind]
    rng = random.Random(f"{kind} {seed}")
    played = draw(rng)
    print(f"again: RUNBOOKS_SEED={seed}")
    right(assess(played.sweep(folder / "run", rng)), played)
