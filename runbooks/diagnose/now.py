"""What is wrong on a host now, apart from what was: a failure of an earlier start is told, and never leads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from runbooks.diagnose.classify import MOST, Cause, rank

WELL = ("nothing", "starting", "earlier")

_STARTING = re.compile(r"^.*systemd\[\d+\]: Starting .*$", re.MULTILINE)
_STARTED = re.compile(r"^.*systemd\[\d+\]: Started .*$", re.MULTILINE)
_READY = re.compile(r"fired up and ready to roll")
_ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_OF_A_PROCESS = re.compile(r"out of memory|oom|killed process|segfault", re.IGNORECASE)
"""What the kernel says of one process; a card or a disk that failed stays so over the start of another."""


def current(
    journal: str, kernel: str, unit: Mapping[str, str], about: str = "", installs: str = ""
) -> tuple[Cause, ...]:
    """Of a host, whose unit was asked; never empty, at most MOST.

    A server that systemd itself started again, and that is not ready yet, is explained by the death before.
    """
    runs = _runs(journal)
    ready = _settled(runs, unit)
    known = f"{about}\n{journal}"
    found = rank(runs[-1], _lately(kernel, runs[-1], ready=ready), unit, known)
    if found[0].page and not _silent(found[0]):
        return found if ready else with_installs(found, installs, runs[-1])
    before = [cause for run in reversed(runs[:-1]) for cause in _real(rank(run, "", unit, known))]
    if not ready and unit.get("NRestarts", "0") not in ("", "0") and len(runs) > 1:
        death = _real(rank(runs[-2], _lately(kernel, runs[-2], ready=False), unit, known))
        if death:
            return death
    if not ready:
        found = with_installs(found, installs, runs[-1])
    elif installs:
        before += _real(rank(installs, api=False))
    if ready:
        before = [*_real(rank("", kernel, unit)), *before]
    return _told(found, before)


def _told(found: tuple[Cause, ...], before: list[Cause]) -> tuple[Cause, ...]:
    """`before`: the newest first. None of them leads."""
    earlier = {cause.name: cause for cause in reversed(before)}
    older = [replace(earlier[name], text=f"earlier: {earlier[name].text}") for name in reversed(earlier)]
    if not older:
        return found
    if found[0].name in WELL:
        first = replace(older[0], name="earlier", text=f"nothing wrong now; {older[0].text}", certain=False)
        return (first, *older[1:MOST])
    return (*found, *older)[:MOST]


def with_installs(found: tuple[Cause, ...], installs: str, run: str = "") -> tuple[Cause, ...]:
    """Where the server says nothing certain, what was being installed; not where its last start went well."""
    if not installs or (found[0].certain and found[0].name != "not-deployed") or _READY.search(run):
        return found
    installed = tuple(cause for cause in rank(installs, api=False) if cause.certain)
    return (*installed, *(cause for cause in found if cause.name not in WELL)) if installed else found


def _runs(journal: str) -> list[str]:
    """Each start with all that followed it; first what stands before the first of them, if anything does."""
    starts = [match.start() for match in _STARTING.finditer(journal)]
    starts = starts or [match.start() for match in _STARTED.finditer(journal)]
    runs = [journal[begin:end] for begin, end in pairwise([0, *starts, len(journal)])]
    return runs if runs[0].strip() or len(runs) == 1 else runs[1:]


def _settled(runs: list[str], unit: Mapping[str, str]) -> bool:
    """It runs, and got ready: in its log, or so long ago that its start is not there."""
    if unit.get("ActiveState") != "active":
        return False
    return bool(_READY.search(runs[-1])) or not (_STARTING.match(runs[-1]) or _STARTED.match(runs[-1]))


def _lately(kernel: str, run: str, *, ready: bool) -> str:
    """Without what the kernel said before this run began; lines without a stamp are what the host says now."""
    begin = _ISO.match(run) if _STARTING.match(run) or _STARTED.match(run) else None
    if begin is None:
        return kernel

    def kept(line: str) -> bool:
        stamp = _ISO.match(line)
        older = stamp is not None and stamp[0] < begin[0]
        return not older or not (ready or _OF_A_PROCESS.search(line))

    return "\n".join(line for line in kernel.splitlines() if kept(line))


def _silent(cause: Cause) -> bool:
    """Said where no signature was met."""
    return cause.name in (*WELL, "unknown", "not-running", "not-deployed")


def _real(found: tuple[Cause, ...]) -> tuple[Cause, ...]:
    """Failures: that somebody stopped a server is none."""
    return tuple(cause for cause in found if not _silent(cause) and cause.name != "stopped")
