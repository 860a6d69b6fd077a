"""From a parsed request to engine requests, and from their tokens to a response: chat, completions, /generate."""

from __future__ import annotations

import json
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from . import logprobs, shapes
from .engine import Finish, Request
from .shapes import Head
from .words import Piece


class Sink(Protocol):
    """The HTTP side of one response."""

    def whole(self, status: int, body: object) -> None: ...

    def begin(self) -> None: ...

    def chunk(self, text: str) -> None: ...

    def end(self) -> None: ...


class Options:
    """What a response needs to know beyond the requests."""

    def __init__(
        self, body: dict[str, Any], *, parsed: bool, cache_report: bool, failure: str, include_usage: bool
    ) -> None:
        wanted = body.get("stream_options") or {}
        self.stream = bool(body.get("stream"))
        self.include_usage = bool(wanted.get("include_usage", include_usage))
        self.each_usage = bool(wanted.get("continuous_usage_stats"))
        self.parsed = parsed
        self.cache_report = cache_report
        self.failure = failure


class Answer(ABC):
    """The requests of one response (n of each prompt) and what became of them."""

    def __init__(self, sink: Sink, head: Head, options: Options) -> None:
        self.sink, self.head, self.options = sink, head, options
        self.requests: list[Request] = []
        self.broken = False  # an error took the place of the rest: nothing more may be written
        self.pieces: dict[Request, list[Piece]] = {}

    def add(self, request: Request) -> None:
        self.requests.append(request)
        self.pieces[request] = []

    def finished(self) -> bool:
        return all(one.finish is not None for one in self.requests)

    def usage(self) -> dict[str, Any]:
        return shapes.usage(self.requests, self.head.dialect, cache_report=self.options.cache_report)

    def begin(self) -> None:
        if self.options.stream and not self.head.dialect.late_head:
            self.sink.begin()

    def token(self, request: Request, piece: Piece) -> None:
        self.pieces[request].append(piece)
        if self.options.stream and not self.broken:
            self.stream_token(request, piece)

    def finish(self, request: Request) -> None:
        if self.broken:
            return
        if self.options.stream:
            self.stream_finish(request)
        if not self.finished():
            return
        if not self.options.stream:
            self.whole()
            return
        if self.options.include_usage:
            self.sink.chunk(self.last_usage())
        if self.options.failure != "no_done":
            self.sink.chunk(shapes.DONE)
        self.sink.end()

    def broken_off(self, request: Request) -> bool:
        """The failure 'error_in_stream': at the eighth token an error object takes the place of the rest."""
        if self.options.failure != "error_in_stream" or len(self.pieces[request]) < 8:
            return False
        text = json.dumps(
            {
                "error": shapes.error(
                    "Internal error: the request was aborted by the scheduler", kind="InternalServerError", code=500
                )
            }
        )
        self.sink.chunk(f"data: {text}\n\n")
        self.sink.end()
        self.broken = True
        return True

    def aborted(self) -> Finish | None:
        return next((one.finish for one in self.requests if one.finish and one.finish.kind == "abort"), None)

    @abstractmethod
    def stream_token(self, request: Request, piece: Piece) -> None: ...

    @abstractmethod
    def stream_finish(self, request: Request) -> None: ...

    @abstractmethod
    def whole(self) -> None: ...

    @abstractmethod
    def last_usage(self) -> str: ...


class OpenAi(Answer):
    """What the two OpenAI endpoints have in common: the frame around the choices."""

    kind: str

    def whole(self) -> None:
        if finish := self.aborted():
            return self.sink.whole(500, shapes.error(finish.message, kind="InternalServerError", code=500))
        choices = [self._choice(index, request) for index, request in enumerate(self.requests)]
        return self.sink.whole(
            200,
            {
                "id": self.head.id,
                "object": self.kind,
                "created": self.head.created,
                "model": self.head.model,
                "choices": choices,
                "usage": self.usage(),
                "metadata": shapes.metadata(self.requests[0], self.head.dialect),
            },
        )

    def ending(self, request: Request) -> list[str]:
        """The token that ended a turn: it has a log probability, and no text."""
        return ["<|user|>"] if request.finish and request.finish.matched == request.eos else []

    @abstractmethod
    def _choice(self, index: int, request: Request) -> dict[str, Any]: ...


class Chat(OpenAi):
    """/v1/chat/completions."""

    kind = "chat.completion"

    def __init__(self, sink: Sink, head: Head, options: Options, *, top: int | None) -> None:
        super().__init__(sink, head, options)
        self._top = top
        self._frames: dict[tuple[Request, bool], tuple[str, str]] = {}

    def stream_token(self, request: Request, piece: Piece) -> None:
        index = self.requests.index(request)
        if len(self.pieces[request]) == 1:
            self.sink.chunk(shapes.chat_chunk(self._head(request), index, {"role": "assistant", "content": ""}))
        if self.broken_off(request):
            return
        key = "reasoning_content" if piece.reasoning else "content"
        if self._top is not None or self.options.each_usage:
            entry = self._logprobs(request, [piece], len(self.pieces[request]) - 1) if self._top is not None else None
            counted = self._each(request) if self.options.each_usage else None
            self.sink.chunk(
                shapes.chat_chunk(self._head(request), index, {key: piece.text}, logprobs=entry, usage=counted)
            )
            return
        frame = self._frames.get((request, piece.reasoning))
        if frame is None:
            frame = self._frames[request, piece.reasoning] = shapes.chat_frame(self._head(request), index, key)
        self.sink.chunk(f"{frame[0]}{shapes.quoted(piece.text)}{frame[1]}")

    def stream_finish(self, request: Request) -> None:
        index = self.requests.index(request)
        if not self.pieces[request]:
            self.sink.chunk(shapes.chat_chunk(self._head(request), index, {"role": "assistant", "content": ""}))
        self.sink.chunk(shapes.chat_chunk(self._head(request), index, {}, finish=request.finish))

    def last_usage(self) -> str:
        return shapes.chat_usage(self._head(self.requests[-1]), self.usage())

    def _choice(self, index: int, request: Request) -> dict[str, Any]:
        pieces = self.pieces[request]
        reasoning = "".join(one.text for one in pieces if one.reasoning)
        content = "".join(one.text for one in pieces if not one.reasoning)
        entries = None
        if self._top is not None:
            entries = self._logprobs(request, [*pieces, *map(Piece, self.ending(request))], 0)
        return shapes.chat_choice(
            index, request, content, reasoning, entries, self.head.dialect, parsed=self.options.parsed
        )

    def _logprobs(self, request: Request, pieces: list[Piece], start: int) -> dict[str, Any]:
        top = self._top or 0
        return {
            "content": [logprobs.chat(one.text, start + n, top, broken=request.broken) for n, one in enumerate(pieces)]
        }

    def _each(self, request: Request) -> dict[str, Any]:
        return shapes.usage([request], self.head.dialect, cache_report=self.options.cache_report)

    def _head(self, request: Request) -> Head:
        """With n > 1 every sequence streams under its own id."""
        return Head(request.rid, self.head.created, self.head.model, self.head.dialect)


class Text(OpenAi):
    """/v1/completions. The last token and the finish reason share an event, unless the end came without a token."""

    kind = "text_completion"

    def __init__(
        self, sink: Sink, head: Head, options: Options, *, top: int | None, echo: dict[Request, str] | None = None
    ) -> None:
        super().__init__(sink, head, options)
        self._top = top
        self.echo = echo if echo is not None else {}
        self._held: dict[Request, Piece] = {}

    def stream_token(self, request: Request, piece: Piece) -> None:
        if self.broken_off(request):
            return
        if len(request.ids) >= request.max_new:
            self._held[request] = piece  # goes out with the finish reason
            return
        self._send(request, piece.text, None)

    def stream_finish(self, request: Request) -> None:
        held = self._held.pop(request, None)
        self._send(request, held.text if held else "", request.finish)

    def _send(self, request: Request, text: str, finish: Finish | None) -> None:
        index, place = self.requests.index(request), len(self.pieces[request]) - 1
        if place == 0 and request in self.echo:
            text = self.echo[request] + text
        entry = (
            logprobs.legacy([(text, place)], self._top, broken=request.broken)
            if self._top is not None and text
            else None
        )
        counted = shapes.usage([request], self.head.dialect, cache_report=False) if self.options.each_usage else None
        self.sink.chunk(shapes.text_chunk(self.head, index, text, finish=finish, logprobs=entry, usage=counted))

    def last_usage(self) -> str:
        return shapes.text_usage(self.head, self.usage())

    def _choice(self, index: int, request: Request) -> dict[str, Any]:
        texts = [one.text for one in self.pieces[request]]
        entries = None
        if self._top is not None:
            read = re.findall(r"\s*\S+", self.echo.get(request, ""))
            shown = [*read, *texts, *self.ending(request)]
            entries = logprobs.legacy([(one, n) for n, one in enumerate(shown)], self._top, broken=request.broken)
            if read:
                entries["token_logprobs"][0] = entries["top_logprobs"][0] = None  # nothing stands before it
        text = self.echo.get(request, "") + "".join(texts)
        return {"index": index, "text": text, "logprobs": entries, **shapes.reason(request.finish)}


class Native(Answer):
    """/generate. Events hold the whole text so far."""

    def __init__(
        self, sink: Sink, head: Head, options: Options, *, top: int | None, batch: bool, retractions: str
    ) -> None:
        super().__init__(sink, head, options)
        self._top, self._batch, self._retractions = top, batch, retractions

    def stream_token(self, request: Request, piece: Piece) -> None:
        if not self.broken_off(request) and len(request.ids) < request.max_new:
            self.sink.chunk(shapes.event(self._body(request)))

    def stream_finish(self, request: Request) -> None:
        self.sink.chunk(shapes.event(self._body(request)))

    def whole(self) -> None:
        bodies = [self._body(one) for one in self.requests]
        self.sink.whole(200, bodies if self._batch else bodies[0])

    def last_usage(self) -> str:
        raise AssertionError("/generate has no usage event")

    def _body(self, request: Request) -> dict[str, Any]:
        texts = [one.text for one in self.pieces[request]]
        meta: dict[str, Any] = {
            "id": request.rid,
            "finish_reason": _native_reason(request),
            "prompt_tokens": len(request.prompt),
            "weight_version": "default",
            self._retractions: 0,
            "queue_time": (request.started or request.arrived) - request.arrived,
        }
        if self._top is not None:
            meta.update(logprobs.native(request, texts, self._top))
        meta |= {
            "reasoning_tokens": request.reasoning,
            "completion_tokens": len(request.ids),
            "cached_tokens": request.cached,
        }
        meta |= {
            "cached_tokens_details": {"device": request.cached, "host": 0} if request.cached else None,
            "dp_rank": None,
        }
        if request.ended is not None:
            meta |= {"e2e_latency": request.ended - request.arrived, "response_sent_to_client_ts": time.time()}
        return {"text": "".join(texts), "output_ids": list(request.ids), "meta_info": meta}


def _native_reason(request: Request) -> dict[str, Any] | None:
    finish = request.finish
    if finish is None:
        return None
    if finish.kind == "length":
        return {"type": "length", "length": len(request.ids)}
    if finish.kind == "stop":
        return {"type": "stop", "matched": finish.matched}
    return {"type": "abort", "message": finish.message, "status_code": None, "err_type": None}


def new_id() -> str:
    return uuid.uuid4().hex


Maker = Callable[[Sink], Answer]
