"""What would help, and by how much: each option predicted from what was measured, with an interval, or not at all.

The interval is a bootstrap over the noise that is known: the step's 95 % interval from batch means, and the range of
the measured collectives. It is seeded, so that the same run gives the same figures again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runbooks.bench.ceiling import Ceiling, message_bytes, reductions
from runbooks.bench.measured import Collectives, Timing
from runbooks.bench.words import streams
from runbooks.inventory.shape import ModelShape

DRAWS = 400
NOISE = 0.03  # of the rate: a predicted gain below this is not worth a restart, nor told apart from chance
# Published for GLM-5-NVFP4 on eight RTX PRO 6000 with and without MTP (rtx6kpro, models/glm5.md): 1.86 at 1 stream and
# 1.41 at 64. It depends on how many drafts the text lets through, so it is an expectation and no measurement.
MTP = {1: 1.86, 64: 1.41}


@dataclass(frozen=True)
class Step:
    """A measured decode step of b streams; `half` is half of its 95 % interval, ms."""

    b: int
    ms: float
    half: float | None

    @property
    def tok_s(self) -> float:
        return self.b / self.ms * 1e3

    @property
    def noise(self) -> float:
        """Relative: what this run cannot tell from no change."""
        return max(NOISE, (self.half or 0.0) / self.ms)


@dataclass(frozen=True)
class Gain:
    """One option. `tok_s`, `low`, `high`: predicted (5 to 95 %). `measured`: every figure in it was measured here."""

    option: str
    tok_s: float
    low: float
    high: float
    why: str
    measured: bool
    bound: bool = False  # no option that somebody could take, but what all of its kind together cannot exceed

    def sentence(self, b: int) -> str:
        return f"{self.why}: {self.tok_s:,.0f} tok/s at {streams(b)} ({self.low:,.0f} to {self.high:,.0f})."


def communication_seconds(
    shape: ModelShape, collectives: Collectives | None, b: int, *, experts_spread: bool = False, least: bool = False
) -> float | None:
    """Of one step; `least`: by the quickest that was measured.

    Tensor parallel: an all-reduce behind attention and one behind the MLP, each layer. With experts spread over the
    GPUs: behind attention and the dense MLPs as before, and a dispatch and a combine each MoE layer.
    """
    if collectives is None or b not in collectives.all_reduce:
        return None

    def seconds(timing: Timing) -> float:
        return timing.low if least else timing.seconds

    reduce = seconds(collectives.all_reduce[b])
    if not experts_spread:
        return reductions(shape) * reduce
    if b not in collectives.all_to_all:
        return None
    away = seconds(collectives.all_to_all[b])
    return (reductions(shape) - shape.moe_layers) * reduce + 2 * shape.moe_layers * away


def experts_spread(settings: Mapping[str, Any]) -> bool:
    """Whether the server runs with expert parallelism."""
    size = settings.get("ep_size")
    return isinstance(size, int) and size > 1


def gains(
    step: Step, ceiling: Ceiling, collectives: Collectives | None, settings: Mapping[str, Any]
) -> tuple[Gain, ...]:
    """Every option of which something can be said, the most promising first."""
    spread = experts_spread(settings)
    communication = communication_seconds(ceiling.shape, collectives, step.b, experts_spread=spread)
    found = _without_rest(step, ceiling, communication)
    if communication is not None and not settings.get("enable_two_batch_overlap"):
        found.append(_overlapped(step, ceiling, communication))
    if collectives and communication is not None:
        found += _from_collectives(step, ceiling, collectives, communication, spread)
    if not settings.get("speculative_algorithm"):
        found += _speculation(step, ceiling)
    return tuple(sorted(found, key=lambda gain: (not gain.measured, gain.bound, -gain.tok_s)))


def _without_rest(step: Step, ceiling: Ceiling, communication: float | None) -> list[Gain]:
    """torch compile, fused and better kernels, less host work: at most all that is neither floor nor communication."""
    if communication is None:
        return []
    least = max(ceiling.floor(step.b), ceiling.memory(step.b) + ceiling.compute(step.b) + communication)
    at_most = max(step.tok_s, step.b / least)
    middle = (step.tok_s + at_most) / 2
    why = "With part of what launches, host and kernels cost beyond the floors (torch compile, overlap, other backends)"
    return [Gain("less overhead", middle, step.tok_s, at_most, why, measured=True)]


def _overlapped(step: Step, ceiling: Ceiling, communication: float) -> Gain:
    """Two batches in turn, of which one computes while the other communicates: that can hide half of it, at most."""
    at_most = step.b / max(ceiling.floor(step.b), step.ms / 1e3 - communication / 2)
    at_most = max(step.tok_s, at_most)
    why = "With up to half of communication hidden behind the arithmetic of another batch"
    return Gain("two batches overlapped", (step.tok_s + at_most) / 2, step.tok_s, at_most, why, measured=True)


def _from_collectives(
    step: Step, ceiling: Ceiling, collectives: Collectives, communication: float, spread: bool
) -> list[Gain]:
    shape, b, now = ceiling.shape, step.b, collectives.all_reduce[step.b]
    size = message_bytes(shape, b) / 1024
    moe = shape.moe_layers
    count = reductions(shape) - (moe if spread else 0)
    away = collectives.all_to_all.get(b)
    found: list[Gain] = []
    best = collectives.best_known.get(b)

    def predict(option: str, why: str, saved: Callable[[float], float], *, bound: bool = False) -> None:
        found.append(replace(_predicted(option, step, ceiling, now, why, saved), bound=bound))

    if best is not None and best < now.seconds:
        why = f"With an all-reduce of {best * 1e6:.0f} us instead of {now.seconds * 1e6:.0f} us for {size:.0f} KiB"
        predict("links as on a healthy node (peer-to-peer, switches)", why, lambda one: count * (one - best))
    others = communication - count * now.seconds  # dispatch and combine
    why = "With communication for nothing"
    predict("faster links without end", why, lambda one: count * one + others, bound=True)
    if away is not None and moe and not spread:
        why = f"With experts spread over the GPUs, {2 * moe} all-to-alls of {away.seconds * 1e6:.0f} us"
        predict("expert parallelism", why, lambda one: moe * one - 2 * moe * away.seconds)
    if spread:
        why = f"With tensor parallelism, {moe} all-reduces of {now.seconds * 1e6:.0f} us for the all-to-alls"
        predict("no expert parallelism", why, lambda one: others - moe * one)
    return found


def _predicted(
    option: str, step: Step, ceiling: Ceiling, timing: Timing, why: str, saved: Callable[[float], float]
) -> Gain:
    """`saved(seconds of one all-reduce)` -> seconds that the step gets shorter by; never below the memory floor."""
    rng = random.Random(f"{option} {step.b}")
    floor = ceiling.floor(step.b)

    def rate(ms: float, reduce: float) -> float:
        return step.b / max(floor, ms / 1e3 - saved(reduce))

    draws = sorted(
        rate(rng.gauss(step.ms, (step.half or 0.0) / 1.96), rng.triangular(timing.low, timing.high, timing.seconds))
        for _ in range(DRAWS)
    )
    expected = rate(step.ms, timing.seconds)
    low, high = min(expected, draws[DRAWS // 20]), max(expected, draws[-DRAWS // 20])
    return Gain(option, expected, low, high, why, measured=True)


def _speculation(step: Step, ceiling: Ceiling) -> list[Gain]:
    if not ceiling.shape.has_mtp_layer:
        return []
    low, high = min(MTP.values()), max(MTP.values())
    nearest = MTP[min(MTP, key=lambda b: abs(b - step.b))]
    why = f"With MTP, published at {low} to {high} times on this model"
    return [Gain("MTP", step.tok_s * nearest, step.tok_s * low, step.tok_s * high, why, measured=False)]


def what_is_left(step: Step, ceiling: Ceiling, options: Sequence[Gain], word: str) -> str:
    """STOP TUNING only where the ceiling is within the noise, or the best that every known option could give is."""
    room = ceiling.tok_s(step.b) / step.tok_s - 1.0
    if room <= step.noise:
        return f"STOP TUNING: {step.tok_s:.0f} of {ceiling.tok_s(step.b):.0f} tok/s, the memory ceiling of these cards."
    open_to_us = [one for one in options if not one.bound]
    if word in ("unexplained", "no verdict") or not any(one.measured for one in open_to_us):
        return ""
    least = step.tok_s * (1.0 + step.noise)
    if useful := [one for one in open_to_us if one.low > least]:
        names = ", ".join(f"{one.option} ({one.tok_s / step.tok_s - 1:+.0%})" for one in useful)
        return f"Worth trying, most promising first: {names}."
    if possible := [one for one in open_to_us if one.high > least]:
        names = ", ".join(f"{one.option} (at most {one.high / step.tok_s - 1:+.0%})" for one in possible)
        return f"Nothing is sure to help; still possible: {names}."
    names = ", ".join(f"{one.option} at most {one.high / step.tok_s - 1:+.0%}" for one in open_to_us)
    return f"STOP TUNING: no known option can give more than {step.noise:.0%}, which is noise here. Looked at: {names}."
