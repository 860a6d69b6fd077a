"""Where to look when a step is not explained: in the order of what the run itself gives away, then of experience."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runbooks.bench.evidence import Evidence
from runbooks.bench.fit import Fit, decompose
from runbooks.bench.validity import Limits
from runbooks.bench.words import streams

POOR_FIT = 0.05  # relative rms above which something changes within the sweep
BREAK = 1.35  # times what the points before it foretell
STALLED = 0.15  # of the time, in which no stream decodes
PAUSE = 1.5  # steps; a longer wait for a token is no decode


@dataclass(frozen=True)
class Break:
    """Something changes between two points of a sweep: `factor` times the step that the points before foretell."""

    below: int
    above: int
    factor: float


def break_of(steps: Mapping[int, float], coverage: Callable[[float], float], whole: Fit | None) -> Break | None:
    """The sharpest break of a sweep that no smooth line fits; None where one does, or too few points are there."""
    if whole is None or whole.rms <= POOR_FIT:
        return None
    found = []
    order = sorted(steps)
    for count in range(4, len(order)):
        before = decompose({b: steps[b] for b in order[:count]}, coverage)
        if before is None or before.rms > POOR_FIT:
            continue
        b = order[count]
        factor = steps[b] / before.step_ms(coverage(b), b)
        if factor >= BREAK:
            found.append(Break(order[count - 1], b, factor))
    return max(found, key=lambda one: one.factor, default=None)


def stalled(point: Mapping[str, Any]) -> float | None:
    """The share of time that decode stands still beside prefill; None where the pauses do not say so."""
    itl, rate, decode, step = (point.get(name) for name in ("itl_ms", "tok_s", "decode_tok_s", "step_ms"))
    if not itl or not rate or not decode or not step:
        return None
    share = 1.0 - rate / decode
    return float(share) if share >= STALLED and itl["p99"] >= PAUSE * step else 0.0


def interference(point: Mapping[str, Any]) -> str:
    """One sentence on prefill that stops decode; empty where it does not."""
    share = stalled(point)
    if not share:
        return ""
    itl = point["itl_ms"]
    return (
        f"Prefill stops decode for {share:.0%} of the time at {streams(point['concurrency'])} (ITL p99 "
        f"{itl['p99']:.0f} ms, a step {point['step_ms']:.0f} ms): {point['tok_s']:,.0f} tok/s end to end, "
        f"{point['decode_tok_s']:,.0f} while all decode. Smaller chunks, or prefill apart, win back at most that."
    )


def suspects(
    top: Mapping[str, Any],
    evidence: Evidence,
    broken: Break | None,
    limits: Limits,
    settings: Mapping[str, Any],
    *,
    collectives_known: bool,
) -> tuple[str, ...]:
    return (
        *evidence.suspects,
        *_broken(broken, limits),
        *_collectives(collectives_known),
        *_graphs(int(top["concurrency"]), limits),
        *_backends(settings),
        *_host(top, evidence),
    )


def _broken(broken: Break | None, limits: Limits) -> Iterator[str]:
    if broken:
        told = f"they end at {limits.graph_max}" if limits.graph_max else "the server does not say where they end"
        yield (
            f"between {broken.below} and {broken.above} streams the step grows {broken.factor:.1f} times more than "
            f"before: CUDA graphs that end there are the usual cause ({told}); then another kernel, then the queue"
        )


def _collectives(known: bool) -> Iterator[str]:
    if not known:
        yield "collectives: not measured, so neither blamed nor cleared; `invoke bench.collectives` measures them"


def _graphs(b: int, limits: Limits) -> Iterator[str]:
    if limits.graphs_off:
        yield "CUDA graphs are off (disable_cuda_graph): every launch is paid each step"
    elif limits.graph_max is None:
        yield "CUDA graphs: the server does not say up to how many streams; look for `cuda graph: False` in its log"
    elif b > limits.graph_max:
        yield f"CUDA graphs end at {limits.graph_max} streams, and {b} were run"


def _backends(settings: Mapping[str, Any]) -> Iterator[str]:
    for name, what in (("attention_backend", "attention backend"), ("moe_runner_backend", "MoE backend")):
        value = settings.get(name)
        seen = "compare with the profile, and with what the log says at start"
        yield f"{what}: {value}; {seen}" if value else f"{what}: not told"


def _host(top: Mapping[str, Any], evidence: Evidence) -> Iterator[str]:
    yield "host CPU: one Python process feeds the GPUs; look for a core at 100 %, and at the clock governor"
    if not evidence.seen:
        yield "clocks and power: not sampled; `nvidia-smi -q -d CLOCK,POWER` under load"
    if stalled(top) is None:
        yield "queueing and prefill: TTFT against ITL shows prompts that stop the decoding of others"


def settled(evidence: Evidence, broken: Break | None) -> Sequence[str]:
    """What the run cleared: sampled and well. For the report."""
    found = []
    if evidence.seen and not evidence.suspects:
        found.append("clocks and power: sampled, nothing held them down")
    if broken is None:
        found.append("no break within the sweep")
    return found
