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
from runbooks.bench.validity import Limits
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
        return f"{self.why}: {self.tok_s:.0f} tok/s at {b} ({self.low:.0f} to {self.high:.0f})."


def communication_seconds(shape: ModelShape, collectives: Collectives | None, b: int) -> float | None:
    """Of one step under tensor parallelism: an all-reduce behind attention and one behind the MLP, each layer."""
    if collectives is None or b not in collectives.all_reduce:
        return None
    return reductions(shape) * collectives.all_reduce[b].seconds


def gains(
    step: Step, ceiling: Ceiling, collectives: Collectives | None, limits: Limits, settings: Mapping[str, Any]
) -> tuple[Gain, ...]:
    """Every option of which something can be said, the most promising first."""
    found: list[Gain] = []
    if collectives and step.b in collectives.all_reduce:
        found += _from_collectives(step, ceiling, collectives)
    if not settings.get("speculative_algorithm"):
        found += _speculation(step, ceiling)
    return tuple(sorted(found, key=lambda gain: (not gain.measured, gain.bound, -gain.tok_s)))


def _from_collectives(step: Step, ceiling: Ceiling, collectives: Collectives) -> list[Gain]:
    shape, b, now = ceiling.shape, step.b, collectives.all_reduce[step.b]
    size = message_bytes(shape, b) / 1024
    count = reductions(shape)
    found: list[Gain] = []
    best = collectives.best_known.get(b)

    def predict(option: str, why: str, saved: Callable[[float], float], *, bound: bool = False) -> None:
        found.append(replace(_predicted(option, step, ceiling, now, why, saved), bound=bound))

    if best is not None and best < now.seconds:
        why = f"With an all-reduce of {best * 1e6:.0f} us instead of {now.seconds * 1e6:.0f} us for {size:.0f} KiB"
        predict("links as on a healthy node (peer-to-peer, switches)", why, lambda one: count * (one - best))
    predict("faster links without end", "With communication for nothing", lambda one: count * one, bound=True)
    away = collectives.all_to_all.get(b)
    if away is not None and shape.moe_layers:
        pairs = 2 * shape.moe_layers
        why = f"With experts spread over the GPUs, {pairs} all-to-alls of {away.seconds * 1e6:.0f} us"
        predict("expert parallelism", why, lambda one: shape.moe_layers * one - pairs * away.seconds)
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
    """STOP TUNING only where the ceiling is within the noise, or every known option is and nothing is unexplained."""
    room = ceiling.tok_s(step.b) / step.tok_s - 1.0
    if room <= step.noise:
        return f"STOP TUNING: {step.tok_s:.0f} of {ceiling.tok_s(step.b):.0f} tok/s, the memory ceiling of these cards."
    if word in ("unexplained", "no verdict") or not any(one.measured for one in options):
        return ""
    useful = [
        one for one in options if one.low > step.tok_s * (1.0 + step.noise) and not one.option.startswith("faster")
    ]
    if useful:
        names = ", ".join(f"{one.option} ({one.tok_s / step.tok_s - 1:+.0%})" for one in useful)
        return f"Worth trying, most promising first: {names}."
    names = ", ".join(f"{one.option} {one.tok_s / step.tok_s - 1:+.0%}" for one in options)
    return f"STOP TUNING: no known option promises more than {step.noise:.0%}. Looked at: {names}."
