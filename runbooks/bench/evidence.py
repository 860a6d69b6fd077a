"""Cross-evidence: what watts, clocks and the links' own counters say for or against what the steps say.

"GPU busy 100 %" says nothing: a kernel that waits for a peer is busy, too. Watts tell: on eight RTX PRO 6000 a healthy
decode draws about 300 W a card, a spinning all-reduce 85 to 140 (github.com/local-inference-lab/rtx6kpro, issues 21
and 25).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runbooks.bench.ceiling import Ceiling, expert_parallel_bytes, tensor_parallel_bytes
from runbooks.bench.words import streams

THROTTLED = 0.2  # of the samples of a window
SLOWED = 0.85  # of the highest clock seen in the run
WAITING = 0.5  # of the watts of a healthy decode, while the driver says busy
BUSY = 0.9
LINK_FACTOR = 2.0  # between what the links carried and what the model sends; beyond it the model of it is wrong


@dataclass(frozen=True)
class Evidence:
    """`suspects` go before all others; `against` are contradictions; `seen` is for readers."""

    seen: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()
    against: tuple[str, ...] = ()


def weigh(points: Sequence[Mapping[str, Any]], ceiling: Ceiling, word: str, *, experts_spread: bool) -> Evidence:
    """Of the VALID points with samples; nothing where nothing was sampled."""
    sampled = [point for point in points if point.get("hardware")]
    if not sampled:
        return Evidence()
    top = max(sampled, key=lambda point: int(point["concurrency"]))
    suspects = [*_clocks(top, sampled)]
    against: list[str] = []
    if waiting := _waiting(top, ceiling):
        (against if word in ("memory", "compute") else suspects).append(waiting)
    if link := _link(top, ceiling, experts_spread):
        against.append(link)
    return Evidence(tuple(_seen(top)), tuple(suspects), tuple(against))


def _seen(top: Mapping[str, Any]) -> Iterator[str]:
    told = top["hardware"]
    parts = []
    if told["watts"] is not None:
        parts.append(f"{told['watts'] / told['cards']:.0f} W a card")
    if told["sm_mhz"] is not None:
        parts.append(f"SM at {told['sm_mhz']:.0f} MHz")
    if told["memory_mhz"] is not None:
        parts.append(f"memory at {told['memory_mhz']:.0f} MHz")
    if told["busy"] is not None:
        parts.append(f"busy {told['busy']:.0%}")
    if told["link_mb_s"] is not None:
        parts.append(f"{told['link_mb_s'] / 1e3:.1f} GB/s over PCIe, both ways, all cards")
    if parts:
        yield f"The cards at {streams(top['concurrency'])}: {', '.join(parts)}."


def _clocks(top: Mapping[str, Any], sampled: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    told = top["hardware"]
    for reason, share in sorted(told["throttled"].items(), key=lambda one: -one[1]):
        if share >= THROTTLED:
            yield f"clocks: {reason} in {share:.0%} of the samples, SM at {told['sm_mhz']:.0f} MHz on average"
    for name, what in (("sm_mhz", "SM"), ("memory_mhz", "memory")):
        best = max((point["hardware"][name] or 0.0 for point in sampled), default=0.0)
        lowest = told["sm_mhz_low"] if name == "sm_mhz" else told[name]
        if lowest is not None and lowest < SLOWED * best:
            yield f"clocks: {what} at {lowest:.0f} MHz on the slowest card, {best:.0f} MHz at its best in this run"


def _waiting(top: Mapping[str, Any], ceiling: Ceiling) -> str | None:
    told, healthy = top["hardware"], ceiling.gpu.decode_watts
    if healthy is None or told["watts"] is None or told["busy"] is None:
        return None
    watts = told["watts"] / told["cards"]
    if told["busy"] < BUSY or watts >= WAITING * healthy:
        return None
    return (
        f"waiting: {told['busy']:.0%} busy at {watts:.0f} W a card, a healthy decode draws about {healthy:.0f} W: "
        "kernels spin, as an all-reduce does that waits for a peer"
    )


def _link(top: Mapping[str, Any], ceiling: Ceiling, experts_spread: bool) -> str | None:
    """The bytes that the model sends for the tokens of the window, prompts included, against the PCIe counters."""
    carried, ranks = top["hardware"]["link_mb_s"], ceiling.ranks
    if carried is None or not ceiling.gpu.pcie or ranks < 2 or not top["tok_s"]:
        return None
    of = expert_parallel_bytes if experts_spread else tensor_parallel_bytes
    tokens = top["tok_s"] * (1.0 + top["input_len"] / top["output_len"])
    needed = of(ceiling.shape, ranks, 1) * tokens * ranks * 2 / 1e6  # what one sends, another receives
    if needed / LINK_FACTOR <= carried <= needed * LINK_FACTOR:
        return None
    return (
        f"the links carried {carried / 1e3:.1f} GB/s at {streams(top['concurrency'])} and the model sends "
        f"{needed / 1e3:.1f}: what is sent, or what the counters see, is not what is assumed"
    )
