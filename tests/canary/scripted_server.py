"""A small OpenAI-compatible server for tests, whose answers are a function of the request."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.canary.loopback import Loopback

STORY = (
    "The keeper of the old light walked to the harbour before dawn, and the wind had not yet taken the letter that lay "
    "on the bench. He read it twice and put it in his coat, for it was not his to answer."
)


@dataclass
class Asked:
    """What one request asked, in the terms of the battery. Lengths in words, which stand for tokens here."""

    text: str
    length: int
    number: int
    greedy: bool
    logprobs: bool
    together: int
    cached: bool
    body: dict[str, Any]
    key: str
    before: list[Asked] = field(default_factory=list)  # every request until now, in order

    @property
    def tokens(self) -> int:
        """Of the prompt, as this server counts them: its template costs six."""
        return self.length + 6


def healthy(asked: Asked) -> str:
    return right_answer(asked.text)


def right_answer(text: str) -> str:
    tail = text[:100] + text[-200:]
    if "2+2" in tail:
        return "2+2 equals 4."
    if "secret number" in tail:
        return "7413"
    if "1 to 20" in tail:
        return ", ".join(str(n) for n in range(1, 21))
    if "1 to 5" in tail:
        return "1, 2, 3, 4, 5."
    if "sky" in tail:
        return "The sky is blue."
    if "primes" in tail or "prime numbers" in tail:
        return STORY + " There are 21 of them."
    return "The capital of France is Paris." if "capital" in tail else STORY


Answer = Callable[[Asked], str | None]  # None: the connection is dropped without an answer


@dataclass
class Scripted(Loopback):
    """Use as a context manager. `status` is what /health says; `metrics` the text of /metrics (empty: 404)."""

    answer: Answer = healthy
    status: int = 200
    metrics: str = ""
    done: bool = True
    strict: bool = False  # refuses fields that OpenAI does not know
    seen: list[Asked] = field(default_factory=list)
    running: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Scripted:
        outer = self

        class Handler(_Handler):
            script = outer

        self.listen(Handler)
        return self

    def take(self, body: dict[str, Any], key: str) -> Asked:
        text = body["prompt"] if "prompt" in body else body["messages"][-1]["content"]
        with self.lock:
            cached = len(text) > 1000 and any(before.text[:900] == text[:900] for before in self.seen)
            asked = Asked(
                text=text,
                length=len(text.split()),
                number=len(self.seen),
                greedy=not body.get("temperature"),
                logprobs=bool(body.get("logprobs")),
                together=self.running,
                cached=cached,
                body=body,
                key=key,
                before=list(self.seen),
            )
            self.seen.append(asked)
        return asked


class _Handler(BaseHTTPRequestHandler):
    script: Scripted
    protocol_version = "HTTP/1.1"

    def log_message(self, *_args: object) -> None: ...

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._json(200, {"data": [{"id": "glm-5", "max_model_len": 100000}]})
        elif self.path == "/health":
            self._send(self.script.status, b"")
        elif self.path == "/metrics" and self.script.metrics:
            self._send(200, self.script.metrics.encode())
        else:
            self._json(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.script.strict and "chat_template_kwargs" in body:
            self._json(422, {"detail": "Unexpected keys in the request: chat_template_kwargs"})
            return
        with self.script.lock:
            self.script.running += 1
        barrier(self.script)
        text = self.script.answer(self.script.take(body, self.headers.get("Authorization", "")))
        with self.script.lock:
            self.script.running -= 1
        if text is None:
            self.close_connection = True
            return
        if "prompt" in body:
            self._echo(body["prompt"], text)
        else:
            self._stream(body, text)

    def _echo(self, prompt: str, text: str) -> None:
        """The prompt and one token, each with its logprob, but for the first."""
        pieces = [*prompt.split(), text.split()[0]]
        values = [
            None,
            *(entry["content"][0]["logprob"] for piece in pieces[1:] if (entry := _logprobs(_WEIGHED, piece))),
        ]
        logprobs = {"tokens": pieces, "token_logprobs": values}
        usage = {"prompt_tokens": len(pieces) - 1, "completion_tokens": 1}
        choice = {"text": " ".join(pieces), "finish_reason": "length", "logprobs": logprobs}
        self._json(200, {"choices": [choice], "usage": usage})

    def _stream(self, body: dict[str, Any], text: str) -> None:
        asked = len(body["messages"][-1]["content"].split())
        words = text.split(" ")
        pieces = [word if at == 0 else f" {word}" for at, word in enumerate(words)]
        cut = pieces[: body["max_tokens"]]
        events: list[Any] = [
            {"choices": [{"delta": {"content": piece}, "logprobs": _logprobs(body, piece)}]} for piece in cut
        ]
        events.append({"choices": [{"delta": {}, "finish_reason": "length" if len(cut) < len(pieces) else "stop"}]})
        events.append({"choices": [], "usage": {"prompt_tokens": asked + 6, "completion_tokens": len(cut)}})
        lines = [f"data: {json.dumps(event)}\n\n" for event in events] + (
            ["data: [DONE]\n\n"] if self.script.done else []
        )
        self._send(200, "".join(lines).encode())

    def _json(self, status: int, document: Any) -> None:
        self._send(status, json.dumps(document).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


_WEIGHED = {"logprobs": True}


def barrier(script: Scripted) -> None:
    """Give the other requests of a burst a moment to arrive, so that `together` counts them."""
    event = threading.Event()
    event.wait(0.01)


def _logprobs(body: dict[str, Any], piece: str) -> Any:
    if not body.get("logprobs"):
        return None
    value = None if piece.strip() == "ca" else -0.1 - len(piece) / 50
    return {"content": [{"token": piece, "logprob": value, "top_logprobs": [{"token": "x", "logprob": -3.0}]}]}
