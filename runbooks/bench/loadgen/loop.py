"""The measuring loop. In it: select, recv, a time stamp, append. Everything else waits until the point is over.

Closed loop: each slot sends its next request when the last one ended. (An open loop would give each request its
intended start time; `start` in the log already means exactly that.)
"""

from __future__ import annotations

import gc
import os
import resource
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import rawlog
from .shared import CUT, DRAIN, FIELDS, RAMP, WINDOW, Board
from .wire import Target, head_of

# Bytes a recv. Above malloc's mmap threshold (128 KiB) each call maps and unmaps pages, at twice the cost a chunk.
READ = 16384
AGAIN = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_READY, _DECODING, _FLIGHT, _READS, _FINISHED, _FAILED, _SENT, _DONE = range(len(FIELDS))


APART = 16  # steps between the ends of two groups of slots


def first_length(slot: int, slots: int, length: int) -> int:
    """Output tokens of a slot's first request.

    It is shortened so that slots end in groups, spread over one length and never closer than APART steps: they are not
    in step with each other, and between two groups there is time in which all decode.
    """
    groups = max(1, min(slots, length // APART))
    return -(-length * (slot % groups + 1) // groups)


@dataclass(frozen=True)
class Plan:
    """What one process does in one point."""

    target: Target
    slots: tuple[int, ...]  # slot numbers of this process, out of `concurrency`
    concurrency: int
    output_len: int
    request: Callable[[int], bytes]  # output tokens -> the bytes of a new, unique request
    stagger: float  # seconds between the starts of two slots
    silence: float  # seconds without a byte after which a stream is given up
    max_requests: int  # of this process
    log: Path


@dataclass(eq=False)
class Stream:
    """One slot: a connection, and the request that it carries."""

    slot: int
    due: float  # perf_counter seconds at which it may send next
    sock: socket.socket | None = None
    request: bytes = b""
    out: memoryview = field(default_factory=lambda: memoryview(b""))
    reads: list[tuple[int, bytes]] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)
    busy: bool = False
    sequence: int = 0
    chunked: bool = False
    missing: int = (
        -1
    )  # bytes of a Content-Length body still to come; -1: the head is not read, or the end is marked otherwise
    framed: bool = False
    keep: bool = False
    seen: int = 0  # perf_counter_ns of the last byte


class Worker:
    """Runs the slots of one process through a point, and writes their log."""

    def __init__(self, plan: Plan, board: Board, index: int) -> None:
        self.plan = plan
        self.board = board
        self.row = board.row(index)
        self.parent = os.getppid()
        self.tls = plan.target.tls
        self.selector = selectors.DefaultSelector()
        self.finished: list[rawlog.Block] = []
        self.stock: list[bytes] = []  # full-length requests made ahead, while nothing waits to be read
        self.busy_log = [0] * 64  # loop turns by the power of two of their nanoseconds
        self.busy_max = 0
        self.marks: dict[int, tuple[int, int, int, int]] = {}  # phase -> wall ns, cpu ns, reads, involuntary switches
        self.window_busy: tuple[list[int], int] | None = None
        self.streams: list[Stream] = []

    def run(self) -> None:
        now = time.perf_counter()
        self.streams = [Stream(slot, now + slot * self.plan.stagger) for slot in self.plan.slots]
        for stream in self.streams:
            self._open(stream)
        # One spare a slot covers a burst in which all slots end in the same step; more are made whenever nothing waits.
        self.stock = [self.plan.request(self.plan.output_len) for _ in range(len(self.streams))]
        self.row[_READY] = 1
        while self.board.phase < RAMP:
            time.sleep(0.001)
        begun = time.perf_counter()
        for stream in self.streams:
            stream.due = begun + stream.slot * self.plan.stagger
        gc.freeze()
        gc.disable()
        self._measure()
        gc.enable()
        self._write()
        self.row[_DONE] = 1

    # -- the loop

    def _measure(self) -> None:
        phase = 0
        housekeeping = 0.0
        while True:
            if self.board.phase != phase:
                phase = self.board.phase
                self._mark(phase)
                housekeeping = 0.0
            now = time.perf_counter()
            if now >= housekeeping:
                housekeeping = now + 0.02 if any(not s.busy for s in self.streams) else now + 0.25
                if not self._housekeeping(phase, now):
                    break
            short_of_stock = len(self.stock) < len(self.streams) and phase < DRAIN
            ready = self.selector.select(0 if short_of_stock else 0.02)
            if not ready:
                if short_of_stock:
                    self.stock.append(self.plan.request(self.plan.output_len))
                continue
            turn = time.perf_counter_ns()
            for key, events in ready:
                if events & selectors.EVENT_WRITE:
                    self._flush(key.data)
                if events & selectors.EVENT_READ:
                    self._read(key.data, phase)
            spent = time.perf_counter_ns() - turn
            self.busy_log[spent.bit_length()] += 1
            self.busy_max = max(self.busy_max, spent)
        self._mark(CUT + 1)

    def _read(self, stream: Stream, phase: int) -> None:
        assert stream.sock is not None
        try:
            data = stream.sock.recv(READ)
        except AGAIN:
            return
        except OSError as error:
            self._lost(stream, f"connection: {error.strerror or type(error).__name__}")
            return
        now = time.perf_counter_ns()
        if not stream.busy:  # closed, or a byte that nobody asked for, between two requests
            self._close(stream)
            return
        if not data:
            self._ended_by_close(stream)
            return
        reads = stream.reads
        reads.append((now, data))
        stream.seen = now
        self.row[_READS] += 1
        if len(reads) == 3:
            self.row[_DECODING] += 1 if stream.sequence == 1 else 0
        if not stream.framed and not self._frame(stream):
            return
        if stream.chunked:
            # The last chunk. Inside JSON text a line end is escaped, so these bytes stand nowhere else in a stream.
            if data[-5:] == b"0\r\n\r\n" or (len(data) < 5 and _tail(reads)[-5:] == b"0\r\n\r\n"):
                self._finish(stream, None, phase)
        elif stream.missing >= 0:
            stream.missing -= len(data)
            if stream.missing <= 0:
                self._finish(stream, None, phase)
        if self.tls and isinstance(stream.sock, ssl.SSLSocket) and stream.sock.pending():
            self._read(stream, phase)  # decrypted bytes that select cannot see

    def _frame(self, stream: Stream) -> bool:
        try:
            head = head_of(b"".join(data for _, data in stream.reads))
        except ValueError as error:
            self._lost(stream, f"protocol: {error}")
            return False
        if head is None:
            return False
        stream.framed, stream.chunked, stream.keep = True, head.chunked, head.keep
        stream.meta["status"] = head.status
        if head.length is not None:
            stream.missing = head.length + head.size - sum(len(data) for _, data in stream.reads[:-1])
        return True

    def _flush(self, stream: Stream) -> None:
        assert stream.sock is not None
        try:
            sent = stream.sock.send(stream.out)
        except AGAIN:
            return
        except OSError as error:
            self._lost(stream, f"connection: {error.strerror or type(error).__name__}")
            return
        stream.out = stream.out[sent:]
        if not stream.out:
            stream.meta["sent"] = time.perf_counter_ns()
            self.selector.modify(stream.sock, selectors.EVENT_READ, stream)

    # -- a request's life

    def _housekeeping(self, phase: int, now: float) -> bool:
        """Starts what is due and gives up what is silent. False: this point is over for this process."""
        if phase >= CUT or os.getppid() != self.parent:
            for stream in self.streams:
                if stream.busy:
                    stream.meta["cut"] = True
                    self._finish(stream, None, phase)
                self._close(stream)
            return False
        for stream in self.streams:
            if stream.busy and now - stream.seen * 1e-9 > self.plan.silence:
                self._lost(stream, f"silent: no byte for {self.plan.silence:g} s")
            if not stream.busy and phase < DRAIN and now >= stream.due:
                self._start(stream, phase)
        idle = not any(stream.busy for stream in self.streams)
        spent = self.row[_SENT] >= self.plan.max_requests
        return not (idle and (phase >= DRAIN or spent))

    def _start(self, stream: Stream, phase: int) -> None:
        if self.row[_SENT] >= self.plan.max_requests:
            return
        first = stream.sequence == 0
        tokens = self.plan.output_len
        if first:
            tokens = first_length(stream.slot, self.plan.concurrency, tokens)
        whole = tokens == self.plan.output_len
        request = self.stock.pop() if whole and self.stock else self.plan.request(tokens)
        stream.meta = {"kind": "request", "slot": stream.slot, "sequence": stream.sequence, "asked": tokens}
        stream.meta |= {"first": first, "phase": phase, "bytes": len(request)}
        stream.sequence += 1
        stream.busy, stream.framed, stream.chunked, stream.missing, stream.reads = True, False, False, -1, []
        stream.meta["start"] = time.perf_counter_ns()
        stream.seen = stream.meta["start"]
        self.row[_SENT] += 1
        self.row[_FLIGHT] += 1
        if stream.sock is None and not self._open(stream):
            self._lost(stream, "connection: refused")
            return
        self._send(stream, request)

    def _send(self, stream: Stream, request: bytes) -> None:
        assert stream.sock is not None
        stream.request = request
        stream.out = memoryview(request)
        self.selector.modify(stream.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, stream)
        self._flush(stream)

    def _ended_by_close(self, stream: Stream) -> None:
        """The server closed. That ends a body without a length; anywhere else it is a failure."""
        if stream.framed and not stream.chunked and stream.missing < 0:
            self._finish(stream, None, self.board.phase)
        elif not stream.reads and not stream.meta.get("again"):
            # A kept connection that the server had just given up: it never read this. Once more, on the same clock.
            stream.meta["again"] = True
            self._close(stream)
            if self._open(stream):
                self._send(stream, stream.request)
            else:
                self._lost(stream, "connection: refused")
        else:
            self._lost(stream, "connection: closed by the server" + (" within the answer" if stream.framed else ""))

    def _lost(self, stream: Stream, why: str) -> None:
        self._finish(stream, why, self.board.phase)
        self._close(stream)
        stream.due = time.perf_counter() + 0.5  # a server that refuses is asked twice a second, not in a tight loop

    def _finish(self, stream: Stream, error: str | None, phase: int) -> None:
        if not stream.busy:
            return
        stream.busy = False
        stream.meta["end"] = time.perf_counter_ns()
        stream.meta["error"] = error
        self.finished.append((stream.meta, stream.reads))
        self.row[_FLIGHT] -= 1
        failed = error is not None or stream.meta.get("status", 200) != 200
        self.row[_FAILED if failed else _FINISHED] += 1
        if not stream.keep or stream.meta.get("cut"):
            self._close(stream)
        if failed:
            stream.due = time.perf_counter() + 0.5
        elif phase < DRAIN:
            self._start(stream, phase)

    def _open(self, stream: Stream) -> bool:
        try:
            stream.sock = self.plan.target.connect(timeout=5.0)
        except OSError:
            stream.sock = None
            return False
        stream.keep = True
        self.selector.register(stream.sock, selectors.EVENT_READ, stream)
        return True

    def _close(self, stream: Stream) -> None:
        if stream.sock is not None:
            self.selector.unregister(stream.sock)
            stream.sock.close()
            stream.sock = None

    # -- what is left of it

    def _mark(self, phase: int) -> None:
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        self.marks[phase] = (time.perf_counter_ns(), time.process_time_ns(), self.row[_READS], switches)
        if phase == WINDOW:
            self.busy_log = [0] * 64
            self.busy_max = 0
        if phase == DRAIN:
            self.window_busy = (self.busy_log, self.busy_max)
            self.busy_log = [0] * 64

    def _write(self) -> None:
        busy_log, busy_max = self.window_busy or (self.busy_log, self.busy_max)
        begin = self.marks.get(WINDOW) or self.marks[min(self.marks)]
        end = self.marks.get(DRAIN) or self.marks[max(self.marks)]
        wall, cpu, reads, switches = (after - before for before, after in zip(begin, end, strict=True))
        meta = {"kind": "worker", "slots": len(self.plan.slots), "wall_ns": wall, "cpu_ns": cpu, "reads": reads}
        meta |= {"switches": switches, "busy_log2_ns": busy_log, "busy_max_ns": busy_max}
        blocks: Iterable[rawlog.Block] = [(meta, []), *self.finished]
        rawlog.write(self.plan.log, blocks)


def _tail(reads: list[tuple[int, bytes]]) -> bytes:
    return b"".join(data for _, data in reads[-5:])
