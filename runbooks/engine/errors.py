"""The error tree, and how an error reads.

RunbookError            exit 1   something on a host, or in a run, failed
  Unreachable           exit 1   no connection, or a connection that was lost
    HostKeyUnknown      exit 1   no key is pinned for the host
    HostKeyChanged      exit 1   the host showed another key than the one pinned
  NoAnswer              exit 1   the host is there, an answer did not come within its deadline
  StepFailed            exit 1   a step failed, or still wants a change after it was applied
    NotWritten          exit 1   the host takes no file (a full disk), or no job
  CheckFailed           exit 1   a check (GPUs, disk, operating system) says no
  Bug                   exit 1   an exception that nobody foresaw; its traceback is in a private file
UsageError              exit 2   wrong option, inventory or environment: nothing was touched

No error of ours: 0 all is well, 3 `--check` found changes, 130 interrupted by Ctrl-C (what goes on is said).
"""

from __future__ import annotations

import os
import re
import tempfile
import time
import traceback
from collections.abc import Iterable, Sequence
from typing import Any


class RunbookError(Exception):
    """An error written for the person who has to act on it.

    `message` is one line that says what is wrong; `details` are lines that came back or were found;
    `next` is the command to type, `page` the on-call page to read; `host` and `step` say where.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        host: str | None = None,
        step: str | None = None,
        details: Sequence[str] = (),
        next: str | None = None,
        page: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.host = host
        self.step = step
        self.details = tuple(details)
        self.next = next
        self.page = page

    @property
    def head(self) -> str:
        """What is wrong in one line, without the host."""
        return f"{self.step}: {self.message}" if self.step else self.message

    @property
    def fields(self) -> dict[str, Any]:
        """Its parts, for programs; the host is the event's own."""
        parts = {"message": self.message, "details": list(self.details), "step": self.step}
        return {**parts, "next": self.next, "page": self.page}

    def __str__(self) -> str:
        return self.told()

    def told(self, host: str | None = None) -> str:
        """As people read it; `host`: that this one failed is said already."""
        lines = [f"{self.head}   ({self.host})" if self.host and self.host != host else self.head]
        lines += [f"  {line}" for line in self.details]
        pointers = [f"next: {self.next}"] if self.next else []
        pointers += [f"page: invoke runbook {self.page}"] if self.page else []
        if pointers:
            lines.append("  " + "     ".join(pointers))
        return "\n".join(lines)


_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t\r"}


def printable(text: str) -> str:
    """What a host, a server or a file said, without the power to move the cursor or to colour what follows."""
    return text if text.isprintable() else text.translate(_CONTROLS)


def page_of(lines: Iterable[str]) -> str | None:
    """The page for what a failed command printed, where that names a cause that any command can meet."""
    full = re.compile(r"No space left on device|Disk quota exceeded| 100% /")  # the last one: a line of df
    return "disk-full" if any(full.search(line) for line in lines) else None


class Unreachable(RunbookError):
    """No connection to the host, or a connection that was lost."""


class HostKeyUnknown(Unreachable):
    """No key is pinned for the host, so the one it shows is not believed."""


class HostKeyChanged(Unreachable):
    """The host showed another key than the one that is pinned for it."""


class NoAnswer(RunbookError):
    """The host is there, but an answer did not come within its deadline."""


class StepFailed(RunbookError):
    """A step failed, or still wants a change after it was applied."""


class NotWritten(StepFailed):
    """The host takes no file, as on a full disk, or no job: it says nothing of what was to be done with it."""


class CheckFailed(RunbookError):
    """A check says no: a GPU is missing, a disk too small, an operating system unknown."""


class Bug(RunbookError):
    """An exception that nobody foresaw: its traceback goes to a private file, for a report."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"a bug in runbooks: {type(error).__name__}", details=[_written(error)])


def _written(error: BaseException) -> str:
    try:
        handle, name = tempfile.mkstemp(prefix=f"runbooks-bug-{int(time.time())}-", suffix=".txt")
        with os.fdopen(handle, "w", errors="backslashreplace") as out:
            traceback.print_exception(error, file=out)
    except OSError:  # no folder for it, or a full disk
        return "the same with TMPDIR=FOLDER writes down the details, for a report"
    return f"the details, for a report: {name}"


class UsageError(RunbookError):
    """Wrong option, inventory or environment. Nothing was touched."""

    exit_code = 2


def worst(*codes: int) -> int:
    """Of several exit codes: that a host failed (1) says more than a mistake in the inventory (2)."""
    return 1 if 1 in codes else max(codes)
