"""Small servers that answer as engines other than SGLang do: what they leave out, name otherwise, or refuse.

Each shape is a function from the request and the answer's text to HTTP; field names and error texts are those of the
engines' own documentation and sources (vLLM, llama.cpp's server, TGI, Ollama, OpenAI, Mistral), shortened.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.canary.loopback import Loopback

Body = dict[str, Any]
Http = tuple[int, str, str]  # status, content type, body
Shape = Callable[[Body, str], Http | None]

JSON, SSE, HTML = "application/json", "text/event-stream", "text/html"


def pieces(body: Body, text: str) -> list[str]:
    most = body.get("max_tokens") or body.get("max_completion_tokens") or 10_000
    words = text.split(" ")
    return [word if at == 0 else f" {word}" for at, word in enumerate(words)][:most]


def error(status: int, message: str, **more: object) -> Http:
    return status, JSON, json.dumps({"error": {"message": message, **more}})


def events(documents: Iterable[Any], *, done: bool = True, gap: str = "data: ", end: str = "\n\n") -> Http:
    lines = [f"{gap}{json.dumps(document, ensure_ascii=False)}{end}" for document in documents]
    return 200, SSE, "".join([*lines, f"{gap}[DONE]{end}"] if done else lines)


def deltas(body: Body, text: str, name: str = "content", **more: Any) -> list[Body]:
    return [{"choices": [{"index": 0, "delta": {name: piece, **more}}]} for piece in pieces(body, text)]


STOP: Body = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def usage(body: Body, text: str) -> Body:
    asked = len(body["messages"][-1]["content"].split()) + 6
    return {"choices": [], "usage": {"prompt_tokens": asked, "completion_tokens": len(pieces(body, text))}}


def vllm(body: Body, text: str) -> Http:
    return events([*deltas(body, text, reasoning=None), STOP, usage(body, text)])


def llama_cpp(body: Body, text: str) -> Http:
    last = {**STOP, "timings": {"predicted_n": 3}, **{"usage": usage(body, text)["usage"]}}
    return events([*deltas(body, text), last])


def tgi(body: Body, text: str) -> Http:
    unknown = body.keys() - {"model", "messages", "max_tokens", "stream", "temperature", "top_p", "logprobs"}
    if unknown:
        return 422, "text/plain", f"Failed to deserialize the JSON body: unknown field `{min(unknown)}` at line 1"
    return events([*deltas(body, text), STOP], gap="data:")


def ollama(body: Body, text: str) -> Http:
    if body["model"] != "llama3:8b":
        return error(404, f"model '{body['model']}' not found", type="api_error")
    return events([*deltas(body, text, role="assistant"), STOP])


def openai(body: Body, text: str) -> Http:
    if "chat_template_kwargs" in body:
        return error(400, "Unrecognized request argument supplied: chat_template_kwargs", param=None)
    if "max_tokens" in body:
        wanted = "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        return error(400, f"Unsupported parameter: {wanted}", param="max_tokens", code="unsupported_parameter")
    return events([*deltas(body, text, refusal=None), STOP, usage(body, text)])


def no_logprobs(body: Body, text: str) -> Http:
    if body.get("logprobs"):
        return error(400, "This model does not support logprobs.")
    return vllm(body, text)


def says_little(body: Body, text: str) -> Http:
    """Refuses, and does not say what."""
    if "top_logprobs" in body or "stream_options" in body:
        return error(400, "Invalid request: extra fields not permitted")
    return vllm(body, text)


def in_one_piece(body: Body, text: str) -> Http:
    """Whatever `stream` says."""
    message = {"role": "assistant", "content": "".join(pieces(body, text))}
    whole = {
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        **{"usage": usage(body, text)["usage"]},
    }
    return 200, JSON, json.dumps(whole)


def mistral(body: Body, text: str) -> Http:
    parts = [{"type": "text", "text": piece} for piece in pieces(body, text)]
    return events([*({"choices": [{"delta": {"content": [part]}}]} for part in parts), STOP, usage(body, text)])


def router(body: Body, text: str) -> Http:
    """Comments that keep the connection alive, carriage returns, and a line separator inside a text."""
    status, kind, lines = events([*deltas(body, text.replace(". ", ".\u2028 ")), STOP], end="\r\n\r\n")
    return status, kind, ": PROCESSING\r\n\r\n" + lines


def thinks(body: Body, text: str) -> Http:
    """Cannot be told not to think: short answers end inside the thought."""
    thought = f"The user asks something, so let me see what is right here. I would say: {text}"
    room = {**body, "max_tokens": max(0, body["max_tokens"] - len(pieces(body, thought)))}
    after = deltas(room, text) if room["max_tokens"] else []
    end: Body = {"choices": [{"delta": {}, "finish_reason": "length" if len(after) < len(text.split(" ")) else "stop"}]}
    return events([*deltas(body, thought, "reasoning"), *after, end, usage(body, text)])


def thinks_aloud(body: Body, text: str) -> Http:
    """The same without a reasoning parser."""
    whole = f"<think>\nOkay, the question is simple.\n</think>\n\n{text}"
    cut = pieces(body, whole)
    end: Body = {"choices": [{"delta": {}, "finish_reason": "length" if len(cut) < len(whole.split(" ")) else "stop"}]}
    return events([*deltas(body, whole), end, usage(body, text)])


def thinks_unannounced(body: Body, text: str) -> Http:
    """Its template opens the thought, so that no tag is seen until the thought ends."""
    whole = (
        f"Okay, the user asks something that I know well, so let me think about how to put it best.\n</think>\n\n{text}"
    )
    return _cut(body, whole, text)


def wordy(body: Body, text: str) -> Http:
    """Polite before it is helpful."""
    polite = "That is a very good question, and I am glad that you asked me, for it is one of those that people like. "
    return _cut(body, polite * 2 + text, text)


def _cut(body: Body, whole: str, text: str) -> Http:
    ended = len(pieces(body, whole)) == len(whole.split(" "))
    end = STOP if ended else {"choices": [{"delta": {}, "finish_reason": "length"}]}
    return events([*deltas(body, whole), end, usage(body, text)])


def short_context(body: Body, text: str) -> Http:
    """Of a longer prompt it reads the end, and says nothing of that but the count."""
    asked = body["messages"][-1]["content"].split()
    if len(asked) > 1000:
        text = "I do not see a number there, but the harbour and the old lamp are described."
    counted = usage(body, text)
    counted["usage"]["prompt_tokens"] = min(len(asked) + 6, 1000)
    return events([*deltas(body, text), STOP, counted])


SHAPES: Mapping[str, Shape] = {
    shape.__name__: shape
    for shape in (
        vllm, llama_cpp, tgi, ollama, openai, no_logprobs, says_little, in_one_piece, mistral, router, thinks,
        thinks_aloud, thinks_unannounced, wordy, short_context,
    )
}  # fmt: skip


@dataclass
class Engine(Loopback):
    """A server of one shape. `models`: what /v1/models lists; `slots`: requests at once, the others wait. `pages` are
    answers to GET, by path; `weigh` to /v1/completions. A shape that answers None drops the connection."""

    shape: Shape
    answer: Callable[[Body], str]
    models: tuple[str, ...] = ("glm-5",)
    slots: int = 1000
    pages: Mapping[str, Http] = field(default_factory=dict)
    weigh: Callable[[Body], Http] = lambda _body: error(404, "Not Found")  # most of them do not weigh a prompt
    asked: list[Body] = field(default_factory=list)

    def __enter__(self) -> Engine:
        outer, room = self, threading.Semaphore(self.slots)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_args: object) -> None: ...

            def do_GET(self) -> None:
                models = json.dumps({"object": "list", "data": [{"id": name} for name in outer.models]})
                known: Mapping[str, Http] = {"/v1/models": (200, JSON, models), **outer.pages}
                self._send(*known.get(self.path, (404, "text/plain", "404 page not found")))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if "messages" not in body:
                    self._send(*outer.weigh(body))
                    return
                outer.asked.append(body)
                with room:
                    said = outer.shape(body, outer.answer(body))
                if said is None:
                    self.close_connection = True
                else:
                    self._send(*said)

            def _send(self, status: int, kind: str, text: str) -> None:
                raw = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                with suppress(BrokenPipeError, ConnectionResetError):  # whoever asked may have lost patience
                    self.wfile.write(raw)

        self.listen(Handler)
        return self
