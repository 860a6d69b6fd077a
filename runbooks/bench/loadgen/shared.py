"""A few counters in memory shared by fork: the parent reads them for progress and writes the phase.

No queue, no pipe, no lock: each word has one writer.
"""

from __future__ import annotations

import mmap

RAMP, WINDOW, DRAIN, CUT = 1, 2, 3, 4  # phases of a point; a worker only ever reads the phase

PHASE = 0
FIELDS = ("ready", "decoding", "flight", "reads", "finished", "failed", "sent", "done")


class Board:
    """Word 0 is the phase; then one row of FIELDS a worker."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._memory = mmap.mmap(-1, 8 * (1 + workers * len(FIELDS)))
        self._words = memoryview(self._memory).cast("q")

    @property
    def phase(self) -> int:
        return self._words[PHASE]

    @phase.setter
    def phase(self, value: int) -> None:
        self._words[PHASE] = value

    def row(self, worker: int) -> memoryview:
        start = 1 + worker * len(FIELDS)
        return self._words[start : start + len(FIELDS)]

    def total(self, field: str) -> int:
        at = FIELDS.index(field)
        return sum(self._words[1 + worker * len(FIELDS) + at] for worker in range(self.workers))
