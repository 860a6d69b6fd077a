"""The numbers of one point, each defined once. Everything is computed from the raw log, so it can be computed again.

TTFT    request sent -> the first read that brought a token. A chunk with a role and no text is not a token.
ITL     time between two reads that brought tokens to one stream: the pause that a reader sees.
TPOT    (last token - first token) / (tokens - 1), of one request.
E2E     request sent -> last token.
        TTFT: requests sent in the window. ITL: pauses that end in it. TPOT, E2E: full-length requests that end in it.
tok/s   output tokens that came within the window, by its length: prefill pauses included ("end to end").
        Tokens between two reads are spread evenly over the time between them, so a border may cut a step in two.
step    time a token in one stream, between reads that both fall in one stretch in which all N slots were decoding: pure
        decode at N, without prefill, ramp or drain. Reads of one stream against each other: the order in which a step's
        tokens reach the sockets cannot skew it.
decode  N / step: sustained decode. Per user: 1 / step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from .rawlog import Block
from .records import Request, request_of

BATCHES = 10
T95 = 2.262  # Student's t, 97.5 %, 9 degrees of freedom: ten batches

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


def rate_over(requests: Sequence[Request], window: Span) -> tuple[float, float | None]:
    """tok/s over the window, and the half width of its 95 % interval from ten batches (None: too little to say)."""
    width = (window[1] - window[0]) / BATCHES
    if width <= 0:
        return 0.0, None
    edges = [window[0] + round(width * i) for i in range(BATCHES + 1)]
    counts = [
        sum(tokens_between(r, low, high) for r in requests if _touches(r, low, high)) for low, high in pairwise(edges)
    ]
    rates = [count / width * 1e9 for count in counts]
    return sum(rates) / BATCHES, half_width(rates) if min(counts) >= 1 else None


def step_time(requests: Sequence[Request], spans: Sequence[Span]) -> tuple[float | None, float | None]:
    """ns a token of one stream while all slots decode, and the half width of its 95 % interval."""
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
    if not steps:
        return None, None
    steps.sort()
    size = len(steps) / BATCHES
    batches = [steps[round(i * size) : round((i + 1) * size)] for i in range(BATCHES)]
    mean = sum(time for _, time, _ in steps) / sum(tokens for _, _, tokens in steps)
    if min(len(batch) for batch in batches) < 2:
        return mean, None
    return mean, half_width([sum(t for _, t, _ in batch) / sum(n for _, _, n in batch) for batch in batches])


def half_width(batches: Sequence[float]) -> float:
    """Of the 95 % interval of the mean of BATCHES batch means."""
    mean = sum(batches) / BATCHES
    deviation = math.sqrt(sum((one - mean) ** 2 for one in batches) / (BATCHES - 1))
    return T95 * deviation / math.sqrt(BATCHES)


def _touches(request: Request, begin: int, end: int) -> bool:
    return bool(request.arrivals) and request.arrivals[0][0] <= end and request.arrivals[-1][0] >= begin


def point_of(blocks: Iterable[Block]) -> dict[str, Any]:
    """All numbers of one point, from the blocks of its raw log."""
    point: dict[str, Any] = {}
    workers: list[dict[str, Any]] = []
    requests: list[Request] = []
    for meta, reads in blocks:
        if meta["kind"] == "point":
            point = meta
        elif meta["kind"] == "worker":
            workers.append(meta)
        else:
            requests.append(request_of(meta, reads))
    requests.sort(key=lambda request: (request.start, request.slot))
    slots: int = point["concurrency"]
    window: Span = (point["window"][0], point["window"][1])
    spans = full_spans(requests, slots, window)
    step, step_ci = step_time(requests, spans)
    rate, rate_ci = rate_over(requests, window)
    return {
        "concurrency": slots,
        "input_len": point["input_len"],
        "output_len": point["output_len"],
        "interrupted": point["interrupted"],
        "window_s": (window[1] - window[0]) * 1e-9,
        "full_share": sum(end - begin for begin, end in spans) / max(1, window[1] - window[0]),
        "tok_s": rate,
        "tok_s_ci": rate_ci,
        "step_ms": step * 1e-6 if step else None,
        "step_ci": step_ci * 1e-6 if step_ci is not None else None,
        "decode_tok_s": slots / step * 1e9 if step else None,
        "user_tok_s": 1e9 / step if step else None,
        "in_flight": _in_flight(requests, window),
        "requests": _counted(requests),
        "tokens": _tokens(requests),
        **_latencies(requests, window),
        "client": _client(workers, point),
        "server": _agreement(requests, point),
        "timeline": _timeline(requests, point),
    }


def _latencies(requests: Sequence[Request], window: Span) -> dict[str, Any]:
    ms = 1e-6
    well = [request for request in requests if request.failure is None]
    sent = [r for r in well if window[0] <= r.start < window[1] and r.first is not None]
    whole = [r for r in well if not r.is_first and not r.is_cut and r.last and window[0] <= r.last < window[1]]
    pauses = [
        (after - before) * ms
        for request in well
        for (before, _), (after, _) in pairwise(request.arrivals)
        if window[0] <= after < window[1]
    ]
    return {
        "ttft_ms": spread((r.first - r.start) * ms for r in sent if r.first is not None),
        "itl_ms": spread(pauses),
        "tpot_ms": spread(
            (r.last - r.first) * ms / (r.tokens - 1) for r in whole if r.last and r.first and r.tokens > 1
        ),
        "e2e_ms": spread((r.last - r.start) * ms for r in whole if r.last),
    }


def _in_flight(requests: Sequence[Request], window: Span) -> float:
    """Mean number of requests between sent and ended, over the window."""
    length = max(1, window[1] - window[0])
    return sum(max(0, min(r.end, window[1]) - max(r.start, window[0])) for r in requests) / length


def _counted(requests: Sequence[Request]) -> dict[str, Any]:
    failures = Counter(request.failure for request in requests if request.failure)
    return {
        "sent": len(requests),
        "ok": sum(1 for request in requests if request.failure is None and not request.is_cut),
        "cut": sum(1 for request in requests if request.failure is None and request.is_cut),
        "failed": sum(failures.values()),
        "failures": dict(failures.most_common()),
        "texts": len({request.digest for request in requests if request.tokens}),
        "without_done": sum(1 for r in requests if r.finish_reason and not r.done and not r.is_cut),
    }


def _tokens(requests: Sequence[Request]) -> dict[str, Any]:
    answered = [request for request in requests if request.tokens]
    prompts = [request.prompt_tokens for request in answered if request.prompt_tokens is not None]
    events = sum(request.events for request in answered)
    return {
        "output": sum(request.tokens for request in answered),
        "source": " / ".join(sorted({request.source for request in answered})),
        "per_event": sum(request.tokens for request in answered) / events if events else None,
        "prompt_min": min(prompts, default=None),
        "prompt_max": max(prompts, default=None),
        "cached": sum(request.cached_tokens for request in answered),
        "prompt": sum(prompts),
    }


def _client(workers: Sequence[dict[str, Any]], point: dict[str, Any]) -> dict[str, Any]:
    """How near the client was to its own limit, within the window."""
    histogram = [sum(worker["busy_log2_ns"][bit] for worker in workers) for bit in range(64)]
    turns, seen, p99 = sum(histogram), 0, 0
    for bit, count in enumerate(histogram):
        seen += count
        if turns and seen >= 0.99 * turns:
            p99 = 2**bit
            break
    reads, cpu = sum(w["reads"] for w in workers), sum(w["cpu_ns"] for w in workers)
    return {
        "processes": len(workers),
        "cpu_share": max((worker["cpu_ns"] / max(1, worker["wall_ns"]) for worker in workers), default=0.0),
        "cpu_us_per_read": cpu / reads / 1e3 if reads else None,
        "late_p99_ms": p99
        * 1e-6,  # a read waits at most this long for the turn before it: upper edge of the histogram's bin
        "late_max_ms": max((worker["busy_max_ns"] for worker in workers), default=0) * 1e-6,
        "switches": sum(worker["switches"] for worker in workers),
    }


def _agreement(requests: Sequence[Request], point: dict[str, Any]) -> dict[str, Any]:
    """Our count against the server's own.

    SGLang adds to generation_tokens_total when a request ends, so that counter is compared from idle to idle;
    realtime_tokens_total{mode="decode"} moves with each step and is compared over the window.
    """
    counters = point["counters"]
    before, after = counters["before"], counters["after"]
    result: dict[str, Any] = {"counter": None, "server_tokens": None, "client_tokens": None, "difference": None}
    cut = any(request.is_cut for request in requests)
    if not cut and _both(before, after, "generation_tokens"):
        theirs = after["generation_tokens"] - before["generation_tokens"]
        ours: float = sum(request.tokens for request in requests)
        result |= _compare("generation_tokens_total, whole point", theirs, ours)
    begin, end = counters["window_begin"], counters["window_end"]
    if _both(begin, end, "decode_tokens"):
        theirs = end["decode_tokens"] - begin["decode_tokens"]
        ours = sum(tokens_between(r, begin["at"], end["at"]) for r in requests)
        ours -= sum(r.arrivals[0][1] for r in requests if r.first and begin["at"] < r.first <= end["at"])
        window = _compare("realtime_tokens_total decode, window", theirs, ours)
        result["window"] = window
        if result["difference"] is None:
            result |= window
    result["cuda_graph"] = (end or {}).get("cuda_graph")
    # At one moment a few may just have been sent; what stands there at both ends of the window is a queue.
    result["queued"] = min(begin["queued"], end["queued"]) if _both(begin, end, "queued") else None
    if _both(before, after, "cached_tokens"):
        result["cached_tokens"] = after["cached_tokens"] - before["cached_tokens"]
    return result


def _both(one: dict[str, Any] | None, other: dict[str, Any] | None, name: str) -> bool:
    return bool(one) and bool(other) and (one or {}).get(name) is not None and (other or {}).get(name) is not None


def _compare(counter: str, theirs: float, ours: float) -> dict[str, Any]:
    difference = (ours - theirs) / theirs if theirs else None
    return {"counter": counter, "server_tokens": theirs, "client_tokens": ours, "difference": difference}


def _timeline(requests: Sequence[Request], point: dict[str, Any], bins: int = 120) -> dict[str, Any]:
    """tok/s over the whole point, in equal bins: the proof that the window stands where the rate is steady."""
    begin = point["go"]
    end = max([point["window"][1], *(request.last or 0 for request in requests)])
    width = max(1, (end - begin) // bins)
    edges = [begin + width * i for i in range(bins + 1)]
    rates = [
        sum(tokens_between(r, low, high) for r in requests if _touches(r, low, high)) / width * 1e9
        for low, high in pairwise(edges)
    ]
    window = [(at - begin) * 1e-9 for at in point["window"]]
    return {"bin_s": width * 1e-9, "tok_s": rates, "window": window}
