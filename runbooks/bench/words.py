"""Words that several texts of the bench share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def load(point: Mapping[str, Any]) -> str:
    """What a point was asked: `64 streams`, or `4 requests/s` in an open loop."""
    return f"{point['open']['offered']:g} requests/s" if point.get("open") else streams(point["concurrency"])


def judged(point: Mapping[str, Any]) -> str:
    """The load, and the word where its numbers are not to be believed: above a chart of one point."""
    return load(point) if point["valid"] else f"{load(point)}: INVALID"


def top_of(points: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The point of the most streams that has a rate, valid or not: what is shown over time."""
    return max((point for point in points if point["tok_s"]), key=lambda point: int(point["concurrency"]), default=None)


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
