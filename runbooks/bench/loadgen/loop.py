"""The measuring loop. In it: wait, read, a time stamp, append. Everything else waits until the point is over.

Closed loop: each slot sends its next request when the last one ended. Open loop: requests have intended start times,
drawn beforehand and never moved, and every latency counts from them; a server that falls behind cannot slow down the
questions that it is asked (no coordinated omission).
"""

from __future__ import annotations

import gc
import os
import resource
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from . import rawlog
from .memory import touched
from .priority import Line, first_in_line
from .records import request_of
from .shared import CUT, DRAIN, FIELDS, RAMP, WINDOW, Board
from .stream import AGAIN, END, IN, OUT, Poller, Stream, delay_acks
from .wire import Target, head_of

READ = 16384  # bytes of one read, a hundred chunks; what is left comes with the next turn
SMALLEST = len(END)
PAUSE = 0.0005  # s after a turn: a step's burst is read in two turns, at half the CPU; it counts as lateness
PAUSE_FROM = 32  # streams of a process: for fewer there is little to save, and a busy machine sleeps ms too long
TICK = 0.02  # s that a turn waits at most
RETRY = 0.5  # s: a server that refuses, or answers rubbish, is asked twice a second, not in a tight loop
JUDGED = 20  # answers of a process that are looked at as they end, the first; rubbish comes by the thousand
AT_ONCE = 3  # reads of a whole answer, which is then looked at, too: models do not answer so
SPARE, EACH, PIECES = 1 << 20, 4096, 8  # an answer has at most so many bytes, and so many bytes and reads a token
BEGINNING = 16  # reads that are kept of one that has more
ENDLESS = "an answer without end"
MOST = 4096  # streams of one process in an open loop; beyond, requests wait for one, on their intended clock
_READY, _DECODING, _FLIGHT, _READS, _FINISHED, _FAILED, _SENT, _DONE = range(len(FIELDS))


class Made(NamedTuple):
    """A new, unique request, as bytes, and the output and prompt tokens that it asks for."""

    data: bytes
    asked: int
    prompt: int


@dataclass(frozen=True)
class Plan:
    """What one process does in one point."""

    target: Target
    slots: tuple[int, ...]  # slot numbers of this process, out of all; in an open loop, connections to begin with
    request: Callable[[int | None], Made]  # with a slot: its first one, shortened
    stagger: float  # seconds between the starts of two slots
    silence: float  # seconds without a byte after which a stream is given up
    max_requests: int  # of this process
    log: Path
    arrivals: Iterator[float] | None = None  # open loop: seconds after the start, endless
    cumulative: bool = False  # each event holds the whole text so far
    judged: int = JUDGED


class Worker:
    """Runs the slots of one process through a point, and writes their log."""

    def __init__(self, plan: Plan, board: Board, index: int) -> None:
        self.plan = plan
        self.board = board
        self.row = board.row(index)
        self.parent = os.getppid()
        self.tls = plan.target.tls
        self.poller = Poller()
        self.finished: list[rawlog.Block] = []
        self.stock: list[Made] = []  # made ahead, while nothing waits to be read
        self.busy_log = [0] * 64  # loop turns by the power of two of the nanoseconds that a read may have waited
        self.busy_max = 0
        self.first_in_line = False
        self.marks: dict[int, tuple[int, int, int, int]] = {}  # phase -> wall ns, cpu ns, reads, involuntary switches
        self.window_busy: tuple[list[int], int] | None = None
        self.streams: list[Stream] = []
        self.idle: list[Stream] = []  # open loop: those that wait for a request
        self.next_due = float("inf")
        self.judged = self.well = 0  # answers that were looked at as they ended, and those of them that were well

    def run(self) -> None:
        self.streams = [Stream(slot, 0.0) for slot in self.plan.slots]
        for stream in self.streams:
            self.poller.open(stream, self.plan.target)
        # One spare a slot covers a burst in which all slots end in the same step; more are made whenever nothing waits.
        self.stock = [self.plan.request(None) for _ in range(len(self.streams))]
        held = touched()
        self.row[_READY] = 1
        while self.board.phase < RAMP:
            time.sleep(0.001)
        self.begun = time.perf_counter()
        for stream in self.streams:
            stream.due = self.begun + stream.slot * self.plan.stagger
        if self.plan.arrivals is not None:
            self.idle = self.streams[::-1]
            self.next_due = self.begun + next(self.plan.arrivals)
        gc.freeze()
        gc.disable()
        with first_in_line() as self.first_in_line:
            self._measure()
        del held
        gc.enable()
        self._write()
        self.row[_DONE] = 1

    # -- the loop

    def _measure(self) -> None:
        phase = 0
        housekeeping = 0.0
        wait, clock = self.poller.wait, time.perf_counter_ns
        in_line = Line(first=self.first_in_line).since
        pause = PAUSE if len(self.streams) >= PAUSE_FROM or self.plan.arrivals is not None else 0.0
        while True:
            if self.board.phase != phase:
                phase = self.board.phase
                self._mark(phase)
                housekeeping = 0.0
            now = time.perf_counter()
            if now >= self.next_due and phase < DRAIN:
                self._arrive(now, phase)
            if now >= housekeeping:
                housekeeping = now + TICK if any(not s.busy for s in self.streams) else now + 0.25
                if not self._housekeeping(phase, now):
                    break
            short_of_stock = len(self.stock) < len(self.streams) and phase < DRAIN
            ready = wait(0 if short_of_stock else max(0.0, min(TICK, self.next_due - now)))
            if not ready:
                in_line()  # nothing waited for us
                if short_of_stock:
                    self.stock.append(self.plan.request(None))
                continue
            turn = clock()
            self._turn(ready, phase)
            if pause:
                time.sleep(pause)
            spent = max(clock() - turn, in_line())
            self.busy_log[spent.bit_length()] += 1
            self.busy_max = max(self.busy_max, spent)
        self._mark(CUT + 1)

    def _turn(self, ready: list[tuple[int, int]], phase: int) -> None:
        """Reads once from each that is ready. One more piece of a running answer, the ordinary case, ends here."""
        running, clock, read, count = self.poller.running, time.perf_counter_ns, os.read, 0
        for number, events in ready:
            keep = running.get(number)
            if keep is None or events != IN:
                stream = self.poller.streams.get(number)  # None: closed within this turn
                count += self._attend(stream, events, phase) if stream else 0
                continue
            try:
                data = read(number, READ)
            except OSError as error:
                self._unread(self.poller.streams[number], error)
                continue
            if data[-SMALLEST:] == END or not SMALLEST <= len(data) < READ:  # a full read may be of a flood
                self._took(self.poller.streams[number], clock(), data, phase)
            else:
                keep((clock(), data))
            count += 1
        self.row[_READS] += count

    def _attend(self, stream: Stream, events: int, phase: int) -> int:
        """Everything that is not ordinary: an answer's beginning, TLS, a request still being sent. Number of reads."""
        if events & OUT:
            self._flush(stream)
        count = 0
        while events & ~OUT and stream.sock is not None:
            try:
                data = stream.sock.recv(READ)
            except OSError as error:
                self._unread(stream, error)
                break
            self._took(stream, time.perf_counter_ns(), data, phase)
            count += 1
            if not isinstance(stream.sock, ssl.SSLSocket) or not stream.sock.pending():
                break  # there are no decrypted bytes that poll cannot see
        return count

    def _unread(self, stream: Stream, error: OSError) -> None:
        if not isinstance(error, AGAIN):
            self._lost(stream, f"connection: {error.strerror or type(error).__name__}")

    def _took(self, stream: Stream, now: int, data: bytes, phase: int) -> None:
        if not stream.busy:  # closed, or a byte that nobody asked for, between two requests
            self.poller.close(stream)
            return
        if not data:
            self._ended_by_close(stream)
            return
        reads = stream.reads
        reads.append((now, data))
        if len(data) == READ:
            stream.full += 1
            if stream.full * READ > self._most(stream.meta["asked"]):
                self._endless(stream)
                return
        if len(reads) == 3 and stream.sequence == 1:
            self.row[_DECODING] += 1
        if not stream.framed and not self._frame(stream):
            return
        if stream.chunked:
            if stream.ended:
                self._finish(stream, None, phase)
            elif len(reads) > 2 and not self.tls:
                self.poller.runs(stream)
        elif stream.missing >= 0:
            stream.missing -= len(data)
            if stream.missing <= 0:
                self._finish(stream, None, phase)

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
        if head.server == "uvicorn" and stream.sock is not None:
            delay_acks(stream.sock)  # each time: one late chunk, and the kernel goes back to acknowledging each
        return True

    def _flush(self, stream: Stream) -> None:
        assert stream.sock is not None
        try:
            sent = stream.sock.send(stream.out)
        except AGAIN:
            self.poller.writing(stream, True)
            return
        except OSError as error:
            self._lost(stream, f"connection: {error.strerror or type(error).__name__}")
            return
        stream.out = stream.out[sent:]
        self.poller.writing(stream, bool(stream.out))
        if not stream.out:
            stream.meta["sent"] = time.perf_counter_ns()

    # -- a request's life

    def _housekeeping(self, phase: int, now: float) -> bool:
        """Starts what is due and gives up what is silent. False: this point is over for this process."""
        if phase >= CUT or os.getppid() != self.parent:
            for stream in self.streams:
                if stream.busy:
                    stream.meta["cut"] = True
                    self._finish(stream, None, phase)
                self.poller.close(stream)
            return False
        closed = self.plan.arrivals is None
        for stream in self.streams:
            if stream.busy and now - stream.heard * 1e-9 > self.plan.silence:
                self._lost(stream, f"silent: no byte for {self.plan.silence:g} s")
            elif stream.busy and len(stream.reads) > SPARE // EACH + PIECES * stream.meta["asked"]:
                self._endless(stream)
            if closed and not stream.busy and phase < DRAIN and now >= stream.due:
                self._start(stream, phase, time.perf_counter_ns())
        idle = not any(stream.busy for stream in self.streams)
        spent = self.row[_SENT] >= self.plan.max_requests
        return not (idle and (phase >= DRAIN or spent))

    def _arrive(self, now: float, phase: int) -> None:
        """Open loop: starts every request whose time has come, each on the clock of that time."""
        assert self.plan.arrivals is not None
        while self.next_due <= now:
            if not self.idle and len(self.streams) < MOST:
                self.idle.append(Stream(len(self.streams), 0.0))
                self.streams.append(self.idle[-1])
            if not self.idle:
                return
            self._start(self.idle.pop(), phase, round(self.next_due * 1e9))
            self.next_due = self.begun + next(self.plan.arrivals)

    def _start(self, stream: Stream, phase: int, at: int) -> None:
        if self.row[_SENT] >= self.plan.max_requests:
            return
        first = stream.sequence == 0 and self.plan.arrivals is None
        made = self.plan.request(stream.slot) if first else self.stock.pop() if self.stock else self.plan.request(None)
        meta = {"kind": "request", "slot": stream.slot, "sequence": stream.sequence, "asked": made.asked, "start": at}
        meta |= {"prompt": made.prompt, "first": first, "phase": phase, "bytes": len(made.data)}
        stream.begin(meta, time.perf_counter_ns())
        self.row[_SENT] += 1
        self.row[_FLIGHT] += 1
        if stream.sock is None and not self.poller.open(stream, self.plan.target):
            self._lost(stream, "connection: refused")
            return
        self._send(stream, made.data)

    def _send(self, stream: Stream, request: bytes) -> None:
        stream.request = request
        stream.out = memoryview(request)
        self._flush(stream)

    def _ended_by_close(self, stream: Stream) -> None:
        """The server closed. That ends a body without a length; anywhere else it is a failure."""
        if stream.framed and not stream.chunked and stream.missing < 0:
            self._finish(stream, None, self.board.phase)
        elif not stream.reads and not stream.meta.get("again"):
            # A kept connection that the server had just given up: it never read this. Once more, on the same clock.
            stream.meta["again"] = True
            self.poller.close(stream)
            if self.poller.open(stream, self.plan.target):
                self._send(stream, stream.request)
            else:
                self._lost(stream, "connection: refused")
        else:
            self._lost(stream, "connection: closed by the server" + (" within the answer" if stream.framed else ""))

    def _lost(self, stream: Stream, why: str) -> None:
        self._finish(stream, why, self.board.phase)
        self.poller.close(stream)

    def _most(self, asked: int) -> int:
        """Bytes of an answer of so many tokens: far more than any server needs for it."""
        return SPARE + asked * (EACH + 16 * asked * self.plan.cumulative)

    def _endless(self, stream: Stream) -> None:
        """A flood, or an answer that goes on for ever: given up before it fills the memory; its beginning is kept."""
        del stream.reads[BEGINNING:]
        self._lost(stream, ENDLESS)

    def _rubbish(self, stream: Stream) -> bool:
        """Whether an answer failed in what it says. Only the first are looked at, and those that came at once.

        Where none of the first was well, the others are taken for the same: this only paces what is asked.
        """
        if stream.meta.get("cut"):
            return False
        if self.judged >= self.plan.judged and len(stream.reads) > AT_ONCE:
            return bool(self.judged) and not self.well
        failed = request_of(stream.meta, stream.reads).failure is not None
        self.judged += 1
        self.well += not failed
        return failed

    def _finish(self, stream: Stream, error: str | None, phase: int) -> None:
        if not stream.busy:
            return
        stream.busy = False
        self.poller.pauses(stream)
        stream.meta |= {"end": time.perf_counter_ns(), "error": error}
        self.finished.append((stream.meta, stream.reads))
        self.row[_FLIGHT] -= 1
        if stream.sequence == 1 and len(stream.reads) < 3:  # a whole answer in one or two reads is a beginning, too
            self.row[_DECODING] += 1
        failed = error is not None or stream.meta.get("status", 200) != 200 or self._rubbish(stream)
        self.row[_FAILED if failed else _FINISHED] += 1
        if not stream.keep or stream.meta.get("cut"):
            self.poller.close(stream)
        if self.plan.arrivals is not None:
            self.idle.append(stream)
        elif failed:
            stream.due = time.perf_counter() + RETRY
        elif phase < DRAIN:
            self._start(stream, phase, time.perf_counter_ns())

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
        meta: dict[str, Any] = {"kind": "worker", "slots": len(self.streams), "wall_ns": wall, "cpu_ns": cpu}
        meta |= {
            "first_in_line": self.first_in_line,
            "reads": reads,
            "switches": switches,
            "busy_log2_ns": busy_log,
            "busy_max_ns": busy_max,
        }
        blocks: Iterable[rawlog.Block] = [(meta, []), *self.finished]
        rawlog.write(self.plan.log, blocks)
