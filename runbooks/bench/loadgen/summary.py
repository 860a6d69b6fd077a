"""All numbers of one point, from the blocks of its raw logs: one log a pass over the sweep."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from .metrics import (
    Span,
    batch_rates,
    full_spans,
    half_width,
    spread,
    step_batches,
    tokens_between,
    touches,
)
from .rawlog import Block
from .records import Request, request_of

MS = 1e-6  # of a nanosecond


@dataclass(frozen=True)
class Log:
    """One pass: the point's own block, its workers', and its requests in the order of their starts."""

    point: dict[str, Any]
    workers: tuple[dict[str, Any], ...]
    requests: tuple[Request, ...]

    @classmethod
    def of(cls, blocks: Iterable[Block]) -> Log:
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
        return cls(point, tuple(workers), tuple(requests))

    @property
    def key(self) -> tuple[float, int]:
        """What the passes over a sweep have in common."""
        return self.point.get("rate") or 0.0, self.point["concurrency"]

    @property
    def attempt(self) -> int:
        return int(self.point.get("attempt", 0))

    @property
    def window(self) -> Span:
        return self.point["window"][0], self.point["window"][1]

    @property
    def seconds(self) -> float:
        return (self.window[1] - self.window[0]) * 1e-9

    @cached_property
    def spans(self) -> list[Span]:
        slots = self.point["concurrency"]
        return full_spans(self.requests, slots, self.window) if slots else []

    @cached_property
    def rates(self) -> list[float]:
        return batch_rates(self.requests, self.window)

    @cached_property
    def steps(self) -> list[tuple[int, int]]:
        return step_batches(self.requests, self.spans)

    @property
    def in_flight(self) -> float:
        """Mean number of requests between start and end, over the window."""
        low, high = self.window
        return sum(max(0, min(r.end, high) - max(r.start, low)) for r in self.requests) / max(1, high - low)


def points_of(logs: Iterable[tuple[str, Iterable[Block]]]) -> list[dict[str, Any]]:
    """One point for each load, in the order of the first pass, from (file name, blocks) of each log.

    A pass that was interrupted counts only where there is no whole one, and of the attempts of a pass the last.
    `log` is the file of the first that counts, `attempts` are those that do not.
    """
    groups: dict[tuple[float, int], list[tuple[str, Log]]] = {}
    for name, blocks in logs:
        log = Log.of(blocks)
        groups.setdefault(log.key, []).append((name, log))
    points = []
    for group in groups.values():
        whole = [(name, log) for name, log in group if not log.point["interrupted"]] or group[:1]
        last = {log.point.get("repeat", 0): log.attempt for _, log in sorted(whole, key=lambda one: one[1].attempt)}
        used = [(name, log) for name, log in whole if log.attempt == last[log.point.get("repeat", 0)]]
        attempts = [_attempt(name, log) for name, log in whole if (name, log) not in used]
        points.append(summary([log for _, log in used]) | {"log": used[0][0], "attempts": attempts})
    return points


def _attempt(name: str, log: Log) -> dict[str, Any]:
    """What was measured, and then again because the client was late."""
    client = _client(log.workers, 1)
    return {
        "log": name,
        "repeat": log.point.get("repeat", 0),
        "tok_s": _rate([log])[0],
        "late_p99_ms": client["late_p99_ms"],
    }


def point_of(blocks: Iterable[Block]) -> dict[str, Any]:
    """The numbers of one pass."""
    return summary([Log.of(blocks)])


def summary(logs: Sequence[Log]) -> dict[str, Any]:
    point, window = logs[0].point, sum(log.seconds for log in logs)
    requests = [request for log in logs for request in log.requests]
    in_flight = sum(log.in_flight for log in logs) / len(logs)
    slots: int = point["concurrency"] or max(1, round(in_flight))
    rate, rate_ci = _rate(logs)
    step, step_ci = _step(logs)
    full = sum(end - begin for log in logs for begin, end in log.spans) * 1e-9
    return {
        "concurrency": slots,
        "input_len": point["input_len"],
        "output_len": point["output_len"],
        "lengths": point.get("lengths") or f"{point['input_len']} in, {point['output_len']} out",
        "shared_len": point.get("shared_len", 0),
        "interrupted": any(log.point["interrupted"] for log in logs),
        "given_up": any(log.point.get("given_up") for log in logs) or None,
        "window_s": window,
        "windows": [list(log.window) for log in logs],
        "full_share": full / max(1e-9, window),
        "tok_s": rate,
        "tok_s_ci": rate_ci,
        "step_ms": step * MS if step else None,
        "step_ci": step_ci * MS if step_ci is not None else None,
        "decode_tok_s": slots / step * 1e9 if step else None,
        "user_tok_s": 1e9 / step if step else None,
        "in_flight": in_flight,
        "requests": _counted(requests),
        "tokens": _tokens(requests, point),
        **_latencies(logs),
        "client": _client([worker for log in logs for worker in log.workers], len(logs)),
        "server": _agreement(logs),
        "timeline": _timeline(logs[0]),
        "repeats": [_repeat(log) for log in logs],
        "split": _split(logs),
        "open": _open(logs),
    }


def _rate(logs: Sequence[Log]) -> tuple[float, float | None]:
    """tok/s over all windows, and the half width of its 95 % interval by their batches (None: too little to say)."""
    rates = [rate for log in logs for rate in log.rates]
    if not rates:
        return 0.0, None
    enough = min(rate * log.seconds / len(log.rates) for log in logs for rate in log.rates) >= 1
    return sum(rates) / len(rates), half_width(rates) if enough else None


def _step(logs: Sequence[Log]) -> tuple[float | None, float | None]:
    """ns a token of one stream while all slots decode, and the half width of its 95 % interval."""
    batches = [batch for log in logs for batch in log.steps]
    tokens = sum(n for _, n in batches)
    if not tokens:
        return None, None
    mean = sum(time for time, _ in batches) / tokens
    return mean, half_width([time / n for time, n in batches]) if len(batches) > len(logs) else None


def _latencies(logs: Sequence[Log]) -> dict[str, Any]:
    ttft: list[float] = []
    itl: list[float] = []
    tpot: list[float] = []
    e2e: list[float] = []
    for log in logs:
        low, high = log.window
        for r in log.requests:
            if r.failure is not None or r.first is None or r.last is None:
                continue
            if low <= r.start < high:
                ttft.append((r.first - r.start) * MS)
            itl += [(after - at) * MS for (at, _), (after, _) in pairwise(r.arrivals) if low <= after < high]
            if not r.is_first and not r.is_cut and low <= r.last < high:
                e2e.append((r.last - r.start) * MS)
                if r.tokens > r.arrivals[0][1]:
                    tpot.append((r.last - r.first) * MS / (r.tokens - r.arrivals[0][1]))
    return {"ttft_ms": spread(ttft), "itl_ms": spread(itl), "tpot_ms": spread(tpot), "e2e_ms": spread(e2e)}


def _counted(requests: Sequence[Request]) -> dict[str, Any]:
    failures = Counter(request.failure for request in requests if request.failure)
    return {
        "sent": len(requests),
        "ok": sum(1 for request in requests if request.failure is None and not request.is_cut),
        "cut": sum(1 for request in requests if request.failure is None and request.is_cut),
        "failed": sum(failures.values()),
        "failures": dict(failures.most_common()),
        "texts": len({request.digest for request in requests if request.tokens}),
        "random": sum(request.is_random for request in requests),
        "without_done": sum(1 for r in requests if r.finish_reason and not r.done and not r.is_cut),
    }


def _tokens(requests: Sequence[Request], point: dict[str, Any]) -> dict[str, Any]:
    answered = [request for request in requests if request.tokens]
    prompts = [request.prompt_tokens for request in answered if request.prompt_tokens is not None]
    off = [abs(r.prompt_tokens - (r.prompt or point["input_len"])) for r in answered if r.prompt_tokens is not None]
    events = sum(request.events for request in answered)
    return {
        "output": sum(request.tokens for request in answered),
        "source": " / ".join(sorted({request.source for request in answered})),
        "per_event": sum(request.tokens for request in answered) / events if events else None,
        "prompt_min": min(prompts, default=None),
        "prompt_max": max(prompts, default=None),
        "prompt_off": max(off, default=None),
        "cached": sum(request.cached_tokens for request in answered),
        "prompt": sum(prompts),
    }


def _client(workers: Sequence[dict[str, Any]], passes: int) -> dict[str, Any]:
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
        "processes": math.ceil(len(workers) / passes),
        "cpu_share": max((worker["cpu_ns"] / max(1, worker["wall_ns"]) for worker in workers), default=0.0),
        "cpu_us_per_read": cpu / reads / 1e3 if reads else None,
        "late_p99_ms": p99 * MS,  # a read waits at most this long for the turn before it: upper edge of a bin
        "late_max_ms": max((worker["busy_max_ns"] for worker in workers), default=0) * MS,
        "switches": sum(worker["switches"] for worker in workers),
        "first_in_line": bool(workers) and all(worker.get("first_in_line") for worker in workers),
    }


def _agreement(logs: Sequence[Log]) -> dict[str, Any]:
    """Our count against the server's own, over all passes that can be compared in the same way."""
    found = [_one_agreement(log) for log in logs]
    windows = _sum([one["window"] for one in found])
    whole = _sum([one["whole"] for one in found])
    result: dict[str, Any] = whole or windows or _compare(None, None, None)
    if windows:
        result = result | {"window": windows}
    graphs = [one["cuda_graph"] for one in found if one["cuda_graph"] is not None]
    queued = [one["queued"] for one in found if one["queued"] is not None]
    result = result | {"cuda_graph": min(graphs, default=None), "queued": max(queued, default=None)}
    cached = [one["cached_tokens"] for one in found if "cached_tokens" in one]
    return result | ({"cached_tokens": sum(cached)} if cached else {})


def _one_agreement(log: Log) -> dict[str, Any]:
    """One pass.

    SGLang adds to generation_tokens_total when a request ends, so that counter is compared from idle to idle;
    realtime_tokens_total{mode="decode"} moves with each step and is compared over the window.
    """
    counters, requests = log.point["counters"], log.requests
    before, after = counters["before"], counters["after"]
    begin, end = counters["window_begin"], counters["window_end"]
    result: dict[str, Any] = {"whole": None, "window": None, "cuda_graph": (end or {}).get("cuda_graph")}
    if not any(request.is_cut for request in requests) and _both(before, after, "generation_tokens"):
        theirs = after["generation_tokens"] - before["generation_tokens"]
        ours: float = sum(request.tokens for request in requests)
        result["whole"] = _compare("generation_tokens_total, whole point", theirs, ours)
    if _both(begin, end, "decode_tokens"):
        theirs = end["decode_tokens"] - begin["decode_tokens"]
        ours = sum(tokens_between(r, begin["at"], end["at"]) for r in requests)
        ours -= sum(r.arrivals[0][1] for r in requests if r.first and begin["at"] < r.first <= end["at"])
        result["window"] = _compare("realtime_tokens_total decode, window", theirs, ours)
    # At one moment a few may just have been sent; what stands there at both ends of the window is a queue.
    result["queued"] = min(begin["queued"], end["queued"]) if _both(begin, end, "queued") else None
    if before and after and "cached_tokens" in after:  # SGLang publishes it from the first hit on: before that it is 0
        result["cached_tokens"] = after["cached_tokens"] - before.get("cached_tokens", 0.0)
    return result


def _both(one: dict[str, Any] | None, other: dict[str, Any] | None, name: str) -> bool:
    return bool(one) and bool(other) and (one or {}).get(name) is not None and (other or {}).get(name) is not None


def _compare(counter: str | None, theirs: float | None, ours: float | None) -> dict[str, Any]:
    difference = (ours - theirs) / theirs if theirs and ours is not None else None
    return {"counter": counter, "server_tokens": theirs, "client_tokens": ours, "difference": difference}


def _sum(found: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    known = [one for one in found if one is not None]
    if not known:
        return None
    return _compare(
        known[0]["counter"], sum(one["server_tokens"] for one in known), sum(one["client_tokens"] for one in known)
    )


def _timeline(log: Log, bins: int = 120) -> dict[str, Any]:
    """tok/s over a whole pass, in equal bins: the proof that the window stands where the rate is steady."""
    begin = log.point["go"]
    end = max([log.window[1], *(request.last or 0 for request in log.requests)])
    width = max(1, (end - begin) // bins)
    edges = [begin + width * i for i in range(bins + 1)]
    rates = [
        sum(tokens_between(r, low, high) for r in log.requests if touches(r, low, high)) / width * 1e9
        for low, high in pairwise(edges)
    ]
    return {"bin_s": width * 1e-9, "tok_s": rates, "window": [(at - begin) * 1e-9 for at in log.window]}


def _repeat(log: Log) -> dict[str, Any]:
    rate, rate_ci = _rate([log])
    step, _ = _step([log])
    return {
        "repeat": log.point.get("repeat", 0),
        "processes": len(log.workers),
        "window_s": log.seconds,
        "tok_s": rate,
        "tok_s_ci": rate_ci,
        "step_ms": step * MS if step else None,
    }


def _split(logs: Sequence[Log]) -> dict[str, Any] | None:
    """The same load from fewer and from more client processes: `gain` is what more of them found, in parts of 1."""
    few = min(logs, key=lambda log: len(log.workers))
    many = max(logs, key=lambda log: len(log.workers))
    if len(few.workers) == len(many.workers):
        return None
    (one, one_ci), (other, other_ci) = _rate([few]), _rate([many])
    noise = math.hypot(one_ci or 0.0, other_ci or 0.0) / one if one else None
    return {
        "processes": [len(few.workers), len(many.workers)],
        "tok_s": [one, other],
        "gain": other / one - 1 if one else None,
        "noise": noise,
    }


def _open(logs: Sequence[Log]) -> dict[str, Any] | None:
    """Of an open loop: requests/s that were due, came, and ended, and how late they were sent; None in a closed one."""
    if not logs[0].point.get("rate"):
        return None
    started = ended = 0
    late: list[float] = []
    for log in logs:
        low, high = log.window
        due = [r for r in log.requests if low <= r.start < high]
        started += len(due)
        ended += sum(1 for r in log.requests if low <= r.end < high and not r.is_cut)
        late += [(r.sent - r.start) * MS for r in due if r.sent]
    seconds = max(1e-9, sum(log.seconds for log in logs))
    return {
        "offered": logs[0].point["rate"],
        "started": started / seconds,
        "ended": ended / seconds,
        "late_ms": spread(late),
    }
