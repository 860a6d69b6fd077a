"""The server's life: engine, clock and loop put together; start, warm-up, health, stop, and the deaths in between."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from . import death, processes, release, startup, words
from .engine import Death, Engine, Limits, Pass, Request
from .knobs import Knobs
from .log import Log
from .metrics import Board
from .prefix import PrefixCache
from .resolve import Resolved
from .speed import Speed
from .words import Piece

STATE = (
    "lab-sglang.json"  # read by the lab's nvidia-smi, to show busy cards; in /run, or where a hardened unit may write
)
HEALTH_PAUSE = 1.0  # seconds; the real handler sleeps as long between two looks


class Serving:
    def __init__(
        self, resolved: Resolved, knobs: Knobs, log: Log, children: Sequence[subprocess.Popen[bytes]] = ()
    ) -> None:
        self.resolved, self.knobs, self.log = resolved, knobs, log
        self._children = list(children)
        args = resolved.args
        self.failure = knobs.failure(resolved.facts)
        self.status = "starting"
        speed = Speed(knobs.c0, knobs.c1, knobs.c2, knobs.prefill_ms, resolved.graph_max_bs, knobs.eager_factor)
        limits = Limits(
            max_running=int(args.get("max_running_requests") or min(2048, max(resolved.kv_tokens // 128, 1))),
            max_tokens=resolved.kv_tokens,
            max_prefill=int(args.get("max_prefill_tokens") or 16384),
        )
        cache = PrefixCache(
            page=resolved.page_size, capacity=resolved.kv_tokens, enabled=not args.get("disable_radix_cache")
        )
        self.engine = Engine(speed, limits, cache, failure=self.failure, detail=knobs.detail, on_pass=self._passed)
        self.board = Board(resolved.name, self.engine, resolved.page_size, resolved.context_length)
        self._salt = itertools.count(1)
        self._timer: asyncio.TimerHandle | None = None
        self._interval = int(args.get("decode_log_interval") or 40)
        self._logged = (time.monotonic(), 0)
        self._shown = -1

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    # Requests

    def submit(self, request: Request) -> None:
        finish, token = request.on_finish, request.on_token

        def counted(one: Request) -> None:
            self.board.finished(one)  # before the answer goes out, so that a scrape right after it finds the tokens
            finish(one)

        def timed(one: Request, piece: Piece) -> None:
            if len(one.ids) > 1:
                self.board.token(one, one.last - before.get(one.rid, one.last))
            before[one.rid] = one.last
            token(one, piece)

        before: dict[str, float] = {}
        request.on_finish, request.on_token = counted, timed
        self.engine.submit(request, self._loop.time())
        self._wake()

    def abort(self, rid: str) -> None:
        self.engine.abort(rid, self._loop.time())

    def drop(self, requests: Sequence[Request]) -> None:
        """Their client is gone; nobody wants the rest."""
        for request in requests:
            request.on_token, request.on_finish = _nobody_token, self.board.finished
            self.abort(request.rid)

    def flush(self) -> bool:
        """Only an idle server flushes."""
        if self.engine.running or self.engine.waiting:
            self.log.scheduler(
                f"Cache not flushed because there are pending requests. #queue-req: {len(self.engine.waiting)}, "
                f"#running-req: {len(self.engine.running)}"
            )
            return False
        self.engine.cache.clear()
        self.log.scheduler("Cache flushed successfully!")
        return True

    def salt(self) -> int:
        """Another number for every sampled request without a seed."""
        return next(self._salt)

    def script(self, prompt: str, *, seed: int, thinking: int, ignore_eos: bool) -> Iterator[Piece]:
        if self.failure == "garbage":
            return (Piece(" kettle") for _ in itertools.count())
        return words.script(prompt, seed=seed, thinking=thinking, ignore_eos=ignore_eos, answers=self.knobs.answers)

    # The clock

    def _wake(self) -> None:
        """Let the engine do what is due, and come back when it says."""
        if self._timer is not None:
            self._timer.cancel()
        try:
            due = self.engine.advance(self._loop.time())
        except Death as cause:
            death.in_service(self.log, str(cause), self._children)
        self._timer = self._loop.call_at(due, self._wake) if due is not None else None
        self._tell()

    def _passed(self, done: Pass, engine: Engine) -> None:
        """Log lines and gauges of a finished forward pass."""
        graph = f"{'cpu' if self.resolved.device == 'cpu' else 'cuda'} graph"
        usage = sum(one.length for one in engine.running) / engine.limits.max_tokens
        if done.kind == "prefill":
            known = done.new_tokens + done.cached_tokens
            self.board.cache_hit_rate = done.cached_tokens / known if known else 0.0
            pending = (
                f"#pending-token: {sum(len(one.prompt) for one in engine.waiting)}, "
                if release.at_least("0.5.11")
                else ""
            )
            rate = done.new_tokens / max(engine.speed.prefill(done.new_tokens), 1e-9)
            self.log.scheduler(
                f"Prefill batch, #new-seq: {len(done.requests)}, #new-token: {done.new_tokens}, "
                f"#cached-token: {done.cached_tokens}, "
                f"token usage: {usage:.2f}, #running-req: {len(engine.running)}, #queue-req: "
                f"{len(engine.waiting)}, {pending}"
                f"{graph}: False, input throughput (token/s): {rate:.2f}"
            )
        elif engine.totals.decode_passes % self._interval == 0:
            now, before = time.monotonic(), self._logged
            self.board.gen_throughput = (engine.totals.decode_tokens - before[1]) / max(now - before[0], 1e-9)
            self._logged = (now, engine.totals.decode_tokens)
            self.log.scheduler(
                f"Decode batch, #running-req: {len(engine.running)}, #token: "
                f"{sum(one.length for one in engine.running)}, "
                f"token usage: {usage:.2f}, {graph}: {engine.speed.graphed(done.new_tokens)}, "
                f"gen throughput (token/s): {self.board.gen_throughput:.2f}, #queue-req: {len(engine.waiting)}"
            )

    def _tell(self) -> None:
        """Leave the number of running requests for the lab's nvidia-smi, where this may be written at all."""
        running = len(self.engine.running)
        if running == self._shown:
            return
        self._shown = running
        for folder in ("/run", os.environ.get("RUNTIME_DIRECTORY"), os.environ.get("STATE_DIRECTORY")):
            with contextlib.suppress(OSError):
                if folder:
                    Path(folder, STATE).write_text(json.dumps({"running": running}))
                    return

    # Health

    def check_health(self, path: str, answer: Callable[[bool], None]) -> None:
        if self.status in ("starting", "stopping"):
            return answer(False)
        if path == "/health" and os.environ.get("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "1").lower() in (
            "0",
            "false",
        ):
            return answer(True)
        began = self._loop.time()
        if not self.engine.running:
            self.submit(
                Request(
                    rid=f"HEALTH_CHECK_{began}",
                    prompt=(0,),
                    max_new=1,
                    script=iter((Piece("a"),)),
                    eos=self.resolved.eos,
                    on_token=_nobody_token,
                    on_finish=lambda _request: None,
                    counted=False,
                )
            )
        self._loop.call_later(HEALTH_PAUSE, self._look, began, answer)
        return None

    def _look(self, began: float, answer: Callable[[bool], None]) -> None:
        limit = float(os.environ.get("SGLANG_HEALTH_CHECK_TIMEOUT", "20"))
        if self.engine.last_output > began:
            return answer(True)
        if self._loop.time() - began < limit:
            self._loop.call_later(HEALTH_PAUSE, self._look, began, answer)
            return None
        clock = time.strftime("%H:%M:%S", time.localtime(time.time() - limit))
        self.log.server(
            f"Health check failed. Server couldn't get a response from detokenizer for last {limit:.0f} seconds. "
            f"tic start time: {clock}. last_heartbeat time: {clock}"
        )
        return answer(False)

    def info(self) -> dict[str, Any]:
        """/server_info: every argument, the key among them, and the scheduler's state."""
        shown = dict(startup.named(self.resolved))
        internal = {
            **shown,
            "last_gen_throughput": self.board.gen_throughput,
            "memory_usage": {
                "weight": self.resolved.weights_gb,
                "kvcache": self.resolved.kv_gb,
                "token_capacity": self.resolved.kv_tokens,
                "graph": 0,
            },
            "effective_max_running_requests_per_dp": self.engine.limits.max_running,
        }
        if release.at_least("0.5.20"):
            internal["decode_cuda_graph_bs"] = [
                one for one in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if one <= self.resolved.graph_max_bs
            ]
        return {
            **shown,
            "status": "ready",
            "max_total_num_tokens": self.resolved.kv_tokens,
            "max_req_input_len": self.resolved.context_length - 6,
            "internal_states": [internal],
            "version": release.version(),
            "standin": release.LABEL,
        }

    # Stop

    def stop(self, finished: asyncio.Event) -> None:
        """SIGTERM: finish what runs, then end.

        Before 0.5.14 the end is a SIGKILL to itself, so systemd calls a plain stop a failure.
        """
        if self.status == "stopping":
            return
        self.status = "stopping"
        self.log.server("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        self._loop.call_later(self.knobs.drain, self._drained, finished)

    def _drained(self, finished: asyncio.Event) -> None:
        left = [*self.engine.running, *self.engine.waiting]
        ids = [one.rid for one in left]
        self.log.server(
            f"Gracefully exiting... Remaining number of requests {len(left)}. Remaining requests remaining_rids={ids}."
        )
        if left and not self.engine._hung():
            self._loop.call_later(self.knobs.drain, self._drained, finished)
            return
        self._shown = -2
        self.engine.running.clear()
        self._tell()
        processes.end(self._children)
        if not release.at_least("0.5.14"):
            os.kill(os.getpid(), signal.SIGKILL)
        finished.set()


def _nobody_token(_request: Request, _piece: Piece) -> None:
    """A token that nobody reads."""
