"""Whether the client was too late for its stamps to be believed, and whether to measure a point again for it.

A machine that is busy for a while says nothing about the server: such a point is measured anew, and what came of the
first attempts is kept beside it. A client that has reached its own limit would reach it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

AGAIN = 2  # times that a point is measured anew, at most
LATE_SHARE = 0.10  # lateness p99 against ITL p50
IN_TIME = 2**20 * 1e-6  # ms that nobody is late by, whatever the ITL: the edge of a bin, as the p99 is one
SENT_LATE = 0.10  # lateness p99 of an open loop's sends against TTFT p50
CPU_SHARE = 0.5  # of one core, of the busiest client process
FAILED_SHARE = 0.01


def late(point: Mapping[str, Any]) -> list[str]:
    """In words; empty: it was in time."""
    found: list[str] = []
    itl, p99 = point["itl_ms"], point["client"]["late_p99_ms"]
    if itl and p99 > max(IN_TIME, LATE_SHARE * itl["p50"]):
        found.append(f"the client was late: reads waited up to {p99:.1f} ms (p99), ITL is {itl['p50']:.1f} ms")
    sent, ttft = (point.get("open") or {}).get("late_ms"), point["ttft_ms"]
    if sent and ttft and sent["p99"] > max(2.0, SENT_LATE * ttft["p50"]):
        found.append(f"the client sent late: {sent['p99']:.1f} ms after the intended time (p99)")
    return found


def why_again(point: Mapping[str, Any]) -> str:
    """Why this attempt is worth another: late, and well in all else that can be told here. Empty: it is not."""
    requests = point["requests"]
    spoiled = point["interrupted"] or requests["failed"] > FAILED_SHARE * requests["sent"]
    at_its_limit = point["client"]["cpu_share"] > CPU_SHARE
    return "" if spoiled or at_its_limit or not point["tok_s"] else "; ".join(late(point))
