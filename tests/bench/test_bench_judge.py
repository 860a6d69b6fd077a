"""Validity, ceiling, decomposition, verdict: the published figures, and each case of the rules."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from runbooks.bench import ceiling as roof
from runbooks.bench.ceiling import GPUS, Ceiling, coverage, expert_parallel_bytes, gpu_named, tensor_parallel_bytes
from runbooks.bench.fit import decompose
from runbooks.bench.measured import Collectives, Timing, Unusable
from runbooks.bench.validity import Limits, faults, without_sense
from runbooks.bench.verdict import Verdict, judge
from runbooks.inventory.shape import ModelShape

GLM5 = ModelShape(
    hidden=6144,
    layers=78,
    moe_layers=75,
    experts=256,
    experts_per_token=8,
    routed_expert_bytes=407.7e9,
    other_weight_bytes=31.1e9,
    active_params=40.8e9,
    kv_bytes_per_token=2 * (512 + 64) * 78,  # BF16 latent and rope, each layer
    index_topk=2048,
)
CARD = GPUS[0]
CEILING = Ceiling(GLM5, CARD, 8, 1024)
SWEEP = (1, 2, 4, 8, 16, 32, 64)
REFERENCE = dict(zip(SWEEP, (50.4, 95.2, 164.2, 276.9, 427.4, 659.7, 1010.6), strict=True))
FORK = dict(zip(SWEEP, (51.6, 99.5, 180.2, 301.9, 315.2, 451.2, 590.7), strict=True))


def steps_of(rates: dict[int, float]) -> dict[int, float]:
    return {b: b / rate * 1e3 for b, rate in rates.items()}


# -- ceiling


FLOORS = {1: (0.031, 3.1), 2: (0.062, 4.0), 4: (0.119, 5.8), 8: (0.224, 9.0), 16: (0.398, 14.3), 32: (0.638, 22.0)}


@pytest.mark.parametrize(("b", "share", "floor_ms"), [(b, *known) for b, known in FLOORS.items()] + [(64, 0.869, 30.2)])
def test_coverage_and_memory_floor(b: int, share: float, floor_ms: float) -> None:
    assert coverage(GLM5, b) == pytest.approx(share, abs=0.0006)
    assert CEILING.memory(b) * 1e3 == pytest.approx(floor_ms, abs=0.06)


def test_arithmetic_is_never_the_limit_in_decode() -> None:
    assert CEILING.compute(1) * 1e3 == pytest.approx(0.005, abs=0.001)
    assert CEILING.compute(64) * 1e3 == pytest.approx(0.35, abs=0.005)
    assert CEILING.floor(64) == CEILING.memory(64)


def test_bytes_on_the_wire() -> None:
    assert roof.message_bytes(GLM5, 1) == 12_288
    assert tensor_parallel_bytes(GLM5, 8, 1) == pytest.approx(3.355e6, rel=1e-3)
    assert tensor_parallel_bytes(GLM5, 8, 32) == pytest.approx(107.35e6, rel=1e-4)  # the 107 MB of the story: TP8
    assert expert_parallel_bytes(GLM5, 8, 32) == pytest.approx(112.66e6, rel=1e-4)  # its 113 MB: EP8
    assert expert_parallel_bytes(GLM5, 8, 32, without_local=True) == pytest.approx(105.28e6, rel=1e-4)


def test_a_healthy_node_is_predicted_within_eight_per_cent() -> None:
    errors = [abs(b / roof.healthy_step_ms(b) * 1e3 / rate - 1) for b, rate in REFERENCE.items()]
    assert sum(errors) / len(errors) == pytest.approx(0.076, abs=0.002)


def test_long_context_reads_no_more_than_the_indexer_chooses() -> None:
    assert Ceiling(GLM5, CARD, 8, 2048).memory(8) == Ceiling(GLM5, CARD, 8, 100_000).memory(8)


def test_cards_by_name() -> None:
    assert gpu_named("NVIDIA RTX PRO 6000 Blackwell Server Edition") is CARD
    assert CARD.bandwidth == 1.792e12
    assert gpu_named("NVIDIA H200") is not None
    assert gpu_named("Voodoo 2") is None


# -- decomposition


def test_the_reference_sweep_explains_itself() -> None:
    fit = decompose(steps_of(REFERENCE), lambda b: coverage(GLM5, b))
    assert fit is not None
    assert [round(fit.c0, 1), round(fit.c1, 1), round(fit.c2, 3)] == [18.4, 41.8, 0.129]
    assert fit.rms == pytest.approx(0.010, abs=0.001)


def test_a_sweep_with_a_break_in_it_fits_badly() -> None:
    fit = decompose(steps_of(FORK), lambda b: coverage(GLM5, b))
    assert fit is not None
    assert [round(fit.c0, 1), round(fit.c1, 1), round(fit.c2, 2)] == [16.3, 16.2, 1.28]
    assert fit.rms == pytest.approx(0.086, abs=0.001)


def test_no_part_is_ever_negative_and_few_points_say_nothing() -> None:
    falling = {b: 100.0 - b for b in SWEEP}
    fit = decompose(falling, lambda b: coverage(GLM5, b))
    assert fit is not None
    assert min(fit.c0, fit.c1, fit.c2) >= 0.0
    assert decompose({1: 1.0, 2: 2.0, 4: 3.0}, lambda b: b) is None


# -- validity

WELL: dict[str, Any] = {
    "concurrency": 8, "input_len": 1024, "output_len": 512, "interrupted": False, "tok_s": 270.0, "decode_tok_s": 277.0,
    "step_ms": 8 / 277 * 1e3, "in_flight": 8.0, "itl_ms": {"p50": 28.0}, "e2e_ms": {"p50": 2000.0},
    "window_s": 60.0, "windows": [[0, 60_000_000_000]], "timeline": {"window": [10.0, 70.0]},
    "requests": {"sent": 40, "ok": 40, "cut": 0, "failed": 0, "failures": {}},
    "tokens": {"source": "usage of each chunk", "prompt": 40960, "cached": 160, "prompt_min": 1024, "prompt_max": 1024,
               "prompt_off": 0},
    "lengths": "1024 in, 512 out", "shared_len": 0, "open": None, "split": None, "ttft_ms": {"p50": 300.0},
    "repeats": [{"tok_s": 270.0, "tok_s_ci": 2.0}, {"tok_s": 271.0, "tok_s_ci": 2.0}],
    "client": {"cpu_share": 0.1, "late_p99_ms": 0.5},
    "server": {"counter": "generation_tokens_total, whole point", "difference": 0.001, "server_tokens": 20460,
               "client_tokens": 20480, "queued": 0.0},
}  # fmt: skip

OPEN = {"offered": 2.0, "started": 1.95, "ended": 1.97, "late_ms": {"p99": 0.2}}

CASES: list[tuple[dict[str, Any], Limits, str | None]] = [
    ({}, Limits(64, 64, False), None),
    ({"requests.failed": 1}, Limits(), "1 of 40 requests failed"),
    ({"requests.sent": 400, "requests.failed": 4}, Limits(), None),
    ({"requests.failed": 40, "requests.failures": {"short output": 40}}, Limits(), "40 x short output"),
    ({"requests.failed": 3, "requests.failures": {"garbage: '!!!!'": 3}}, Limits(), "garbage: '!!!!'"),
    ({"interrupted": True}, Limits(), "interrupted"),
    ({"interrupted": True, "tokens.source": "events (no usage sent)"}, Limits(), "interrupted"),
    ({"tok_s": 0.0, "decode_tok_s": None}, Limits(), "no tokens came"),
    ({"tokens.source": "events (no usage sent)"}, Limits(), "the server sent no usage: events are not tokens"),
    (
        {"tokens.source": "events (no usage sent) / usage of each chunk", "requests.cut": 2},
        Limits(),
        "where an answer was cut, no usage had come yet: events are not tokens",
    ),
    ({"tokens.cached": 20000}, Limits(), "prefix cache: 49% of the prompt tokens"),
    ({"tokens.cached": 30000, "shared_len": 768}, Limits(), None),
    ({"tokens.cached": 0, "server.cached_tokens": 20000.0}, Limits(), "prefix cache: 49% of the prompt tokens"),
    ({"tokens.cached": 0, "server.cached_tokens": 30000.0, "shared_len": 768}, Limits(), None),
    ({"tokens.cached": 0, "server.cached_tokens": 400.0}, Limits(), None),  # the template, in each prompt
    ({"tokens.cached": 0, "tokens.prompt": 0, "server.cached_tokens": 20000.0}, Limits(), "prefix cache: 49%"),
    (
        {"tokens.prompt_min": 900, "tokens.prompt_off": 124},
        Limits(),
        "had 900 to 1024 tokens, up to 124 off what was asked",
    ),
    ({"tokens.prompt_max": 1030, "tokens.prompt_off": 6}, Limits(), None),
    (
        {"split": {"gain": 0.09, "noise": 0.01, "processes": [1, 2]}},
        Limits(),
        "2 client processes found 9.0% more than 1",
    ),
    ({"split": {"gain": 0.09, "noise": 0.12, "processes": [1, 2]}}, Limits(), None),
    ({"split": {"gain": -0.04, "noise": 0.01, "processes": [1, 2]}}, Limits(), None),
    ({"repeats": [{"tok_s": 300.0, "tok_s_ci": 2.0}, {"tok_s": 270.0, "tok_s_ci": None}]}, Limits(), "differ by 11.1%"),
    ({"repeats": [{"tok_s": 300.0, "tok_s_ci": 50.0}, {"tok_s": 270.0, "tok_s_ci": 9.0}]}, Limits(), None),
    ({"open": OPEN, "in_flight": 3.0}, Limits(), None),
    ({"open": OPEN | {"ended": 1.2}}, Limits(), "fell behind: 2 requests a second came, 1.20 ended"),
    (  # for 4 s after 4 s, and an answer takes 11: what came is under way, and the server is not to blame
        {"open": OPEN | {"ended": 0.0}, "e2e_ms": None, "in_flight": 22.0, "tok_s": 1024.0, "output_len": 512}
        | {"window_s": 4.0, "windows": [[0, 4_000_000_000]], "timeline": {"window": [4.0, 8.0]}},
        Limits(),
        "the window of 4 s is shorter than an answer (11 s): --window 30",
    ),
    (
        {"open": OPEN | {"ended": 1.0}, "e2e_ms": {"p50": 40_000.0}, "timeline": {"window": [10.0, 70.0]}}
        | {"window_s": 60.0, "windows": [[0, 60_000_000_000]]},
        Limits(),
        "the window of 60 s began before the first answers had ended (40 s): --window 360",
    ),
    (
        {"open": OPEN | {"ended": 0.5}, "e2e_ms": {"p50": 40_000.0}, "timeline": {"window": [10.0, 70.0]}}
        | {"window_s": 60.0, "windows": [[0, 60_000_000_000]]},
        Limits(),
        "the server fell behind: 2 requests a second came, 0.50 ended",
    ),
    ({"open": OPEN | {"late_ms": {"p99": 40.0}}}, Limits(), "sent late: 40.0 ms"),
    ({}, Limits(max_running=4), "max_running_requests is 4"),
    ({}, Limits(graph_max=4), "CUDA graphs end at 4 streams"),
    (
        {},
        Limits(graph_max=4, graphs_off=True),
        None,
    ),  # without graphs there is no step in the sweep; a suspect, no fault
    ({"server.queued": 3.0}, Limits(), "stood in the server's queue"),
    ({"in_flight": 5.0}, Limits(), "only 5.0 of 8 streams"),
    ({"server.difference": -0.03}, Limits(), "the server 20460 (-3.0%)"),
    (
        {"server.difference": -0.11, "server.client_tokens": 1056, "server.server_tokens": 1187},
        Limits(),
        "we count 1056 tokens, the server 1187 (-11.0%), likely for others: users, or a canary's timer",
    ),
    ({"server.difference": 0.02, "server.counter": "decode, window", "server.server_tokens": 500}, Limits(), None),
    ({"client.cpu_share": 0.8}, Limits(), "near its limit: 80% of a core"),
    ({"client.late_p99_ms": 8.0}, Limits(), "the client was late"),
    ({"decode_tok_s": 1500.0}, Limits(), "above the roofline"),
]


def point_with(change: dict[str, Any]) -> dict[str, Any]:
    """One that is well but for this: path -> value."""
    point = copy.deepcopy(WELL)
    for path, value in change.items():
        *into, last = path.split(".")
        (point[into[0]] if into else point)[last] = value
    return point


@pytest.mark.parametrize(("change", "limits", "reason"), CASES)
def test_validity(change: dict[str, Any], limits: Limits, reason: str | None) -> None:
    found = faults(point_with(change), limits, CEILING)
    assert (found == []) if reason is None else any(reason in fault for fault in found)


BROKEN = {"verdict": "nan", "found": ["logits: all 5 logprobs are -11.9504: the model prefers no token"]}


@pytest.mark.parametrize(
    ("garbled", "canary", "reason"),
    [
        (0, None, None),
        (4, None, None),  # one answer in ten may be a list
        (5, None, "garbage: hardly a token comes twice in 5 of 40 answers"),
        (0, {"verdict": "healthy", "found": []}, None),
        (0, {"verdict": "degraded", "found": ["x"]}, None),  # it answers worse, and as fast as it was measured
        (0, {"verdict": "nan", "found": []}, "NaN, as the canary found after the sweep"),
        (0, BROKEN, "NaN, as the canary found after the sweep: logits: all 5 logprobs"),
    ],
)
def test_broken_numbers_have_no_speed(garbled: int, canary: dict[str, Any] | None, reason: str | None) -> None:
    found = without_sense(point_with({"requests.random": garbled}), canary)
    assert (found == []) if reason is None else found[0].startswith(reason)


def test_limits_by_the_names_of_each_version() -> None:
    state = {"internal_states": [{"effective_max_running_requests_per_dp": 48}]}
    assert Limits.of({"max_running_requests": 64, "cuda_graph_max_bs": 32} | state) == Limits(48, 32, None)
    named = {"cuda_graph_max_bs_decode": 64, "disable_cuda_graph": False, "max_running_requests": None}
    assert Limits.of(named) == Limits(None, 64, False)
    assert Limits.of({"cuda_graph_bs_decode": [1, 2, 4, 24]}).graph_max == 24
    config = {"decode": {"backend": "disabled", "max_bs": 32, "bs": [1, 2, 32]}, "prefill": {"max_bs": 4096}}
    told = {
        "cuda_graph_config": config,
        "cuda_graph_max_bs_decode": None,
        "disable_cuda_graph": False,
    }  # 0.5.23, on a CPU
    assert Limits.of(told) == Limits(None, 32, True)
    assert Limits.of({}) == Limits(None, None, None)


# -- verdict


def timings(seconds: dict[int, float], best: dict[int, float] | None = None) -> Collectives:
    return Collectives({b: Timing(s, s, s) for b, s in seconds.items()}, {}, best or {})


def verdict(
    steps: dict[int, float],
    *,
    collectives: Collectives | Unusable | None = None,
    limits: Limits | None = None,
    known: bool = True,
    step_ci: float | None = None,
) -> Verdict:
    points = [
        {"concurrency": b, "step_ms": ms, "step_ci": step_ci, "decode_tok_s": b / ms * 1e3, "valid": True}
        for b, ms in steps.items()
    ]
    return judge(
        points,
        ceiling=CEILING if known else None,
        limits=limits or Limits(64, 64, False),
        settings={"attention_backend": "dsa"},
        reference=REFERENCE,
        collectives=collectives,
    )


def test_without_measured_collectives_communication_is_never_claimed() -> None:
    seed = verdict({1: 90.9, 64: 271.2})
    assert seed.word == "unexplained"
    assert seed.suspects[0].startswith("collectives: not measured")
    assert "89% is unexplained" in seed.line
    assert seed.shares[-1].communication is None
    assert "22% at 1 stream, 23% at 64 streams" in seed.against_reference
    assert seed.fit is None


def test_measured_collectives_can_explain_the_same_sweep() -> None:
    told = verdict({1: 90.9, 64: 271.2}, collectives=timings({64: 1447e-6, 1: 519e-6}, {64: 142e-6, 1: 27e-6}))
    assert told.word == "communication"
    assert told.shares[-1].communication == pytest.approx(0.832, abs=0.001)
    assert "142 us instead of 1447 us for 768 KiB: 946 tok/s at 64" in told.counterfactual
    assert told.suspects == ()


def test_measured_collectives_can_also_clear_themselves() -> None:
    told = verdict({64: 271.2}, collectives=timings({64: 100e-6}))
    assert told.word == "unexplained"
    assert told.shares[-1].communication == pytest.approx(0.0575, abs=0.001)
    assert not told.suspects[0].startswith("collectives")


def test_memory_mixed_and_no_verdict() -> None:
    assert verdict({64: 40.0}).word == "memory"
    assert verdict({64: 65.0}, collectives=timings({64: 142e-6})).word == "mixed"
    assert verdict({}).word == "no verdict"
    assert verdict({64: 65.0}, known=False).word == "no verdict"


def test_graphs_come_first_among_what_can_be_known() -> None:
    for limits, words in (
        (Limits(graphs_off=True), "are off"),
        (Limits(graph_max=32), "end at 32"),
        (Limits(), "does not say"),
    ):
        assert words in verdict({64: 271.2}, limits=limits).suspects[1]
    assert "attention backend: dsa" in verdict({64: 271.2}).suspects[1]


def test_contradictions_are_said() -> None:
    impossible = verdict({64: 40.0}, collectives=timings({64: 142e-6}))
    assert "one figure is wrong" in impossible.contradictions[0]
    assert "something changes between 8 and 16 streams" in verdict(steps_of(FORK)).contradictions[0]
    flat = verdict({b: 100.0 + 0.01 * b for b in SWEEP})
    assert "is this the model it says?" in flat.contradictions[0]
    assert verdict(steps_of(REFERENCE)).contradictions == ()


@pytest.mark.parametrize(
    ("quickest", "step_ci", "said"), [(1.0, None, True), (0.97, None, False), (1.0, 3.0, False), (0.995, 0.3, True)]
)
def test_more_than_the_whole_within_the_noise_is_no_contradiction(
    quickest: float, step_ci: float | None, said: bool
) -> None:
    """All-reduces and weights that need 104 % of a step: that says nothing where each is known to 3 %."""
    reduce = 0.1 * (1.04 - CEILING.memory(1) * 10 - CEILING.compute(1) * 10) / 156
    measured = Collectives({1: Timing(reduce, reduce * quickest, reduce * 1.03)}, {}, {})
    told = verdict({1: 100.0}, collectives=measured, step_ci=step_ci)
    assert told.word == "communication"
    assert [one[:48] for one in told.contradictions] == (
        ["at 1 stream: the known parts need 104% of the me"] if said else []
    )


def test_invalid_points_have_no_say() -> None:
    points = [
        {"concurrency": 64, "step_ms": 1.0, "decode_tok_s": 64_000.0, "valid": False},
        {"concurrency": 8, "step_ms": 28.9, "decode_tok_s": 276.9, "valid": True},
    ]
    told = judge(points, ceiling=CEILING, limits=Limits(), settings={}, reference=REFERENCE)
    assert told.line.startswith("At 8 streams: 277 tok/s")
    assert "100% at 8" in told.against_reference
