"""Just enough HTTP/1.1 for an OpenAI server, with uvicorn's headers: keep-alive, whole bodies in, whole or chunked
bodies out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus

from .shapes import compact

HEAD_LIMIT = 64 << 10
BODY_LIMIT = 64 << 20


@dataclass(frozen=True)
class Call:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    peer: str


class Connection(asyncio.Protocol):
    """One client connection; requests are answered one after the other."""

    def __init__(self, handle: Callable[[Call, Connection], None], log: Callable[[str], None]) -> None:
        self._handle, self._log = handle, log
        self._buffer = bytearray()
        self._call: Call | None = None
        self._close_after = self._streaming = False
        self.on_gone: Callable[[], None] | None = None  # the client left before the response was complete
        self.on_done: Callable[[], None] | None = None
        self.on_status: Callable[[int], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        host, port = transport.get_extra_info("peername")[:2]
        self._peer = f"{host}:{port}"
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._call is not None:
            if self.on_gone:
                self.on_gone()
            self._forget()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._call is None:
            self._next()

    def _next(self) -> None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > HEAD_LIMIT:
                self._transport.close()
            return
        first, *rest = self._buffer[:end].decode("latin-1").split("\r\n")
        headers = {key.strip().lower(): value.strip() for key, _, value in (line.partition(":") for line in rest)}
        length = int(headers.get("content-length") or 0)
        if headers.get("expect", "").lower() == "100-continue" and len(self._buffer) == end + 4:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if len(self._buffer) < end + 4 + length:
            if length > BODY_LIMIT:
                self._transport.close()
            return
        body = bytes(self._buffer[end + 4 : end + 4 + length])
        del self._buffer[: end + 4 + length]
        method, target, *_ = [*first.split(" "), "", ""]
        self._close_after = headers.get("connection", "").lower() == "close"
        self._call = Call(method, target.partition("?")[0], headers, body, self._peer)
        self._handle(self._call, self)

    def whole(
        self, status: int, body: object, *, kind: str = "application/json", vary: bool = True, allow: str | None = None
    ) -> None:
        """A complete response.

        `body` is JSON unless it is bytes; b"" has no content type, as Starlette's empty Response.
        """
        data = body if isinstance(body, bytes) else compact(body).encode()
        lines = [f"allow: {allow}"] if allow else []
        lines.append(f"content-length: {len(data)}")
        if data and kind:
            lines.append(f"content-type: {kind}")
        shown = b"" if self._call and self._call.method == "HEAD" else data
        self._write(self._head(status, lines, vary=vary) + shown)
        self._done()

    def chunked(self, status: int, body: bytes, kind: str) -> None:
        """A complete response in one chunk, as the mounted metrics application sends it."""
        self._write(self._head(status, [f"Content-Type: {kind}"], chunked=True))
        self._write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        self._done()

    def begin(self) -> None:
        self._streaming = True
        self._write(self._head(200, ["content-type: text/event-stream; charset=utf-8"], chunked=True))

    def chunk(self, text: str) -> None:
        if not self._streaming:
            self.begin()
        data = text.encode()
        self._write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        self._write(b"0\r\n\r\n")
        self._done()

    def drop(self) -> None:
        """Cut the connection without a word."""
        self._transport.abort()

    def _head(self, status: int, lines: list[str], *, vary: bool = True, chunked: bool = False) -> bytes:
        assert self._call is not None
        phrase = HTTPStatus(status).phrase
        self._log(f'INFO:     {self._call.peer} - "{self._call.method} {self._call.path} HTTP/1.1" {status} {phrase}')
        if self.on_status:
            self.on_status(status)
        head = [f"HTTP/1.1 {status} {phrase}", f"date: {formatdate(usegmt=True)}", "server: uvicorn", *lines]
        head += ["vary: Origin"] if vary else []
        head += ["Transfer-Encoding: chunked"] if chunked else []
        head += ["Connection: close"] if self._close_after else []
        return ("\r\n".join(head) + "\r\n\r\n").encode()

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def _done(self) -> None:
        self._forget()
        if self._close_after:
            self._transport.close()
        elif self._buffer:
            self._next()

    def _forget(self) -> None:
        if self.on_done:
            self.on_done()
        self.on_gone = self.on_done = self.on_status = None
        self._call, self._streaming = None, False
