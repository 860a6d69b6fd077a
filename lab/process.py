"""Processes that outlive the one that started them, known by pid and start time, and never by name."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runbooks.engine.errors import RunbookError


@dataclass(frozen=True)
class Process:
    """A pid alone may have been given to somebody else since: `started` (clock ticks since boot) tells them apart."""

    pid: int
    started: int

    @classmethod
    def start(cls, argv: list[str], *, log: Path, env: Mapping[str, str] | None = None) -> Process:
        """Start `argv` in a session of its own, with its output in `log` (begun anew)."""
        log_flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        pid = os.posix_spawnp(
            argv[0],
            argv,
            os.environ if env is None else env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), log_flags, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
        found = _look(pid)
        if found is None:
            raise RunbookError(
                f"lab: {argv[0]} ended as soon as it was started", details=log.read_text().splitlines()[-5:]
            )
        return cls(pid, found.started)

    def alive(self) -> bool:
        found = _look(self.pid)
        return found is not None and found.started == self.started and not found.dead

    def end(self, *, by: signal.Signals = signal.SIGKILL, patience: float = 10.0) -> None:
        """Send `by`, SIGKILL when half of `patience` (seconds) is over, and return once it is gone."""
        begun = time.monotonic()
        sent = False
        while self.alive():
            waited = time.monotonic() - begun
            if waited > patience:
                raise RunbookError(f"lab: process {self.pid} does not end, not even by SIGKILL")
            if not sent or waited > patience / 2:
                os.kill(self.pid, signal.SIGKILL if sent else by)
                sent = True
            time.sleep(0.02)


@dataclass(frozen=True)
class _Look:
    started: int
    dead: bool


def _look(pid: int) -> _Look | None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # our own child: do not leave it a zombie
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # proc(5): the state is field 3, the start time field 22
    return _Look(started=int(fields[19]), dead=fields[0] in "ZX")
