"""A guest's kernel log, read for the one thing that decides whether its cards work: did their memory find room?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

GIB = 1 << 30
# What is worth sending back of a whole kernel log; grep -E.
TELLING = r"can't assign; no space|failed to assign|root bus resource \[mem|NVRM:|Xid|fallen off the bus|address sizes"

_NO_SPACE = re.compile(r"pci (\S+): BAR \d+ \[mem size 0x([0-9a-f]+)[^]]*\]: can't assign; no space")
# Kernels from 6.9 on put the size first: `BAR 2 [mem size ...]: can't assign; no space`, and older ones `no space for`.
_OLD_NO_SPACE = re.compile(r"pci (\S+): BAR \d+: no space for \[mem size 0x([0-9a-f]+)")
_WINDOW = re.compile(r"root bus resource \[mem 0x([0-9a-f]+)-0x([0-9a-f]+) window\]")
_NVRM = re.compile(r"NVRM: (BAR\d+ is 0M[^\n]*|This PCI I/O region[^\n]*|GPU \S+ is already bound[^\n]*)")


@dataclass(frozen=True)
class GuestLog:
    """`homeless`: cards whose memory found no room; `window` (first, last) for 64-bit BARs, in bytes; None: untold."""

    homeless: tuple[str, ...]
    largest: int
    window: tuple[int, int] | None
    driver: tuple[str, ...]

    @property
    def window_gib(self) -> int:
        return (self.window[1] - self.window[0] + 1) // GIB if self.window else 0

    @property
    def ok(self) -> bool:
        return not self.homeless and not self.driver


def read(text: str) -> GuestLog:
    """Only BARs of a gibibyte or more count: a small one without room is some bridge's, and harmless."""
    found: dict[str, int] = {}
    for pattern in (_NO_SPACE, _OLD_NO_SPACE):
        for address, size in pattern.findall(text):
            if int(size, 16) >= GIB:
                found[address] = int(size, 16)
    windows = [(int(first, 16), int(last, 16)) for first, last in _WINDOW.findall(text)]
    high = max((window for window in windows if window[0] >= 1 << 32), default=None)
    driver = tuple(dict.fromkeys(match.strip() for match in _NVRM.findall(text)))
    return GuestLog(tuple(sorted(found)), max(found.values(), default=0), high, driver)


def advice(log: GuestLog, cards: int) -> Sequence[str]:
    """What to tell, in lines; empty where all is well."""
    if log.ok:
        return ()
    lines = []
    if log.homeless:
        lines.append(f"no room for {log.largest // GIB} GiB each: {', '.join(log.homeless)}")
    if log.window is not None:
        lines.append(
            f"the firmware's window is {log.window_gib} GiB, from 0x{log.window[0]:x}; {cards} cards want more"
        )
    lines += [f"NVRM: {line}" for line in log.driver]
    lines.append("cure: cpu: host with 43 address bits or more and 1 GiB pages (no -pdpe1gb); never kvm64 or x86-64-v2")
    return lines
