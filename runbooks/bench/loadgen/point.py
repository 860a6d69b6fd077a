"""One point of the sweep: fork, ramp, warm-up handed over without draining, window, drain; counters at both ends."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from . import rawlog
from .lengths import Lengths
from .load import arrivals, maker
from .loop import Made, Plan, Worker
from .metrics import BATCHES, half_width
from .prompts import Prompts, TokenIds
from .server import Server
from .shared import CUT, DRAIN, RAMP, WINDOW, Board
from .stopping import STOP, Interrupted, fork
from .wire import Shape, Target, post

Tell = Callable[..., None]  # tell(event, **fields): one line of progress

STREAMS_A_PROCESS = 128  # one process reads over 100,000 chunks/s; above this many streams its bursts make stamps late
MOST_AT_FIRST = 512  # connections that an open loop begins with
SHORTEST = 5.0  # s of a window that ends before its time
SAMPLE = 0.1  # s between two looks at the rate
HOPELESS = 20  # requests that failed, and at least so many times the streams: a point is given up where nearly all did
TIMES = 3
LOOK = 0.05  # s between two looks at the workers: more often would cost a tenth of what they do


@dataclass(frozen=True)
class Settings:
    """How long, how many, how big. Seconds and tokens."""

    lengths: Lengths
    warmup: float
    window: float  # at most
    precision: float = 0.0  # end the window when the rate is known to this part of itself (95 %); 0: never before
    ramp_limit: float = 600.0  # until every slot has had a token: the prefill of N prompts takes its time
    drain_limit: float = 30.0  # then what still runs is cut, and counted as cut
    silence: float = 60.0
    stagger: float = 0.001  # between the starts of two slots; the lengths of their first requests spread their ends
    max_requests: int = 100_000
    processes: int = 0  # 0: by the number of streams and cores
    steady: bool = False  # arrivals of an open loop: evenly spaced, not Poisson
    shared: int = 0  # tokens that all prompts have in common


@dataclass(frozen=True)
class Load:
    """One point: `streams` at once, or `rate` requests a second whatever happens to them."""

    streams: int = 0
    rate: float = 0.0
    repeat: int = 0  # which pass over the sweep
    processes: int = 0  # 0: as the settings say
    attempt: int = 0  # 0 is the first; more where the client was late (lateness.py)

    @property
    def name(self) -> str:
        return f"r{self.rate:g}" if self.rate else f"c{self.streams}"

    @property
    def said(self) -> str:
        return f"{self.rate:g} a second" if self.rate else f"{self.streams} stream{'s' * (self.streams != 1)}"

    @property
    def slots(self) -> int:
        """Connections to begin with."""
        return self.streams or max(8, min(MOST_AT_FIRST, math.ceil(self.rate * 4)))


def processes_for(streams: int, wanted: int) -> int:
    if wanted:
        return max(1, min(wanted, streams))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(-(-streams // STREAMS_A_PROCESS), cores // 2, 8))


def measure(
    server: Server,
    shape: Shape,
    prompts: Prompts | TokenIds,
    load: Load,
    settings: Settings,
    out: Path,
    tell: Tell,
) -> dict[str, Any]:
    """Measures one load and writes `out`. Returns the point's own block of the log.

    Raises Interrupted before it began; once it has, what came until then is written down.
    """
    count = processes_for(load.slots, load.processes or settings.processes)
    board = Board(count)
    parts = [out.with_suffix(f".{index}.part") for index in range(count)]
    with STOP:
        before = server.settled()  # the last question about the prompts may not be counted yet
    children = [
        _fork(board, index, _plan(server, shape, prompts, load, settings, count, index, parts[index]))
        for index in range(count)
    ]
    tokens_in, tokens_out = settings.lengths.mean
    point: dict[str, Any] = {"kind": "point", "concurrency": load.streams, "rate": load.rate, "repeat": load.repeat}
    point["attempt"] = load.attempt
    point |= {"interrupted": False, "given_up": False, "processes": count}
    point |= {"input_len": tokens_in, "output_len": tokens_out, "lengths": settings.lengths.said}
    point |= {"shared_len": settings.shared, "wall_time": time.time()}
    counters: dict[str, Any] = {"before": before, "window_begin": None, "window_end": None, "after": None}
    try:
        with STOP:
            _until(lambda: board.total("ready") == count, 60.0)
            point["go"] = time.perf_counter_ns()
            board.phase = RAMP
            _phases(server, board, settings, load, point, counters, tell)
    except Interrupted:
        point["interrupted"] = board.phase < DRAIN  # afterwards it is measured, and what still runs is cut as usual
    finally:
        now = time.perf_counter_ns()
        point.setdefault("go", now)
        point.setdefault("window", [now, now])
        point["window"][1] = point["window"][1] or now
        board.phase = CUT
        _reap(children)
    counters["after"] = None if STOP.asked else server.settled()
    point["counters"] = counters
    rawlog.join(out, point, parts)
    return point


def _phases(
    server: Server,
    board: Board,
    settings: Settings,
    load: Load,
    point: dict[str, Any],
    counters: dict[str, Any],
    tell: Tell,
) -> None:
    def told(phase: str, done: float, total: float, rate: float | None = None) -> None:
        flying, failed = board.total("flight"), board.total("failed")
        where = {"point": load.rate or load.streams, "open": bool(load.rate), "phase": phase}
        tell("progress", **where, done=done, total=total, flight=flying, failed=failed, rate=rate)

    def hopeless() -> bool:
        failed = board.total("failed")
        most = max(HOPELESS, TIMES * (load.streams or load.rate))
        return failed >= most and failed > 9 * board.total("finished")

    # Up to the first token of every slot, then the warm-up proper; the slots run on into the window.
    if load.streams:
        _watch(
            lambda: board.total("decoding") >= load.streams or board.total("failed") > load.streams,
            settings.ramp_limit,
            lambda _: told("ramp", board.total("decoding"), load.streams),
        )
    _watch(hopeless, settings.warmup, lambda passed: told("warm-up", passed, settings.warmup))
    counters["window_begin"] = server.counters()
    board.phase = WINDOW
    begin, reads, ended = time.perf_counter_ns(), board.total("reads"), board.total("finished")
    point["window"] = [begin, 0]
    steady = Steady(settings.precision)

    def rate(passed: float) -> None:
        told("window", passed, settings.window, (board.total("reads") - reads) / max(passed, 0.1))

    def over() -> bool:
        if board.total("done") == board.workers or hopeless():
            return True
        # Every slot has to have begun anew once: a window without a prefill would not know its price.
        turned = board.total("finished") - ended >= load.slots
        return steady.seen(time.perf_counter() - begin * 1e-9, board.total("reads") - reads) and turned

    _watch(over, settings.window, rate)
    point["window"][1] = time.perf_counter_ns()
    point["given_up"] = hopeless()
    board.phase = DRAIN
    counters["window_end"] = server.counters()
    _watch(
        lambda: board.total("done") == board.workers,
        0.0 if point["given_up"] else settings.drain_limit,
        lambda passed: told("drain", passed, settings.drain_limit),
    )


class Steady:
    """Whether the rate of reads is known well enough, by the means of ten batches of the window so far."""

    def __init__(self, precision: float) -> None:
        self.precision = precision
        self.known: list[tuple[float, int]] = [(0.0, 0)]

    def seen(self, passed: float, reads: int) -> bool:
        """Called often, with seconds and reads since the window began. True: enough."""
        if not self.precision or passed - self.known[-1][0] < SAMPLE:
            return False
        self.known.append((passed, reads))
        if passed < SHORTEST or reads < 20 * BATCHES:
            return False
        edges = [self.known[round(i * (len(self.known) - 1) / BATCHES)] for i in range(BATCHES + 1)]
        rates = [(n - m) / (t - s) for (s, m), (t, n) in pairwise(edges)]
        return half_width(rates) < self.precision * reads / passed


def _watch(over: Callable[[], bool] | None, limit: float, told: Callable[[float], None]) -> None:
    """Waits until it is over, at most `limit` seconds, and tells once a second how far it is."""
    begin = time.perf_counter()
    next_tell = 0.0
    while (passed := time.perf_counter() - begin) < limit and not (over and over()):
        STOP.check()
        if passed >= next_tell:
            told(passed)
            next_tell = passed + 1.0
        time.sleep(min(LOOK, max(0.0, limit - passed)))


def _until(ready: Callable[[], bool], limit: float) -> None:
    begin = time.perf_counter()
    while not ready() and time.perf_counter() - begin < limit:
        STOP.check()
        time.sleep(0.002)


def _plan(
    server: Server,
    shape: Shape,
    prompts: Prompts | TokenIds,
    load: Load,
    settings: Settings,
    count: int,
    index: int,
    log: Path,
) -> Plan:
    request = maker(server, shape, prompts, settings.lengths, load.slots)
    due = arrivals(load.rate, index, count, steady=settings.steady) if load.rate else None
    share = -(-settings.max_requests // count)
    slots = tuple(range(index, load.slots, count))
    words = (server.target, slots, request, settings.stagger, settings.silence, share, log, due)
    return Plan(*words, cumulative=shape.api == "generate")


def _fork(board: Board, index: int, plan: Plan) -> int:
    child = fork()
    if child:
        return child
    code = 1
    try:
        Worker(plan, board, index).run()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def _reap(children: list[int], patience: float = 20.0) -> None:
    """Waits for the workers, who write their logs; one that hangs is ended."""
    until = time.perf_counter() + patience
    waiting = set(children)
    while waiting:
        for child in tuple(waiting):
            if os.waitpid(child, os.WNOHANG)[0]:
                waiting.discard(child)
        if waiting and time.perf_counter() > until:
            for child in waiting:
                os.kill(child, signal.SIGKILL)
            until = float("inf")
        time.sleep(0.01)


def null_run(streams: int, port: int, folder: Path) -> list[rawlog.Block]:
    """The ordinary loop against the null server: one request a slot."""
    target = Target("127.0.0.1", port, False, "")
    board = Board(1)
    log = folder / "null.part"
    slots = tuple(range(streams))
    request = post(target, "/v1/chat/completions", b"{}", None)
    plan = Plan(target, slots, lambda _: Made(request, 10**6, 1), 0.0, 5.0, streams, log, judged=0)
    child = _fork(board, 0, plan)
    try:
        _until(lambda: board.total("ready") == 1, 10.0)
        board.phase = WINDOW
        _until(lambda: board.total("done") == 1, 20.0)
    finally:
        board.phase = CUT
        _reap([child])
    blocks = list(rawlog.decode(log.read_bytes()))
    log.unlink()
    return blocks
