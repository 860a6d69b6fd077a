"""What bounds the throughput: computed from measured steps, the model's bytes and, where measured, the collectives.

The words: `memory`, `communication`, `compute`, `mixed`, `unexplained`, `no verdict`. Communication is never claimed
without a measurement of it: a sweep alone cannot tell slow collectives from slow launches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runbooks.bench.ceiling import Ceiling, coverage, message_bytes, reductions
from runbooks.bench.fit import Fit, decompose
from runbooks.bench.validity import Limits

DOMINANT = 0.5  # a part that takes this share of the step bounds it
UNEXPLAINED = 0.35  # a rest of this share may not be called anything else
POOR_FIT = 0.05  # relative rms above which something changes within the sweep


@dataclass(frozen=True)
class Collectives:
    """Measured on the serving GPUs: seconds of one all-reduce at the message size of b tokens.

    `best_known`: the same on a healthy machine of this kind.
    """

    seconds: Mapping[int, float]
    best_known: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Shares:
    """Of one decode step, in parts of 1. `communication` is None where it was not measured, and then lies in `rest`."""

    b: int
    step_ms: float
    memory: float
    compute: float
    communication: float | None
    rest: float


@dataclass(frozen=True)
class Verdict:
    """`word` first. `suspects` are in the order in which to look; each says what is known and how to know more."""

    word: str
    line: str
    shares: tuple[Shares, ...] = ()
    fit: Fit | None = None
    suspects: tuple[str, ...] = ()
    counterfactual: str = ""
    contradictions: tuple[str, ...] = ()
    against_reference: str = ""


def shares_of(b: int, step_ms: float, ceiling: Ceiling, collectives: Collectives | None) -> Shares:
    step = step_ms / 1e3
    communication = None
    if collectives and b in collectives.seconds:
        communication = reductions(ceiling.shape) * collectives.seconds[b] / step
    memory, compute = ceiling.memory(b) / step, ceiling.compute(b) / step
    return Shares(b, step_ms, memory, compute, communication, 1.0 - memory - compute - (communication or 0.0))


def judge(
    points: Sequence[Mapping[str, Any]],
    *,
    ceiling: Ceiling | None,
    limits: Limits,
    settings: Mapping[str, Any],
    reference: Mapping[int, float],
    collectives: Collectives | None = None,
) -> Verdict:
    """The verdict over the VALID points; its word is that of the highest concurrency."""
    steps = {p["concurrency"]: p["step_ms"] for p in points if p["valid"] and p["step_ms"]}
    against = _against(points, reference)
    if not steps:
        return Verdict(
            "no verdict", "No valid point with a decode step: nothing can be said.", against_reference=against
        )
    top = max(steps)
    rate = top / steps[top] * 1e3
    if ceiling is None:
        line = f"At {top}: {rate:.0f} tok/s. The GPU is not in the table of known cards: no floor to compare with."
        return Verdict("no verdict", line, against_reference=against)
    shares = tuple(shares_of(b, steps[b], ceiling, collectives) for b in sorted(steps))
    fit = decompose(steps, lambda b: coverage(ceiling.shape, b))
    word = _word(shares[-1])
    return Verdict(
        word,
        _line(word, shares[-1], rate),
        shares,
        fit,
        tuple(_suspects(top, shares[-1], limits, settings)) if word in ("unexplained", "mixed") else (),
        _counterfactual(top, steps[top], ceiling, collectives),
        tuple(_contradictions(shares, fit, ceiling)),
        against,
    )


def _word(top: Shares) -> str:
    if top.communication is not None and top.communication >= DOMINANT:
        return "communication"
    if top.memory >= DOMINANT:
        return "memory"
    if top.compute >= DOMINANT:
        return "compute"
    return "unexplained" if top.rest >= UNEXPLAINED else "mixed"


def _line(word: str, top: Shares, rate: float) -> str:
    head = f"At {top.b} streams: {rate:.0f} tok/s, {top.step_ms:.1f} ms a step."
    known = f"Reading weights and KV needs at least {top.memory:.0%} of it, arithmetic {top.compute:.1%}"
    if top.communication is None:
        known += "; the collectives were not measured"
    else:
        known += f", all-reduce {top.communication:.0%} (measured)"
    ends = {
        "memory": "the step is bound by memory bandwidth",
        "communication": "the step is bound by communication",
        "compute": "the step is bound by arithmetic",
        "mixed": "no single part bounds it",
        "unexplained": f"{top.rest:.0%} is unexplained",
    }
    return f"{head} {known}: {ends[word]}."


def _suspects(b: int, top: Shares, limits: Limits, settings: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    if top.communication is None:
        found.append(
            "collectives: not measured, so neither blamed nor cleared; measure all-reduce at this model's sizes"
        )
    if limits.graphs_off:
        found.append("CUDA graphs are off (disable_cuda_graph): every launch is paid each step")
    elif limits.graph_max is not None and b > limits.graph_max:
        found.append(f"CUDA graphs end at {limits.graph_max} streams, and {b} were run")
    elif limits.graph_max is None:
        found.append(
            "CUDA graphs: the server does not say up to how many streams; look for `cuda graph: False` in its log"
        )
    for name, what in (("attention_backend", "attention backend"), ("moe_runner_backend", "MoE backend")):
        value = settings.get(name)
        found.append(
            f"{what}: {value}; compare with the profile, and with what the log says at start"
            if value
            else f"{what}: not told"
        )
    found += [
        "host CPU: one Python process feeds the GPUs; look for a core at 100 %, and at the clock governor",
        "clocks and power: `nvidia-smi -q -d CLOCK,POWER` under load; 100 % busy at half the usual watts is waiting",
        "queueing and prefill: TTFT against ITL shows prompts that stop the decoding of others",
    ]
    return found


def _counterfactual(b: int, step_ms: float, ceiling: Ceiling, collectives: Collectives | None) -> str:
    limit = f"If all but the memory floor vanished: {ceiling.tok_s(b):.0f} tok/s at {b}; no setting can give more."
    if not collectives or b not in collectives.seconds or b not in collectives.best_known:
        return limit
    measured, best = collectives.seconds[b], collectives.best_known[b]
    better = b / (step_ms - reductions(ceiling.shape) * (measured - best) * 1e3) * 1e3
    size = message_bytes(ceiling.shape, b) / 1024
    return (
        f"With an all-reduce of {best * 1e6:.0f} us instead of {measured * 1e6:.0f} us for {size:.0f} KiB: "
        f"{better:.0f} tok/s at {b}. {limit}"
    )


def _contradictions(shares: Sequence[Shares], fit: Fit | None, ceiling: Ceiling) -> list[str]:
    found = [
        f"at {s.b}: the known parts need {1 - s.rest:.0%} of the measured step; one figure is wrong"
        for s in shares
        if s.rest < -0.02
    ]
    if fit is None:
        return found
    floor = ceiling.shape.routed_expert_bytes / ceiling.ranks / ceiling.gpu.bandwidth * 1e3
    if fit.rms > POOR_FIT:
        found.append(f"no smooth line fits the sweep (rms {fit.rms:.1%}): something changes between its points")
    elif fit.c1 < 0.9 * floor and fit.points >= 6:
        found.append(
            f"the fit reads all experts in {fit.c1:.1f} ms, memory needs {floor:.1f}: is this the model it says?"
        )
    return found


def _against(points: Sequence[Mapping[str, Any]], reference: Mapping[int, float]) -> str:
    known = [
        (p["concurrency"], p["decode_tok_s"] / reference[p["concurrency"]])
        for p in points
        if p["valid"] and p["decode_tok_s"] and p["concurrency"] in reference
    ]
    if not known:
        return ""
    parts = ", ".join(f"{ratio:.0%} at {b}" for b, ratio in (known if len(known) < 3 else (known[0], known[-1])))
    return f"Against the reference sweep: {parts}."
