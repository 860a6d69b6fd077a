"""One slot of the load: its connection, and the request that it carries."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .wire import Target

AGAIN = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
END = b"0\r\n\r\n"  # of a chunked answer
IN, OUT = select.POLLIN, select.POLLOUT  # epoll's have the same values


@dataclass(eq=False)
class Stream:
    """Times are perf_counter seconds, or ns where they go into the log."""

    slot: int
    due: float  # when it may send next
    sock: socket.socket | None = None
    request: bytes = b""
    out: memoryview = field(default_factory=lambda: memoryview(b""))
    reads: list[tuple[int, bytes]] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)
    busy: bool = False
    sequence: int = 0
    chunked: bool = False
    missing: int = -1  # bytes of a Content-Length body to come; -1: no head yet, or the end is marked otherwise
    framed: bool = False
    keep: bool = False
    begun: int = 0  # ns
    full: int = 0  # reads that took all that there was room for

    def begin(self, meta: dict[str, Any], now: int) -> None:
        self.meta = meta
        self.sequence += 1
        self.busy, self.framed, self.chunked, self.missing, self.reads = True, False, False, -1, []
        self.begun, self.full = now, 0

    @property
    def heard(self) -> int:
        """ns of the last byte, or of the beginning."""
        return self.reads[-1][0] if self.reads else self.begun

    @property
    def ended(self) -> bool:
        """Whether a chunked answer is over. Inside JSON a line end is escaped: these bytes stand nowhere else."""
        data = self.reads[-1][1]
        if len(data) < len(END):
            data = b"".join(data for _, data in self.reads[-len(END) :])
        return data.endswith(END)


class Poller:
    """epoll where there is one, poll elsewhere; `wait(seconds)` gives (file number, events)."""

    def __init__(self) -> None:
        self.wait: Callable[[float], list[tuple[int, int]]]
        if hasattr(select, "epoll"):
            epoll = select.epoll()
            self._poll: Any = epoll
            self.wait = epoll.poll
        else:
            poll = select.poll()
            self._poll = poll
            self.wait = lambda seconds: poll.poll(seconds * 1e3)
        self.streams: dict[int, Stream] = {}
        # Where more of a chunked answer is to come, and nothing but more: what keeps a read of it (Worker._turn).
        self.running: dict[int, Callable[[tuple[int, bytes]], None]] = {}

    def open(self, stream: Stream, target: Target) -> bool:
        try:
            stream.sock = target.connect(timeout=5.0)
        except OSError:
            stream.sock = None
            return False
        stream.keep = True
        number = stream.sock.fileno()
        self.streams[number] = stream
        self._poll.register(number, IN)
        return True

    def runs(self, stream: Stream) -> None:
        assert stream.sock is not None
        self.running[stream.sock.fileno()] = stream.reads.append

    def pauses(self, stream: Stream) -> None:
        if stream.sock is not None:
            self.running.pop(stream.sock.fileno(), None)

    def close(self, stream: Stream) -> None:
        if stream.sock is not None:
            self.pauses(stream)
            number = stream.sock.fileno()
            self._poll.unregister(number)
            del self.streams[number]
            stream.sock.close()
            stream.sock = None

    def writing(self, stream: Stream, wanted: bool) -> None:
        assert stream.sock is not None
        self._poll.modify(stream.sock.fileno(), IN | OUT if wanted else IN)


def delay_acks(sock: socket.socket) -> None:
    """On loopback an ACK for each chunk costs as much as reading it.

    Only for a server that is known to set TCP_NODELAY: another would hold its next chunk back until the ACK comes.
    """
    if hasattr(socket, "TCP_QUICKACK") and sock.getpeername()[0] in ("127.0.0.1", "::1"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
