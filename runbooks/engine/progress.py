"""How far a running command is, read from what apt, pip, ninja, cmake and our own downloader print. Pure.

apt and pip say how much there is to do before they do it, so their lines are counted; the others say both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """`total` None: not known. `detail`: what is under way."""

    done: float
    total: float | None
    unit: str = ""
    detail: str = ""


class Meter:
    """Reads one command's output line by line; a line that tells nothing of the progress gives None."""

    def __init__(self) -> None:
        self._packages = 0  # that apt will handle: each is fetched (unless it is here), unpacked and set up
        self._apt_done = 0
        self._fetched = 0
        self._collected = 0

    def read(self, line: str) -> Progress | None:
        """The progress that this line tells, if it does."""
        return self._steps(line) or self._fetch(line) or self._apt(line) or self._pip(line)

    def _steps(self, line: str) -> Progress | None:
        """ninja: `[37/73] Building CXX object x.o`; cmake and make: `[ 50%] Building C object y.o`."""
        if match := re.match(r"\[\s*(\d+)/(\d+)\]\s*(.*)", line):
            return Progress(int(match[1]), int(match[2]), detail=_short(match[3]))
        if match := re.match(r"\[\s*(\d+)%\]\s*(.*)", line):
            return Progress(int(match[1]), 100, "%", _short(match[2]))
        return None

    def _fetch(self, line: str) -> Progress | None:
        """Ours: `fetch 12.3/441.0 GB 310 MB/s, 23 min left`."""
        match = re.match(r"fetch ([\d.]+)/([\d.]+) ([GM]B) (.*)", line)
        return Progress(float(match[1]), float(match[2]), match[3], match[4]) if match else None

    def _apt(self, line: str) -> Progress | None:
        if match := re.match(r"(\d+) upgraded, (\d+) newly installed, (?:(\d+) downgraded, )?(\d+) to remove", line):
            self._packages = sum(int(count or 0) for count in match.groups())
            self._apt_done = self._fetched = 0
            return Progress(0, 2 * self._packages, "steps") if self._packages else None
        if self._packages and (match := re.match(r"Get:\d+ \S+ (.+) \[(.+)\]$", line)):
            self._fetched += 1
            return Progress(self._fetched, self._packages, "fetched", f"{_package(match[1].split())} {match[2]}")
        if self._packages and (match := re.match(r"(Unpacking|Setting up|Removing) (\S+)", line)):
            self._apt_done += 1
            return Progress(
                min(self._apt_done, 2 * self._packages), 2 * self._packages, "steps", f"{match[1]} {match[2]}"
            )
        if match := re.match(r"Waiting for cache lock: (.*)", line):
            holder = re.search(r"held by process \d+ \(.*\)", match[1])
            return Progress(0, None, detail=f"waiting for apt's lock: {holder[0] if holder else _short(match[1])}")
        return None

    def _pip(self, line: str) -> Progress | None:
        if match := re.match(r"Progress (\d+) of (\d+)$", line):  # pip's --progress-bar=raw
            return Progress(int(match[1]) / 1e6, int(match[2]) / 1e6, "MB")
        if match := re.match(r"\s*(?:Collecting|Requirement already satisfied:) (\S+)", line):
            self._collected += 1
            return Progress(self._collected, None, "packages", match[1])
        if match := re.match(r"\s*(?:Downloading|Using cached) (\S+) \((.+)\)", line):
            return Progress(self._collected, None, "packages", f"{match[1].rpartition('/')[2]} {match[2]}")
        if match := re.match(
            r"\s*(Building wheels? for|Installing collected packages|Preparing metadata)\b:? ?(.*)", line
        ):
            return Progress(self._collected, None, "packages", _short(f"{match[1]} {match[2]}"))
        return None


def _package(words: list[str]) -> str:
    """Of `bookworm/main amd64 nano amd64 7.2-1`, or `nvidia-open 580.1` of a flat repository."""
    return (
        words[-3] if len(words) > 2 and words[-2] in ("amd64", "arm64", "all") else words[-2 if len(words) > 1 else -1]
    )


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
