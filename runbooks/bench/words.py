"""Words that several texts of the bench share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NOISY = 0.05
"""Half the 95 % interval of a rate, in parts of it: what is known less well is marked. By so much two passes over one
sweep may differ before they are INVALID, and a difference that people act on is no smaller."""


def load(point: Mapping[str, Any]) -> str:
    """What a point was asked: `64 streams`, or `4 requests/s` in an open loop."""
    return f"{point['open']['offered']:g} requests/s" if point.get("open") else streams(point["concurrency"])


def judged(point: Mapping[str, Any]) -> str:
    """The load, and the word where its numbers are not to be believed: above a chart of one point."""
    return load(point) if point["valid"] else f"{load(point)}: INVALID"


def top_of(points: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The point of the most streams that has a rate, valid or not: what is shown over time."""
    return max((point for point in points if point["tok_s"]), key=lambda point: int(point["concurrency"]), default=None)


def half_of(point: Mapping[str, Any]) -> float | None:
    """Half the 95 % interval of tok/s, in parts of it. None: too few tokens, or a pause, to say."""
    rate, half = point["tok_s"], point["tok_s_ci"]
    return None if half is None or not rate else half / rate


def plus_minus(part: float) -> str:
    """`±0.8%`, `±30%`."""
    return f"±{part:.0%}" if part >= 0.095 else f"±{part:.1%}"


def noisy(point: Mapping[str, Any]) -> str:
    """`±30%` where the rate of a VALID point is known no better than that, and `± unknown`; else nothing."""
    half = half_of(point)
    if not point["valid"] or (half is not None and half <= NOISY):
        return ""
    return "± unknown" if half is None else plus_minus(half)


def doubts(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """One sentence for each VALID point that is noisy."""
    told = [(load(point), noisy(point)) for point in points]
    return [
        f"{what}: nobody can say how well it is known, its window is too short or has a pause"
        if half == "± unknown"
        else f"{what} is known to {half} only"
        for what, half in told
        if half
    ]


def streams(count: int) -> str:
    """`1 stream`, `64 streams`."""
    return f"{count} stream" if count == 1 else f"{count} streams"


def attempts(point: Mapping[str, Any]) -> list[str]:
    """What was measured before and does not count, because the client was late: one sentence each."""
    return [
        f"{load(point)}, measured again: in {one['log']}, which is kept, the client was late by "
        f"{one['late_p99_ms']:.1f} ms (p99)"
        for one in point.get("attempts") or ()
    ]
