"""What a client costs, seen from outside: its process group's CPU, against what the server sent meanwhile."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench.clients.pacer import COUNTED

EVERY = 0.2  # seconds between two looks
TICKS = os.sysconf("SC_CLK_TCK")


class Look(NamedTuple):
    """What the server has done so far, and what the client has used."""

    sent: int  # chunks
    firsts: int  # first tokens
    waited: float  # seconds of all requests up to their first tokens
    used: float  # seconds of CPU


@dataclass(frozen=True)
class Cost:
    """Of one client: microseconds of CPU a chunk while the load runs, seconds of CPU from then to its end, and the
    TTFT that its requests had by the server's clock.
    """

    a_chunk: float
    after: float
    ttft_ms: float


class Watch:
    """Looks at a process group and at the server's count while a client runs."""

    def __init__(self, count: Path) -> None:
        self.count = count
        self.seen: list[Look] = []

    def __call__(self, group: int) -> None:
        threading.Thread(target=self._look, args=(group,), daemon=True).start()

    def _look(self, group: int) -> None:
        while (used := used_by(group)) is not None:
            sent, firsts, waited = COUNTED.unpack(self.count.read_bytes())
            self.seen.append(Look(sent, firsts, waited * 1e-9, used))
            time.sleep(EVERY)

    def cost(self) -> Cost:
        """Raises ValueError for a load that was over between two looks."""
        first, last = self.seen[0], self.seen[-1]
        tenth = (last.sent - first.sent) / 10
        within = [one for one in self.seen if first.sent + tenth <= one.sent <= last.sent - tenth]
        if len(within) < 2 or within[0].sent == within[-1].sent:
            raise ValueError("too short a load to look at")
        begun, ended = within[0], within[-1]
        a_chunk = (ended.used - begun.used) / (ended.sent - begun.sent) * 1e6
        ttft = (last.waited - first.waited) / (last.firsts - first.firsts) * 1e3
        return Cost(a_chunk, last.used - ended.used, ttft)


def used_by(group: int) -> float | None:
    """Seconds of CPU of all processes of a group and of those that they waited for; None when none is left."""
    used: float | None = None
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z":
                of_children = (int(fields[13]) + int(fields[14])) / TICKS
                used = (used or 0.0) + of_children + time.clock_gettime(_clock(int(process.name)))
        except OSError:  # it ended meanwhile
            continue
    return used


def _clock(pid: int) -> int:
    """The clock of all that a process used, to the nanosecond: what clock_getcpuclockid(3) gives."""
    return ~pid << 3 | 2


def others() -> float:
    """Per cent of all cores that others use, over a second in which nothing of ours runs."""
    busy, all_ = _ticks()
    time.sleep(1.0)
    later, more = _ticks()
    return 100 * (later - busy) / max(1, more - all_)


def _ticks() -> tuple[int, int]:
    """Busy ones, and all, since the machine began."""
    told = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(told) - told[3] - told[4], sum(told)
