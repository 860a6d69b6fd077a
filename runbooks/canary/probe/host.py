"""What systemd and the kernel say about the server before and after. Without systemd, or without rights, everything
is None."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

NAN_LINES = re.compile(
    r"Detected errors during sampling! NaN in the logits|NaN detected|values were sanitized before sampling"
    r"|probability tensor contains either|nan or element < 0",
    re.IGNORECASE,
)
XID = re.compile(r"NVRM: Xid \(PCI:[^)]*\): \d+")


@dataclass(frozen=True)
class HostState:
    pid: int | None = None
    restarts: int | None = None
    active: str | None = None
    xids: int | None = None


def state(unit: str | None) -> HostState:
    """The unit's main PID, restart counter and state, and how many Xid lines this boot's kernel log has."""
    shown = _run(["systemctl", "show", unit, "-p", "MainPID,NRestarts,ActiveState"]) if unit else None
    fields = dict(line.split("=", 1) for line in (shown or "").splitlines() if "=" in line)
    kernel = _run(["journalctl", "-k", "-b", "-o", "cat", "--no-pager", "-q", "-n", "20000"])
    return HostState(
        pid=_integer(fields.get("MainPID")),
        restarts=_integer(fields.get("NRestarts")),
        active=fields.get("ActiveState"),
        xids=None if kernel is None else len(XID.findall(kernel)),
    )


def nan_line(unit: str | None, since: float) -> str | None:
    """A line of the unit's journal, written since then (Unix time), that speaks of NaN."""
    if unit is None:
        return None
    journal = _run(
        ["journalctl", "-u", unit, "--since", f"@{since:.0f}", "-o", "cat", "--no-pager", "-q", "-n", "5000"]
    )
    return _first_nan((journal or "").splitlines()) or _said_once(unit)


def _said_once(unit: str) -> str | None:
    """SGLang's sanitiser speaks once in a server's life, which may have been long ago."""
    life = (_run(["systemctl", "show", unit, "-p", "InvocationID", "--value"]) or "").strip()
    if not life:
        return None
    which = [f"_SYSTEMD_INVOCATION_ID={life}", "-g", "sanitized before sampling", "-n", "1"]
    return _first_nan((_run(["journalctl", *which, "-o", "cat", "--no-pager", "-q"]) or "").splitlines())


class Log:
    """The log file of a server that is no systemd unit, from its present end on."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.began = path, path.stat().st_size if path and path.exists() else 0

    def nan_line(self) -> str | None:
        if self.path is None or not self.path.exists():
            return None
        with self.path.open(errors="replace") as lines:
            once = next((line.strip()[:200] for line in lines if "sanitized before sampling" in line), None)
            lines.seek(self.began if self.path.stat().st_size >= self.began else 0)  # it may have been rotated
            return _first_nan(lines) or once


def _first_nan(lines: Iterable[str]) -> str | None:
    return next((line.strip()[:200] for line in lines if NAN_LINES.search(line)), None)


def _run(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=5, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _integer(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None
