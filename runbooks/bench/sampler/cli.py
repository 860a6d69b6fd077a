"""`python3 sampler.pyz --out FILE --beside PID`: one JSON array a line, until the process beside it ends.

    ["card", ns, index, watts, SM MHz, memory MHz, degrees C, GPU busy %, throttle reasons (a bit mask)]
    ["link", ns, index, received MB/s, sent MB/s]                 as nvidia-smi dmon counts them, over 20 ms

`ns` is `time.perf_counter_ns()` of the host, the clock of the load generator's raw logs. What a card does not tell is
null; a host without nvidia-smi leaves an empty file.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

FIELDS = ("index", "power.draw", "clocks.sm", "clocks.mem", "temperature.gpu", "utilization.gpu")
REASONS = "clocks_throttle_reasons.active"  # the name that old and new drivers know
QUERY = ("nvidia-smi", f"--query-gpu={','.join(FIELDS)},{REASONS}", "--format=csv,noheader,nounits", "-lms", "1000")
LINK = ("nvidia-smi", "dmon", "-s", "t", "-d", "1")
LIMIT = 64 << 20  # bytes of output; a sweep of an hour over eight cards makes 4 MB


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="sampler", description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--beside", type=int, required=True, help="the process whose end is ours")
    options = parser.parse_args(argv)
    with options.out.open("a", buffering=1) as out:  # a sweep that is resumed keeps what its first points drew
        children = {kind: _start(command) for kind, command in (("card", QUERY), ("link", LINK))}
        try:
            _follow({kind: child for kind, child in children.items() if child}, options.beside, out)
        finally:
            for child in filter(None, children.values()):
                child.send_signal(signal.SIGKILL)  # one that waits in the kernel for its driver is not waited for
    return 0


def _start(command: Sequence[str]) -> subprocess.Popen[bytes] | None:
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
    except OSError:
        return None


def _follow(children: dict[str, subprocess.Popen[bytes]], beside: int, out: IO[str]) -> None:
    rest = dict.fromkeys(children, b"")
    written = 0
    with selectors.DefaultSelector() as selector:
        for kind, child in children.items():
            assert child.stdout is not None
            selector.register(child.stdout, selectors.EVENT_READ, kind)
        while _lives(beside) and selector.get_map() and written < LIMIT:
            for key, _ in selector.select(1.0):
                data = os.read(key.fd, 65536)
                now = time.perf_counter_ns()
                if not data:
                    selector.unregister(key.fileobj)
                    continue
                *lines, rest[key.data] = (rest[key.data] + data).split(b"\n")
                for line in lines:
                    row = row_of(key.data, now, line.decode("ascii", "replace"))
                    written += out.write(json.dumps(row, separators=(",", ":")) + "\n") if row else 0


def row_of(kind: str, now: int, line: str) -> list[object] | None:
    """One line of nvidia-smi as a row; None for a heading, and for what is neither."""
    if kind == "link":
        words = line.split()
        if len(words) != 3 or not words[0].isdigit():
            return None
        return ["link", now, int(words[0]), _number(words[1]), _number(words[2])]
    words = [word.strip() for word in line.split(",")]
    if len(words) != len(FIELDS) + 1 or not words[0].isdigit():
        return None
    reasons = int(words[-1], 16) if words[-1].startswith("0x") else None
    return ["card", now, int(words[0]), *(_number(word) for word in words[1:-1]), reasons]


def _number(word: str) -> float | None:
    """`-` and `[N/A]` are what a card does not tell."""
    try:
        return float(word)
    except ValueError:
        return None


def _lives(pid: int) -> bool:
    """A process that ended and was not waited for does not live."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return False
