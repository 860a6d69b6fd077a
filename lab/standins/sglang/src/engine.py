"""The scheduler: one forward pass after the other, prefill before decode, every running stream one token a step.

No thread and no clock of its own: `advance(now)` does all that is due by `now` and says when to come back. So a
test can run hours of serving in no time, with an exact count of steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from .prefix import PrefixCache
from .speed import Speed
from .words import NAN_TOKEN, Piece, token_id

STILL = 0.25  # seconds by which the engine may be late before it stops to catch up
LONG = 2048  # tokens; above GLM-5's index_topk sparse attention takes over from dense


class Death(Exception):
    """The scheduler process dies; the text is the cause, as in death.py."""


@dataclass(frozen=True)
class Finish:
    """Why a request ended. `kind`: stop, length or abort."""

    kind: str
    matched: str | int | None = None
    message: str = ""


@dataclass(eq=False)
class Request:
    """One sequence. Times are those of the engine's clock, in seconds."""

    rid: str
    prompt: tuple[int, ...]
    max_new: int
    script: Iterator[Piece]
    eos: int
    on_token: Callable[[Request, Piece], None]
    on_finish: Callable[[Request], None]
    sampled: bool = False  # temperature above 0 and top_p below 1: the path that asserts on NaN
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    counted: bool = True  # health checks are not
    streaming: bool = False
    arrived: float = 0.0
    started: float | None = None
    first: float | None = None
    last: float = 0.0
    ended: float | None = None
    cached: int = 0
    ids: list[int] = field(default_factory=list)
    text: str = ""
    reasoning: int = 0
    finish: Finish | None = None
    broken: bool = False  # its logits are NaN

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.ids)


@dataclass(frozen=True)
class Pass:
    """A forward pass on the way."""

    kind: str  # prefill or decode
    requests: tuple[Request, ...]
    ends: float
    new_tokens: int
    cached_tokens: int = 0


@dataclass
class Limits:
    max_running: int
    max_tokens: int  # of the KV cache
    max_prefill: int


@dataclass
class Totals:
    """What happened so far; the source of /metrics."""

    prefill_passes: int = 0
    decode_passes: int = 0
    graphed_passes: int = 0
    prefill_tokens: int = 0
    cached_tokens: int = 0
    decode_tokens: int = 0
    aborted: int = 0


class Engine:
    def __init__(
        self,
        speed: Speed,
        limits: Limits,
        cache: PrefixCache,
        *,
        failure: str = "",
        detail: int | str | None = None,
        on_pass: Callable[[Pass, Engine], None] = lambda _done, _engine: None,
    ) -> None:
        self.speed, self.limits, self.cache = speed, limits, cache
        self.failure, self._detail = failure, detail
        self._on_pass = on_pass
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.totals = Totals()
        self.started = 0  # requests that got their first token
        self.used = 0  # tokens reserved in the KV cache
        self.last_output = 0.0  # when the last token came: what a health check looks at
        self._pass: Pass | None = None

    def submit(self, request: Request, now: float) -> None:
        request.arrived = now
        self.waiting.append(request)

    def abort(self, rid: str, now: float, *, message: str = "Abort in waiting queue") -> None:
        """End every request whose id begins with `rid` ('' for all), as /abort_request does."""
        for request in [one for one in (*self.running, *self.waiting) if one.rid.startswith(rid)]:
            if request in self.waiting:
                self.waiting.remove(request)
            self.totals.aborted += 1
            self._end(request, Finish("abort", message=message), now)

    def advance(self, now: float) -> float | None:
        """Deliver every pass that ended by `now` and start the next ones.

        When to come back, None: when there is a new request.
        """
        while True:
            if self._pass is None:
                self._pass = self._next(now)
            if self._pass is None or self._pass.ends > now:
                return self._pass.ends if self._pass else None
            done, self._pass = self._pass, None
            # The next pass starts where this one ended, not when the loop noticed: the speed is the model's,
            # not this machine's.
            at = done.ends if now - done.ends < STILL else now
            self._deliver(done, at)
            self._pass = self._next(at)

    def _next(self, now: float) -> Pass | None:
        if self._hung():
            return None
        return self._prefill(now) or self._decode(now)

    def _hung(self) -> bool:
        return self.failure == "hang_after" and self.started >= int(self._detail or 4)

    def _prefill(self, now: float) -> Pass | None:
        batch: list[Request] = []
        fresh = cached = 0
        while self.waiting and len(self.running) + len(batch) < self.limits.max_running:
            request = self.waiting[0]
            hit = self.cache.match(request.prompt)
            need = len(request.prompt) + request.max_new
            new = len(request.prompt) - hit
            if (batch and fresh + new > self.limits.max_prefill) or (
                self.used and self.used + need > self.limits.max_tokens
            ):
                break
            self.waiting.popleft()
            request.cached, request.started = hit, now
            self.used += need
            fresh, cached = fresh + new, cached + hit
            batch.append(request)
        if not batch:
            return None
        return Pass("prefill", tuple(batch), now + self.speed.prefill(fresh), fresh, cached)

    def _decode(self, now: float) -> Pass | None:
        if not self.running:
            return None
        streams = len(self.running)
        return Pass("decode", tuple(self.running), now + self.speed.decode(streams), streams)

    def _deliver(self, done: Pass, now: float) -> None:
        totals = self.totals
        if done.kind == "prefill":
            totals.prefill_passes += 1
            totals.prefill_tokens += done.new_tokens
            totals.cached_tokens += done.cached_tokens
            for request in done.requests:
                self.cache.insert(request.prompt)
                if request.finish is None:
                    self.started += request.counted
                    self.running.append(request)
        else:
            totals.decode_passes += 1
            totals.graphed_passes += self.speed.graphed(done.new_tokens)
            totals.decode_tokens += done.new_tokens
        self._on_pass(done, self)
        self.last_output = now
        for request in done.requests:
            if request.finish is None:
                self._token(request, now)

    def _token(self, request: Request, now: float) -> None:
        if request.first is None:
            request.first = now
            self._sicken(request)
        request.last = now
        if request.max_new == 0:
            return self._end(request, Finish("length"), now)
        if request.broken:
            if request.sampled:
                raise Death("nan")
            piece: Piece | None = Piece(NAN_TOKEN)
        else:
            piece = next(request.script, None)
        if self.failure == "nan_stop" and request.counted:
            return self._end(request, Finish("stop", "NaN happened"), now)
        if piece is None:
            request.ids.append(request.eos)
            return self._end(request, Finish("stop", request.eos), now)
        return self._accept(request, piece, now)

    def _accept(self, request: Request, piece: Piece, now: float) -> None:
        request.ids.append(token_id(piece.text))
        request.reasoning += piece.reasoning
        before, request.text = request.text, request.text + piece.text
        for stop in request.stop:
            found = request.text.find(stop, max(len(before) - len(stop), 0))
            if found >= 0:
                request.text = request.text[:found]
                if left := request.text[len(before) :]:
                    request.on_token(request, Piece(left, piece.reasoning))
                return self._end(request, Finish("stop", stop), now)
        request.on_token(request, piece)
        if request.ids[-1] in request.stop_ids:
            return self._end(request, Finish("stop", request.ids[-1]), now)
        if len(request.ids) >= request.max_new or (self.failure == "one_token" and request.counted):
            return self._end(request, Finish("length" if len(request.ids) >= request.max_new else "stop", None), now)
        return None

    def _sicken(self, request: Request) -> None:
        """Decide at the first token what the failure mode does to this request."""
        if self.failure == "crash_after" and self.started > int(self._detail or 4):
            raise Death("cuda")
        busy = len(self.running) > int(self._detail or 32) if self.failure == "nan_busy" else False
        long = self.failure == "nan_long" and len(request.prompt) > LONG
        request.broken = request.counted and (self.failure == "nan" or long or busy)

    def _end(self, request: Request, finish: Finish, now: float) -> None:
        request.finish, request.ended = finish, now
        if request in self.running:
            self.running.remove(request)
        if request.started is not None:
            self.used -= len(request.prompt) + request.max_new
        request.on_finish(request)
