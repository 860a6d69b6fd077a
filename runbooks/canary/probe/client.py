"""A small HTTP client for one server: whole and streamed completions, with a time-out on silence instead of on the
whole answer."""

from __future__ import annotations

import http.client
import json
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
    extras: dict[str, Any] = field(
        default_factory=dict
    )  # fields beyond OpenAI's own; dropped when the server refuses them

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
    """One chat completion. `limit` is the most seconds that the whole answer may take. Never raises."""
    reply = _complete(endpoint, {**request, **endpoint.extras}, limit)
    if reply.status in (400, 422) and endpoint.extras and not _too_long(reply.error):
        plain = _complete(endpoint, request, limit)
        if plain.status == 200:
            endpoint.extras = {}  # this server is strict about fields that it does not know
        return plain
    return reply


def _complete(endpoint: Endpoint, request: Mapping[str, Any], limit: float) -> Reply:
    reply = Reply(asked_logprobs=bool(request.get("logprobs")), max_tokens=request.get("max_tokens"))
    stream = bool(request.get("stream"))
    payload = json.dumps({"model": endpoint.model, **request}).encode()
    started = time.monotonic()
    body = _exchange(endpoint, "POST", "/v1/chat/completions", payload, reply, silence=endpoint.silence, limit=limit)
    reply.seconds = time.monotonic() - started
    if reply.status and body:
        read_body(reply, body, stream=stream)
    return reply


def _too_long(error: str) -> bool:
    return "context length" in error or "longer than" in error or "maximum" in error.lower()


def _exchange(
    endpoint: Endpoint, method: str, path: str, payload: bytes | None, reply: Reply, *, silence: float, limit: float
) -> bytes:
    where = urlsplit(endpoint.url)
    kind = http.client.HTTPSConnection if where.scheme == "https" else http.client.HTTPConnection
    connection = kind(where.hostname or "127.0.0.1", where.port, timeout=min(silence, limit))
    started = time.monotonic()
    body = b""
    try:
        connection.request(method, where.path.rstrip("/") + path, body=payload, headers=endpoint.headers())
        response = connection.getresponse()
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
        reply.whole = False
    finally:
        connection.close()
    return body
