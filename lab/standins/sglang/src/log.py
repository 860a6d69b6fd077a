"""SGLang's log lines: `[2026-11-29 16:02:46] text`, and `[2026-11-29 16:02:46 TP0] text` from a scheduler of several.

Through `logging`, as in SGLang: whoever set a record factory before (a launcher that masks a key) sees each line.
"""

from __future__ import annotations

import logging
import sys


class Log:
    """Two loggers on standard error, one for each kind of process."""

    def __init__(self, tensor_parallel: int = 1) -> None:
        self._server = _logger("sglang.server", "")
        self._scheduler = _logger("sglang.scheduler", " TP0" if tensor_parallel > 1 else "")

    def server(self, text: str) -> None:
        """A line of the HTTP process."""
        self._server.info("%s", text)

    def scheduler(self, text: str) -> None:
        """A line of the scheduler of rank 0."""
        self._scheduler.info("%s", text)

    def bare(self, text: str) -> None:
        """Something that is no log line: a warning or a traceback of Python's own."""
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def _logger(name: str, rank: str) -> logging.Logger:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"[%(asctime)s{rank}] %(message)s", datefmt="%Y-%m-%d %H:%M:%S"))
    found = logging.getLogger(name)
    found.handlers = [handler]
    found.propagate = False
    found.setLevel(logging.INFO)
    return found
