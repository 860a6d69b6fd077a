"""Hosts side by side: how many at once, when no more are begun, and what became of each.

The work runs in threads that may be left behind: after a second Ctrl-C the program ends although a host still hangs.
"""

from __future__ import annotations

import re
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Generic, TypeVar

from runbooks.engine.errors import Bug, RunbookError, UsageError

MAX_PARALLEL = 50

T = TypeVar("T")


class NotStarted(RunbookError):
    """The host was left as it is, because the run came to its end before."""


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What became of one host: a value, or the error that ended it."""

    host: str
    value: T | None
    error: RunbookError | None


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """`serial`: hosts in a batch, or a share of all (`25%`); a batch begins when the one before has ended.

    `parallel`: the most hosts at once. `stop_after`: failures after which no more hosts are begun; None: go on.
    """

    serial: str = ""
    parallel: int = MAX_PARALLEL
    stop_after: int | None = None

    @classmethod
    def read(cls, *, serial: str = "", parallel: int = MAX_PARALLEL, stop_after_failures: int = 0) -> Rollout:
        """From what people typed; all side by side without a `serial`; 0 failures: go on. Raises UsageError."""
        if serial and not re.fullmatch(r"[1-9][0-9]{0,5}|([1-9][0-9]?|100)%", serial):
            raise UsageError(f"--serial {serial[:40]}: a number of hosts, or a share of them such as 25%")
        if parallel < 1:
            raise UsageError(f"--parallel {parallel}: a number of hosts, at least 1")
        if stop_after_failures < 0:
            raise UsageError(
                f"--stop-after-failures {stop_after_failures}: a number of hosts; 0: go on with the others"
            )
        return cls(serial=serial, parallel=parallel, stop_after=stop_after_failures or None)

    def batches(self, hosts: Sequence[str]) -> list[Sequence[str]]:
        """The hosts in their order, in batches; a share is rounded down, and at least one host."""
        count = len(hosts)
        if self.serial.endswith("%"):
            size = max(1, count * int(self.serial[:-1]) // 100)
        else:
            size = int(self.serial or count or 1)
        return [hosts[at : at + size] for at in range(0, count, size)]


class Interrupt:
    """Ctrl-C (or SIGTERM) once: finish what is under way, begin nothing more. Twice: stop now."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def __bool__(self) -> bool:
        return self._asked.is_set()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While inside, the first signal sets this flag, and the second raises KeyboardInterrupt."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self._asked.is_set():
            raise KeyboardInterrupt
        self._asked.set()


@dataclass(kw_only=True)
class Fleet(Generic[T]):
    """One piece of work over many hosts.

    `failed(value)` tells whether a host that came to its end counts as failed.
    `on_interrupt` is called once, by the waiting thread, after the first Ctrl-C.
    """

    work: Callable[[str], T]
    rollout: Rollout
    failed: Callable[[T], bool]
    interrupt: Interrupt
    on_interrupt: Callable[[], None]

    def run(self, hosts: Sequence[str]) -> list[Outcome[T]]:
        """Every host's outcome, in the order of `hosts`. A bug that one host brings to light is that host's error."""
        self._outcomes: dict[str, Outcome[T]] = {}
        self._changed = threading.Condition()
        self._failures = 0
        self._told = False
        for batch in self.rollout.batches(hosts):
            self._run_batch(batch)
        return [self._outcomes.get(host) or Outcome(host, None, self._why_not(host)) for host in hosts]

    def _run_batch(self, batch: Sequence[str]) -> None:
        waiting = deque(batch)
        threads = [
            threading.Thread(target=self._take_hosts, args=(waiting,), daemon=True)
            for _ in range(min(len(batch), self.rollout.parallel))
        ]
        self._at_work = len(threads)
        for thread in threads:
            thread.start()
        with self._changed:
            while self._at_work:
                self._changed.wait(0.2)  # not for ever: a signal is only seen between two waits
                if self.interrupt and not self._told:
                    self._told = True
                    self.on_interrupt()

    def _take_hosts(self, waiting: deque[str]) -> None:
        while not self._enough():
            try:
                host = waiting.popleft()
            except IndexError:
                break
            outcome = self._one(host)
            with self._changed:
                self._outcomes[host] = outcome
                self._failures += outcome.error is not None or (
                    outcome.value is not None and self.failed(outcome.value)
                )
        with self._changed:
            self._at_work -= 1
            self._changed.notify()

    def _one(self, host: str) -> Outcome[T]:
        try:
            return Outcome(host, self.work(host), None)
        except RunbookError as error:
            error.host = error.host or host
            return Outcome(host, None, error)
        except BaseException as unforeseen:
            bug = Bug(unforeseen)
            bug.host = host
            return Outcome(host, None, bug)

    def _enough(self) -> bool:
        limit = self.rollout.stop_after
        return bool(self.interrupt) or (limit is not None and self._failures >= limit)

    def _why_not(self, host: str) -> NotStarted:
        if self.interrupt:
            return NotStarted("not started: the run was interrupted before", host=host)
        count = "1 host" if self._failures == 1 else f"{self._failures} hosts"
        return NotStarted(f"not started: {count} failed before", host=host)
