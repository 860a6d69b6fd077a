"""HTTP/1.1 and server-sent events as bytes: what is sent, and how an answer is cut into events afterwards."""

from __future__ import annotations

import json
import socket
import ssl
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

HEAD = 65536  # bytes that a head may have
Prompt = str | list[int]  # text, or token ids

APIS = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "generate": "/generate"}


@lru_cache(maxsize=1)
def trusted() -> ssl.SSLContext:
    """Certificates are checked against the system's CAs, or those of $SSL_CERT_FILE; there is no way around it."""
    return ssl.create_default_context()


@dataclass(frozen=True)
class Target:
    """A server, as `http[s]://host:port[/prefix]`."""

    host: str
    port: int
    tls: bool
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Target:
        """Raises ValueError, in words that show no password."""
        if not url.isprintable() or " " in url:
            raise ValueError(f"url: {url[:80]!a} holds a space or a control character")
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            host, port = (parts.hostname or "").encode("idna").decode(), parts.port
        except ValueError as error:  # brackets, a port, a name that is too long
            raise ValueError(f"url: not an http(s) address: {error}") from None
        if "@" in parts.netloc:
            raise ValueError("url: a user or a password in it would be seen by others; a key goes by $RUNBOOKS_API_KEY")
        if parts.scheme not in ("http", "https") or not host or port == 0:
            raise ValueError(f"url: not an http(s) address: {url[:80]}")
        if parts.query or parts.fragment or not parts.path.isascii():
            raise ValueError(f"url: only http[s]://HOST[:PORT][/PREFIX] can be asked, not {url[:80]!a}")
        tls = parts.scheme == "https"
        return cls(host, port or (443 if tls else 80), tls, parts.path.rstrip("/").removesuffix("/v1"))

    @property
    def authority(self) -> str:
        """For the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def connect(self, timeout: float) -> socket.socket:
        """A connected, non-blocking socket without Nagle's delay."""
        sock = socket.create_connection((self.host, self.port), timeout=timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.tls:
            sock = trusted().wrap_socket(sock, server_hostname=self.host)
        sock.setblocking(False)
        return sock


@dataclass(frozen=True)
class Shape:
    """What every request of a run has in common."""

    api: str
    model: str
    temperature: float
    top_p: float
    usage_each_chunk: bool = True  # stream_options.continuous_usage_stats: the only exact count for each moment

    def body(self, prompt: Prompt, tokens: int, *, stream: bool = True) -> bytes:
        """The JSON of one request that makes exactly `tokens` tokens: end-of-sequence is ignored."""
        if self.api == "generate":
            sampling = {
                "max_new_tokens": tokens,
                "ignore_eos": True,
                "temperature": self.temperature,
                "top_p": self.top_p,
            }
            kind = "text" if isinstance(prompt, str) else "input_ids"
            return json.dumps({kind: prompt, "sampling_params": sampling, "stream": stream}).encode()
        fields: dict[str, Any] = {"model": self.model, "max_tokens": tokens, "ignore_eos": True, "stream": stream}
        fields |= {"temperature": self.temperature, "top_p": self.top_p}
        if self.api == "chat":
            fields["messages"] = [{"role": "user", "content": prompt}]
        else:
            fields["prompt"] = prompt
        if stream:
            fields["stream_options"] = {"include_usage": True}
            if self.usage_each_chunk:
                fields["stream_options"]["continuous_usage_stats"] = True
        return json.dumps(fields).encode()


def post(target: Target, path: str, body: bytes, key: str | None) -> bytes:
    """The whole request, head and body. The key is written here and nowhere else."""
    lines = [
        f"POST {target.prefix}{path} HTTP/1.1",
        f"Host: {target.authority}",
        "Accept: text/event-stream",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


@dataclass(frozen=True)
class Head:
    """The head of an answer: where the body begins, and how its end is known."""

    status: int
    size: int  # bytes of the head, blank line included
    chunked: bool
    length: int | None  # Content-Length; None with chunked, or when the end of the connection ends the body
    keep: bool
    gzip: bool = False
    server: str = ""  # what it calls itself


def head_of(data: bytes) -> Head | None:
    """The head, or None while it is not complete. Raises ValueError when this is not HTTP."""
    begin, words = 0, ["", "1"]
    while words[1].startswith("1"):  # 100 Continue, 103 Early Hints: the answer itself comes behind it
        end = data.find(b"\r\n\r\n", begin)
        if end < 0 and len(data) <= HEAD:
            return None
        if not 0 <= end <= HEAD:
            raise ValueError("an HTTP head over 64 KiB")
        first, *lines = data[begin:end].decode("latin-1").split("\r\n")
        words = first.split(" ", 2)
        if not words[0].startswith("HTTP/") or len(words) < 2 or not words[1].isdigit():
            raise ValueError(f"not an HTTP answer: {first[:60]!r}")
        begin = end + 4
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    chunked = "chunked" in fields.get("transfer-encoding", "").lower()
    length = fields.get("content-length", "")
    size = int(length) if length.isdigit() and not chunked else None
    close = fields.get("connection", "").lower() == "close" or words[0] == "HTTP/1.0"
    keep = not close and (chunked or size is not None)
    gzip = fields.get("content-encoding", "") == "gzip"
    return Head(int(words[1]), end + 4, chunked, size, keep, gzip, fields.get("server", ""))


class Event(NamedTuple):
    """One SSE event: its data, and the index of the read that completed it."""

    read: int
    data: bytes


class Chunks:
    """Takes the chunked encoding off, read by read."""

    def __init__(self) -> None:
        self.rest = b""  # of a line that is not whole
        self.left = 0  # bytes of the present chunk that are still to come
        self.complete = False

    def feed(self, data: bytes) -> bytes:
        """Bytes of the body that this read brought. Raises ValueError for what is no chunk."""
        line = data.find(b"\r\n")
        whole = not self.rest and not self.left and data[:line].isalnum()
        if whole and 0 < int(data[:line], 16) == len(data) - line - 4:
            return data[line + 2 : -2]  # the ordinary read: one whole chunk
        data, at, found = self.rest + data, 0, []
        while not self.complete:
            if self.left:
                found.append(data[at : at + self.left])
                at += len(found[-1])
                self.left -= len(found[-1])
                if self.left:
                    break
            line = data.find(b"\r\n", at)
            if line == at:  # the line end behind a chunk
                at += 2
                line = data.find(b"\r\n", at)
            if line < 0:
                break
            size = data[at:line].split(b";")[0].strip() or b"0"
            if not size.isalnum():
                raise ValueError(f"not the size of a chunk: {size[:20]!r}")
            self.left = int(size, 16)
            at = line + 2
            self.complete = self.left == 0
        self.rest = data[at:]
        return b"".join(found)


def cut(reads: list[bytes]) -> tuple[Head | None, list[Event], bytes, bool]:
    """Cut an answer: its head, the events, the bytes of the body, and whether it ended as HTTP says.

    An event belongs to the read that brought its last byte: a reader could not have shown it before.
    """
    head: Head | None = None
    first = b""
    pieces: list[bytes] = []  # of the body, one a read
    chunks = Chunks()
    for data in reads:
        if head is None:
            first += data
            head = head_of(first)
            data = first[head.size :] if head else b""
        pieces.append(chunks.feed(data) if head and head.chunked and data else data)
    body = b"".join(pieces)
    complete = len(body) >= head.length if head and head.length is not None else chunks.complete
    if head and head.gzip:
        return head, [], _unpacked(body), complete
    return head, _events(pieces), body, complete


def _unpacked(body: bytes) -> bytes:
    """What an error says, or its beginning. Raises ValueError for what was not packed at all."""
    try:
        return zlib.decompressobj(31).decompress(body, 1_000_000)
    except zlib.error as error:
        raise ValueError(f"a body that is not gzip ({error})") from None


def _events(pieces: list[bytes]) -> list[Event]:
    events: list[Event] = []
    rest = b""
    for read, piece in enumerate(pieces):
        if not rest and piece.startswith(b"data:") and piece.find(b"\n") == len(piece) - 2 and piece[-1:] == b"\n":
            events.append(Event(read, piece[5:-2].lstrip(b" ")))  # the ordinary read: one whole event
            continue
        *whole, rest = (rest + piece).replace(b"\r\n", b"\n").split(b"\n\n")
        for text in whole:
            lines = [line[5:].lstrip(b" ") for line in text.split(b"\n") if line.startswith(b"data:")]
            if lines:
                events.append(Event(read, b"\n".join(lines)))
    if rest.strip().startswith(b"data:"):  # a last event without its blank line
        events.append(Event(len(pieces) - 1, rest.strip()[5:].strip()))
    return events
