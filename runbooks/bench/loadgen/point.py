"""One point of the sweep: fork, ramp, warm-up handed over without draining, window, drain; counters at both ends."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import rawlog
from .loop import Plan, Worker
from .prompts import Prompts
from .server import Server
from .shared import CUT, DRAIN, RAMP, WINDOW, Board
from .wire import APIS, Shape, Target, post

Tell = Callable[..., None]  # tell(event, **fields): one line of progress

STREAMS_A_PROCESS = 128  # one process reads over 100,000 chunks/s; above this many streams its bursts make stamps late


class Interrupted(Exception):
    """Ctrl-C or SIGTERM: stop soon, and leave a valid partial result."""


@dataclass(frozen=True)
class Settings:
    """How long, how many, how big. Seconds and tokens."""

    input_len: int
    output_len: int
    warmup: float
    window: float
    ramp_limit: float = (
        600.0  # until every slot has had a token: on a slow server the prefill of N prompts takes its time
    )
    drain_limit: float = 30.0  # then what still runs is cut, and counted as cut
    silence: float = 60.0
    stagger: float = (
        0.001  # between the starts of two slots; their ends are spread by the lengths of their first requests
    )
    max_requests: int = 100_000
    processes: int = 0  # 0: by the number of streams and cores


def processes_for(streams: int, wanted: int) -> int:
    if wanted:
        return max(1, min(wanted, streams))
    cores = len(os.sched_getaffinity(0))
    return max(1, min(-(-streams // STREAMS_A_PROCESS), cores // 2, 8))


def measure(
    server: Server, shape: Shape, prompts: Prompts, streams: int, settings: Settings, out: Path, tell: Tell
) -> dict[str, Any]:
    """Measures one concurrency and writes `out`. Returns the point's own block of the log."""
    count = processes_for(streams, settings.processes)
    board = Board(count)
    parts = [out.with_suffix(f".{index}.part") for index in range(count)]
    before = server.counters()
    children = [
        _fork(board, index, _plan(server, shape, prompts, streams, settings, count, index, parts[index]))
        for index in range(count)
    ]
    point: dict[str, Any] = {"kind": "point", "concurrency": streams, "interrupted": False, "processes": count}
    point |= {"input_len": settings.input_len, "output_len": settings.output_len, "wall_time": time.time()}
    counters: dict[str, Any] = {"before": before, "window_begin": None, "window_end": None, "after": None}
    try:
        _until(lambda: board.total("ready") == count, 60.0, children)
        point["go"] = time.perf_counter_ns()
        board.phase = RAMP
        _phases(server, board, settings, streams, children, point, counters, tell)
    except (Interrupted, KeyboardInterrupt):
        point["interrupted"] = True
    finally:
        now = time.perf_counter_ns()
        point.setdefault("go", now)
        point.setdefault("window", [now, now])
        point["window"][1] = point["window"][1] or now
        board.phase = CUT
        _reap(children)
    counters["after"] = _settled(server) if not point["interrupted"] else server.counters()
    point["counters"] = counters
    rawlog.join(out, point, parts)
    return point


def _phases(
    server: Server,
    board: Board,
    settings: Settings,
    streams: int,
    children: list[int],
    point: dict[str, Any],
    counters: dict[str, Any],
    tell: Tell,
) -> None:
    def told(phase: str, done: float, total: float, rate: float | None = None) -> None:
        flying, failed = board.total("flight"), board.total("failed")
        tell("progress", point=streams, phase=phase, done=done, total=total, flight=flying, failed=failed, rate=rate)

    # Up to the first token of every slot, then the warm-up proper; the slots run on into the window.
    _watch(
        lambda: board.total("decoding") >= streams or board.total("failed") > streams,
        settings.ramp_limit,
        children,
        lambda _: told("ramp", board.total("decoding"), streams),
    )
    _watch(None, settings.warmup, children, lambda passed: told("warm-up", passed, settings.warmup))
    counters["window_begin"] = server.counters()
    board.phase = WINDOW
    begin, reads = time.perf_counter_ns(), board.total("reads")
    point["window"] = [begin, 0]

    def rate(passed: float) -> None:
        told("window", passed, settings.window, (board.total("reads") - reads) / max(passed, 0.1))

    _watch(lambda: board.total("done") == board.workers, settings.window, children, rate)
    point["window"][1] = time.perf_counter_ns()
    board.phase = DRAIN
    counters["window_end"] = server.counters()
    _watch(
        lambda: board.total("done") == board.workers,
        settings.drain_limit,
        children,
        lambda passed: told("drain", passed, settings.drain_limit),
    )


def _watch(over: Callable[[], bool] | None, limit: float, children: list[int], told: Callable[[float], None]) -> None:
    """Waits until it is over, at most `limit` seconds, and tells once a second how far it is."""
    begin = time.perf_counter()
    next_tell = 0.0
    while (passed := time.perf_counter() - begin) < limit and not (over and over()):
        if passed >= next_tell:
            told(passed)
            next_tell = passed + 1.0
        time.sleep(min(0.02, max(0.0, limit - passed)))


def _until(ready: Callable[[], bool], limit: float, children: list[int]) -> None:
    begin = time.perf_counter()
    while not ready() and time.perf_counter() - begin < limit:
        time.sleep(0.002)


def _settled(server: Server) -> dict[str, Any] | None:
    """The counters once nothing runs any more; SGLang updates its gauges up to a second or two late."""
    for _ in range(15):
        counters = server.counters()
        if not counters or not (counters.get("running") or counters.get("queued")):
            return counters
        time.sleep(0.2)
    return counters


def _plan(
    server: Server, shape: Shape, prompts: Prompts, streams: int, settings: Settings, count: int, index: int, log: Path
) -> Plan:
    path, key, target = APIS[shape.api], server.key, server.target
    rng = random.Random(int.from_bytes(os.urandom(8), "big"))

    def request(tokens: int) -> bytes:
        return post(target, path, shape.body(prompts.new(rng), tokens), key)

    slots = tuple(range(index, streams, count))
    share = -(-settings.max_requests // count)
    return Plan(target, slots, streams, settings.output_len, request, settings.stagger, settings.silence, share, log)


def _fork(board: Board, index: int, plan: Plan) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides, and says so on the board
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
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
    plan = Plan(target, slots, streams, 1, lambda _: request, 0.0, 5.0, streams, log)
    child = _fork(board, 0, plan)
    _until(lambda: board.total("ready") == 1, 10.0, [child])
    board.phase = WINDOW
    _until(lambda: board.total("done") == 1, 20.0, [child])
    board.phase = CUT
    _reap([child])
    blocks = list(rawlog.decode(log.read_bytes()))
    log.unlink()
    return blocks
