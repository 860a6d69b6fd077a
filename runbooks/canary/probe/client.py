"""A small HTTP client for one server: whole and streamed completions, with a time-out on silence instead of on the
whole answer."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from .reply import Reply, read_body

LARGEST_BODY = 16 << 20  # bytes; a server that answers more is not answering a canary


@dataclass
class Endpoint:
    """Where the server is, and how it is spoken to. `silence` is the longest wait for the next byte, in seconds."""

    url: str
    model: str
    key: str | None = None
    silence: float = 30.0
    extras: dict[str, Any] = field(default_factory=dict)  # fields beyond OpenAI's own
    refused: set[str] = field(default_factory=set)  # fields that this server does not take, as it said itself

    def headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Connection": "close"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        return headers


def get(endpoint: Endpoint, path: str, *, timeout: float = 5.0) -> tuple[int, bytes]:
    """Status and body; status 0 and the reason where there is none."""
    reply = Reply()
    body = _exchange(endpoint, "GET", path, None, reply, silence=timeout, limit=timeout)
    return (0, reply.failure.encode()) if reply.failure else (reply.status, body)


def complete(endpoint: Endpoint, request: Mapping[str, Any], *, limit: float) -> Reply:
    """One chat completion. `limit` is the most seconds that the whole answer may take. Never raises.

    A field that the server refuses is left out from then on, in this and every later request: how strict a server is
    says nothing about its numbers. One that asks for patience (429) gets it, twice.
    """
    patience = 2
    while True:
        body = {name: value for name, value in {**request, **endpoint.extras}.items() if name not in endpoint.refused}
        if "max_tokens" in endpoint.refused:
            body["max_completion_tokens"] = request.get("max_tokens")
        reply = _complete(endpoint, body, limit)
        if reply.speaks_of_nan:
            return reply  # asked without logprobs it would hide that again
        if reply.status == 429 and patience:
            patience -= 1
            time.sleep(1.5)
        elif reply.status in (400, 422) and not reply.too_long and (left_out := _refused(reply.error, body, endpoint)):
            endpoint.refused |= left_out
        else:
            return reply


def weigh(endpoint: Endpoint, text: str, *, limit: float) -> Reply:
    """A text's own tokens with their logprobs, and one token more, by /v1/completions. Never raises; a server may well
    not have it."""
    request = {"prompt": text, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    request |= {name: value for name, value in endpoint.extras.items() if name == "priority"}
    body = {name: value for name, value in request.items() if name not in endpoint.refused}
    return _complete(endpoint, body, limit, "/v1/completions")


OPTIONAL = ("chat_template_kwargs", "priority", "stream_options", "top_logprobs", "logprobs", "top_p", "temperature")
"""What may be left out, in the order in which it is given up where the server does not say what it minds."""
_UNKNOWN = re.compile(
    r"unknown|unexpected|unrecognized|unsupported|not (?:support|permit|allow|implement)"
    r"|extra (?:input|field|forbidden)|additional propert|invalid (?:param|field|key|request)"
    r"|validation|deserializ|cannot be used",
    re.IGNORECASE,
)


def _refused(error: str, body: Mapping[str, Any], endpoint: Endpoint) -> set[str]:
    """Which fields of the request the server minds; none where its words are about something else."""
    named = {name for name in OPTIONAL if name in body and re.search(rf"\b{name}\b", error)}
    if "max_completion_tokens" in error and "max_tokens" in body:
        named.add("max_tokens")
    if "logprob" in error.lower():
        named |= {"logprobs", "top_logprobs"} & body.keys()
    if named:
        return named
    extras = {name for name in endpoint.extras if name in body}
    if extras:
        return extras
    if not _UNKNOWN.search(error):
        return set()  # a 400 that is about something else: with logprobs, it may be NaN that met the encoder
    return set(next(((name,) for name in OPTIONAL if name in body), ()))


def _complete(
    endpoint: Endpoint, request: Mapping[str, Any], limit: float, path: str = "/v1/chat/completions"
) -> Reply:
    reply = Reply(asked_logprobs=bool(request.get("logprobs")), max_tokens=request.get("max_tokens"))
    reply.echoed = bool(request.get("echo"))
    stream = bool(request.get("stream"))
    payload = json.dumps({"model": endpoint.model, **request}).encode()
    started = time.monotonic()
    body = _exchange(endpoint, "POST", path, payload, reply, silence=endpoint.silence, limit=limit)
    reply.seconds = time.monotonic() - started
    if reply.status and body:
        read_body(reply, body, stream=stream)
    return reply


def _exchange(
    endpoint: Endpoint, method: str, path: str, payload: bytes | None, reply: Reply, *, silence: float, limit: float
) -> bytes:
    where = urlsplit(endpoint.url)
    kind = http.client.HTTPSConnection if where.scheme == "https" else http.client.HTTPConnection
    connection = kind(where.hostname or "127.0.0.1", where.port, timeout=min(silence, limit))
    started = time.monotonic()
    body = b""
    late = threading.Event()

    def shut() -> None:
        """A head that comes in drops: each of them begins the socket's own time-out anew."""
        late.set()
        if connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    watch = threading.Timer(limit, shut)
    watch.daemon = True
    watch.start()
    try:
        try:
            connection.request(method, where.path.rstrip("/") + path, body=payload, headers=endpoint.headers())
            response = connection.getresponse()
        finally:
            watch.cancel()
        if late.is_set():
            raise TimeoutError
        reply.status = response.status
        while len(body) < LARGEST_BODY:
            # read1 notices a chunked body that ends early (IncompleteRead); readline would take it for the end.
            part = response.read1(65536)
            if not part:
                break
            if reply.first_byte is None:
                reply.first_byte = time.monotonic() - started
            body += part
            left = limit - (time.monotonic() - started)
            if left <= 0:
                raise TimeoutError
            if connection.sock is not None:
                connection.sock.settimeout(min(silence, left))
    except ConnectionRefusedError:
        reply.failure = "refused"
    except TimeoutError:
        reply.failure = "slow" if time.monotonic() - started >= limit and body else "silent"
    except http.client.IncompleteRead as cut:
        body += cut.partial
        reply.whole = False
        reply.failure = "dropped"
    except (OSError, http.client.HTTPException, ValueError) as error:
        # "Remote end closed connection without response", a reset, or bytes that are not HTTP
        reply.failure = "dropped" if isinstance(error, (OSError, http.client.RemoteDisconnected)) else "unreadable"
        if late.is_set():
            reply.failure = "silent"
        reply.error = f"no HTTP: {error}"[:120] if reply.failure == "unreadable" else ""
        reply.whole = False
    finally:
        connection.close()
    return body
