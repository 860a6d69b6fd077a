"""Processes that work together and may hang: forked, fed nothing, listened to, and killed when their time is over.

Each writes JSON lines to a file of its own, so that what was measured before a hang is not lost. The parent never
loads torch: a CUDA context does not survive a fork.
"""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Emit = Callable[..., None]  # emit(kind, **fields)
Work = Callable[[int, Emit], None]

GRACE = 3.0  # seconds that the others get to end by themselves after one has failed


@dataclass(frozen=True)
class Outcome:
    """How a group ended: "ok", "hang" (it was killed), or "failed"; `rows` are all lines of all ranks."""

    state: str
    rows: tuple[dict[str, Any], ...]
    error: str = ""


def together(ranks: int, limit: float, work: Work, folder: Path) -> Outcome:
    """Run `work(rank, emit)` in `ranks` processes for at most `limit` seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    children = {_fork(rank, work, folder): rank for rank in range(ranks)}
    failed: list[int] = []
    until = time.monotonic() + limit
    hung = False
    while children:
        for child in tuple(children):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                rank = children.pop(child)
                if status:
                    failed.append(rank)
                    until = min(until, time.monotonic() + GRACE)
        if children and time.monotonic() > until:
            hung = not failed
            for child in children:
                os.kill(child, signal.SIGKILL)  # a process that waits for a GPU in the kernel dies later, or never
            until = float("inf") if _all_gone(children) else time.monotonic()
            if until != float("inf"):
                break
        time.sleep(0.02)
    rows = tuple(row for rank in range(ranks) for row in _lines(folder / f"rank-{rank}.jsonl"))
    if hung:
        return Outcome("hang", rows, f"no end within {limit:g} s: killed")
    if failed:
        return Outcome("failed", rows, _last_words(folder, failed))
    return Outcome("ok", rows)


def _all_gone(children: dict[int, int], patience: float = 5.0) -> bool:
    until = time.monotonic() + patience
    while children and time.monotonic() < until:
        for child in tuple(children):
            if os.waitpid(child, os.WNOHANG)[0]:
                del children[child]
        time.sleep(0.02)
    return not children


def _fork(rank: int, work: Work, folder: Path) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        words = os.open(folder / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(words, 1)
        os.dup2(words, 2)
        with (folder / f"rank-{rank}.jsonl").open("w", buffering=1) as out:

            def emit(kind: str, **fields: Any) -> None:
                out.write(json.dumps({"kind": kind, "rank": rank, **fields}) + "\n")

            work(rank, emit)
        code = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _lines(path: Path) -> list[dict[str, Any]]:
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:  # cut off by the kill
            continue
    return found


def _last_words(folder: Path, failed: list[int]) -> str:
    """The last line of the first that failed: with one rank gone the others fail for want of it."""
    text = (folder / f"rank-{failed[0]}.log").read_text(errors="replace").strip().splitlines()
    lines = [line.strip() for line in text if line.strip() and not line.startswith((" ", "\t"))]
    return f"rank {failed[0]}: {lines[-1] if lines else 'ended without a word'}"[:300]
