"""The numbers of a point, each defined once. Everything is computed from the raw log, so it can be computed again.

TTFT    start -> the first read that brought a token. A chunk with a role and no text is not a token.
ITL     time between two reads that brought tokens to one stream: the pause that a reader sees.
TPOT    (last token - first read that brought tokens) / (tokens after that read), of one request.
E2E     start -> last token. The start is the moment of sending; in an open loop, the moment that was intended.
        TTFT: requests started in the window. ITL: pauses that end in it. TPOT, E2E: whole requests that end in it.
tok/s   output tokens that came within the window, by its length: prefill pauses included ("end to end").
        Tokens between two reads are spread evenly over the time between them, so a border may cut a step in two.
step    time a token in one stream, between reads that both fall in one stretch in which all N slots were decoding: pure
        decode at N, without prefill, ramp or drain. Reads of one stream against each other: the order in which a step's
        tokens reach the sockets cannot skew it.
decode  N / step: sustained decode. Per user: 1 / step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from .records import Request

BATCHES = 10  # of each window

Span = tuple[int, int]


def percentile(values: Sequence[float], q: float) -> float:
    """Linear between the two nearest ranks. `values` sorted, not empty; q in 0..100."""
    at = (len(values) - 1) * q / 100
    low = math.floor(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def spread(values: Iterable[float]) -> dict[str, float] | None:
    """n, mean and percentiles; None where there is nothing to say."""
    known = sorted(values)
    if not known:
        return None
    result = {"n": float(len(known)), "mean": sum(known) / len(known), "max": known[-1]}
    return result | {f"p{q}": percentile(known, q) for q in (50, 90, 95, 99)}


def tokens_between(request: Request, begin: int, end: int) -> float:
    """Output tokens in [begin, end). Those of the first read came at that moment, later ones evenly between reads."""
    return _known(request.arrivals, end) - _known(request.arrivals, begin)


def _known(arrivals: Sequence[tuple[int, int]], at: int) -> float:
    low, high = 0, len(arrivals)
    while low < high:  # the first arrival after `at`
        middle = (low + high) // 2
        low, high = (low, middle) if arrivals[middle][0] > at else (middle + 1, high)
    if low == 0:
        return 0.0
    before, known = arrivals[low - 1]
    if low == len(arrivals):
        return float(known)
    after, then = arrivals[low]
    return known + (then - known) * (at - before) / (after - before)


def full_spans(requests: Sequence[Request], slots: int, window: Span) -> list[Span]:
    """The parts of the window in which all slots were decoding: between first and last token of a request each."""
    changes: list[tuple[int, int]] = []
    for request in requests:
        if request.first is not None and request.last is not None and request.last > request.first:
            changes += [(request.first, 1), (request.last, -1)]
    spans: list[Span] = []
    decoding = 0
    since: int | None = None
    for at, change in sorted(changes):
        decoding += change
        if decoding >= slots and since is None:
            since = at
        elif decoding < slots and since is not None:
            begin, end = max(since, window[0]), min(at, window[1])
            if end > begin:
                spans.append((begin, end))
            since = None
    return spans


def batch_rates(requests: Sequence[Request], window: Span) -> list[float]:
    """tok/s of each of ten equal parts of the window; empty when there is too little to say anything of a part."""
    width = (window[1] - window[0]) / BATCHES
    if width <= 0:
        return []
    edges = [window[0] + round(width * i) for i in range(BATCHES + 1)]
    counts = [
        sum(tokens_between(r, low, high) for r in requests if touches(r, low, high)) for low, high in pairwise(edges)
    ]
    return [count / width * 1e9 for count in counts]


def step_batches(requests: Sequence[Request], spans: Sequence[Span]) -> list[tuple[int, int]]:
    """(ns, tokens) of one stream while all slots decode: ten sums, in the order of time; fewer where steps are few."""
    steps: list[tuple[int, int, int]] = []  # (moment, ns, tokens)
    for request in requests:
        at = 0
        for (before, known), (after, then) in pairwise(request.arrivals):
            while at < len(spans) and spans[at][1] < after:
                at += 1
            if at == len(spans):
                break
            if spans[at][0] <= before:
                steps.append((after, after - before, then - known))
    steps.sort()
    parts = BATCHES if len(steps) >= 2 * BATCHES else min(1, len(steps))
    size = len(steps) / max(1, parts)
    batches = [steps[round(i * size) : round((i + 1) * size)] for i in range(parts)]
    return [(sum(t for _, t, _ in batch), sum(n for _, _, n in batch)) for batch in batches]


def half_width(batches: Sequence[float]) -> float:
    """Of the 95 % interval of the mean of batch means; at least two of them."""
    count = len(batches)
    mean = sum(batches) / count
    deviation = math.sqrt(sum((one - mean) ** 2 for one in batches) / (count - 1))
    return student(count - 1) * deviation / math.sqrt(count)


def student(freedom: int) -> float:
    """Student's t, 97.5 %, by the Cornish-Fisher expansion: within 0.2 % from nine degrees of freedom on."""
    z = 1.959964
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def touches(request: Request, begin: int, end: int) -> bool:
    return bool(request.arrivals) and request.arrivals[0][0] <= end and request.arrivals[-1][0] >= begin
