"""SGLang's log lines: `[2026-11-29 16:02:46] text`, and `[2026-11-29 16:02:46 TP0] text` from a scheduler of
several."""

from __future__ import annotations

import sys
import time


class Log:
    """Writes whole lines to standard error, as SGLang's logging does."""

    def __init__(self, tensor_parallel: int = 1) -> None:
        self._rank = " TP0" if tensor_parallel > 1 else ""

    def server(self, text: str) -> None:
        """A line of the HTTP process."""
        self.bare(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {text}")

    def scheduler(self, text: str) -> None:
        """A line of the scheduler of rank 0."""
        self.bare(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}{self._rank}] {text}")

    def bare(self, text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
