"""What bounds the throughput: computed from measured steps, the model's bytes and, where measured, the collectives.

The words: `memory`, `communication`, `compute`, `mixed`, `unexplained`, `no verdict`. Communication is never claimed
without a measurement of it: a sweep alone cannot tell slow collectives from slow launches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runbooks.bench.ceiling import Ceiling, coverage, message_bytes, reductions
from runbooks.bench.evidence import weigh
from runbooks.bench.fit import Fit, decompose, rms_with
from runbooks.bench.gains import Gain, Step, communication_seconds, experts_spread, gains, what_is_left
from runbooks.bench.measured import Collectives, Unusable, fitted_text
from runbooks.bench.suspects import POOR_FIT, Break, break_of, interference, suspects
from runbooks.bench.validity import Limits
from runbooks.bench.words import streams

DOMINANT = 0.5  # a part that takes this share of the step bounds it
MINDS, LEAST = 3.0, 0.02  # times the error of the best fit, and at least, that a fit with the floor must miss by
TOO_MUCH = 0.02  # beyond all noise, that the known parts may add up to more than the step
UNEXPLAINED = 0.35  # a rest of this share may not be called anything else


@dataclass(frozen=True)
class Shares:
    """Of one decode step, in parts of 1. `communication` is None where it was not measured, and then lies in `rest`."""

    b: int
    step_ms: float
    memory: float
    compute: float
    communication: float | None
    rest: float
    noise: float = 0.0  # that the known parts may be too high by: the spread of the collectives, the step's interval


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
    gains: tuple[Gain, ...] = ()
    advice: str = ""  # STOP TUNING, or what promises most
    collectives: str = ""  # what was measured of them, or why it could not be used
    evidence: tuple[str, ...] = ()  # what the cards did meanwhile
    interference: str = ""  # of prefill with decode


def shares_of(
    b: int,
    step_ms: float,
    ceiling: Ceiling,
    collectives: Collectives | None,
    *,
    experts: bool = False,
    half_ms: float = 0.0,
) -> Shares:
    """`experts`: spread over the GPUs; `half_ms`: of the step's interval."""
    step = step_ms / 1e3
    communication, least = (
        communication_seconds(ceiling.shape, collectives, b, experts_spread=experts, least=quickest)
        for quickest in (False, True)
    )
    noise = half_ms / step_ms
    if communication is not None and least is not None:
        communication, noise = communication / step, noise + (communication - least) / step
    memory, compute = ceiling.memory(b) / step, ceiling.compute(b) / step
    rest = 1.0 - memory - compute - (communication or 0.0)
    return Shares(b, step_ms, memory, compute, communication, rest, noise)


def judge(
    points: Sequence[Mapping[str, Any]],
    *,
    ceiling: Ceiling | None,
    limits: Limits,
    settings: Mapping[str, Any],
    reference: Mapping[int, float],
    collectives: Collectives | Unusable | None = None,
) -> Verdict:
    """The verdict over the VALID points; its word is that of the highest concurrency."""
    well = {p["concurrency"]: p for p in points if p["valid"] and p["step_ms"]}
    steps = {b: point["step_ms"] for b, point in well.items()}
    against = _against(points, reference)
    unusable = collectives.reason if isinstance(collectives, Unusable) else ""
    if not steps:
        line = "No valid point with a decode step: nothing can be said."
        return Verdict("no verdict", line, against_reference=against, collectives=unusable)
    top = max(steps)
    rate = top / steps[top] * 1e3
    if ceiling is None:
        line = f"At {streams(top)}: {rate:,.0f} tok/s. Its GPU is not in the table of known cards: no floor is known."
        return Verdict("no verdict", line, against_reference=against, collectives=unusable)
    return _judged(well, steps, ceiling, limits, settings, collectives, against)


def _judged(
    well: Mapping[int, Mapping[str, Any]],
    steps: Mapping[int, float],
    ceiling: Ceiling,
    limits: Limits,
    settings: Mapping[str, Any],
    collectives: Collectives | Unusable | None,
    against: str,
) -> Verdict:
    top = max(steps)
    used = collectives if isinstance(collectives, Collectives) else None
    spread = experts_spread(settings)
    shares = tuple(
        shares_of(b, steps[b], ceiling, used, experts=spread, half_ms=well[b].get("step_ci") or 0.0)
        for b in sorted(steps)
    )
    word = _word(shares[-1])

    def covered(b: float) -> float:
        return coverage(ceiling.shape, b)

    fit = decompose(steps, covered)
    broken = break_of(steps, covered, fit)
    evidence = weigh(list(well.values()), ceiling, word, experts_spread=spread)
    step = Step(top, steps[top], well[top].get("step_ci"))
    options = gains(step, ceiling, used, settings)
    known = shares[-1].communication is not None
    unsure = word in ("unexplained", "mixed") or shares[-1].rest >= UNEXPLAINED
    return Verdict(
        word,
        _line(word, shares[-1], top / steps[top] * 1e3),
        shares,
        fit,
        suspects(well[top], evidence, broken, limits, settings, collectives_known=known) if unsure else (),
        _counterfactual(step, ceiling, options),
        (*_contradictions(shares, fit, broken, ceiling, used, spread), *evidence.against),
        against,
        options,
        what_is_left(step, ceiling, options, word),
        collectives.reason if isinstance(collectives, Unusable) else _collectives_text(ceiling, used),
        evidence.seen,
        interference(well[top]),
    )


def _collectives_text(ceiling: Ceiling, used: Collectives | None) -> str:
    if used is None or used.line is None:
        return ""
    how = "in CUDA graphs" if used.graphs else "without CUDA graphs"
    return f"Measured {how}: {fitted_text([message_bytes(ceiling.shape, b) for b in used.all_reduce], used.line)}."


def _word(top: Shares) -> str:
    if top.communication is not None and top.communication >= DOMINANT:
        return "communication"
    if top.memory >= DOMINANT:
        return "memory"
    if top.compute >= DOMINANT:
        return "compute"
    return "unexplained" if top.rest >= UNEXPLAINED else "mixed"


def _line(word: str, top: Shares, rate: float) -> str:
    head = f"At {streams(top.b)}: {rate:,.0f} tok/s while all decode, {top.step_ms:.1f} ms a step."
    known = f"Reading weights and KV needs at least {top.memory:.0%} of it, arithmetic {top.compute:.1%}"
    if top.communication is None:
        known += "; the collectives were not measured"
    else:
        known += f", communication {top.communication:.0%} (measured)"
    if word not in ("unexplained", "mixed") and top.rest >= UNEXPLAINED:
        known += f"; {top.rest:.0%} is none of these"
    ends = {
        "memory": "most of the step is memory bandwidth",
        "communication": "most of the step is communication",
        "compute": "most of the step is arithmetic",
        "mixed": "no single part bounds it",
        "unexplained": f"{top.rest:.0%} is unexplained",
    }
    return f"{head} {known}: {ends[word]}."


def _counterfactual(step: Step, ceiling: Ceiling, options: Sequence[Gain]) -> str:
    limit = f"If all but the memory floor vanished: {ceiling.tok_s(step.b):,.0f} tok/s at {streams(step.b)}"
    known = [one for one in options if one.measured and not one.bound and one.tok_s > step.tok_s]
    return " ".join([*(one.sentence(step.b) for one in known[:1]), f"{limit}; no setting can give more."])


def _contradictions(
    shares: Sequence[Shares],
    fit: Fit | None,
    broken: Break | None,
    ceiling: Ceiling,
    used: Collectives | None,
    spread: bool,
) -> list[str]:
    found = [
        f"at {streams(s.b)}: the known parts need {1 - s.rest:.0%} of the measured step; one figure is wrong"
        for s in shares
        if s.rest + s.noise < -TOO_MUCH
    ]
    if used and used.word != "healthy":
        found.append(
            f"the collectives: {used.word} ({'; '.join(used.why[:2])}); their times prove nothing until mended"
        )
    if fit is None:
        return found
    floor = ceiling.shape.routed_expert_bytes / ceiling.ranks / ceiling.gpu.bandwidth * 1e3
    if fit.rms > POOR_FIT:
        where = f"between {broken.below} and {broken.above} streams" if broken else "between its points"
        found.append(f"no smooth line fits the sweep (rms {fit.rms:.1%}): something changes {where}")
    elif fit.c1 < 0.9 * floor and fit.points >= 6 and _minds(shares, ceiling, fit, floor):
        found.append(
            f"the fit reads all experts in {fit.c1:.1f} ms, memory needs {floor:.1f}: is this the model it says?"
        )
    elif used and used.line and not spread:
        wire = reductions(ceiling.shape) * message_bytes(ceiling.shape, 1) * used.line.beta * 1e3
        top = shares[-1]
        if wire > 2.0 * fit.c2 and wire * top.b > 0.2 * top.step_ms:
            found.append(
                f"each token adds {fit.c2:.2f} ms in the sweep, the measured all-reduces alone {wire:.2f}: "
                "they were not measured as the server runs them"
            )
    return found


def _minds(shares: Sequence[Shares], ceiling: Ceiling, fit: Fit, floor: float) -> bool:
    """Whether the sweep speaks against reading the experts in `floor` ms, or is only too noisy to tell."""
    steps = {share.b: share.step_ms for share in shares}
    return rms_with(steps, lambda b: coverage(ceiling.shape, b), floor) > max(MINDS * fit.rms, LEAST)


def _against(points: Sequence[Mapping[str, Any]], reference: Mapping[int, float]) -> str:
    known = [
        (p["concurrency"], p["decode_tok_s"] / reference[p["concurrency"]])
        for p in points
        if p["valid"] and p["decode_tok_s"] and p["concurrency"] in reference
    ]
    if not known:
        return ""
    parts = ", ".join(
        f"{ratio:.0%} at {streams(b)}" for b, ratio in (known if len(known) < 3 else (known[0], known[-1]))
    )
    return f"Decode against the reference sweep: {parts}."
