"""How far a running command is, read from what apt, pip, ninja, cmake and our own downloader print.

apt and pip say how much there is to do before they do it, so their lines are counted; the others say both. How long
it still takes is told by the command's own clock where it has one, so that who attaches later is told the same.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from runbooks.engine.report import Reporter


@dataclass(frozen=True)
class Progress:
    """`total` None: not known. `detail`: what is under way."""

    done: float
    total: float | None
    unit: str = ""
    detail: str = ""


class Meter:
    """Reads one command's output line by line; a line that tells nothing of the progress gives None."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock  # seconds
        self._packages = 0  # that apt will handle: each is fetched (unless it is here), unpacked and set up
        self._apt_done = 0
        self._fetched = 0
        self._begin_pip()

    def read(self, line: str) -> Progress | None:
        """The progress that this line tells, if it does."""
        return self._steps(line) or self._fetch(line) or self._apt(line) or self._pip(line)

    def _steps(self, line: str) -> Progress | None:
        """ninja: `[37/73] Building CXX object x.o`, with NINJA_STATUS `[37/73] 812.4 s Building`; cmake and make:
        `[ 50%] Building C object y.o`.
        """
        if match := re.match(r"\s*\[\s*(\d+)/(\d+)\]\s*(?:([\d.]+) s )?(.*)", line):
            done, total = int(match[1]), int(match[2])
            left = f", {left_text(float(match[3]) / done * (total - done))}" if match[3] and 0 < done < total else ""
            return Progress(done, total, detail=_work(match[4]) + left)
        if match := re.match(r"\s*\[\s*(\d+)%\]\s*(.*)", line):
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

    def _begin_pip(self) -> None:
        self._collected = 0
        self._resolved: int | None = None  # packages that there will be in the end, once that is known
        self._metadata = False
        self._came = 0  # wheels
        self._file = ""
        self._began: float | None = None  # by our clock: pip shows none

    def _pip(self, line: str) -> Progress | None:
        """Where the index gives metadata alone, pip resolves all before the first wheel; a frozen list says its
        length itself (`Resolved: 154 packages`). Without either nobody knows how many there will be.
        """
        if line.startswith("Successfully installed"):
            self._begin_pip()
        if match := re.match(r"Resolved: (\d+) packages", line):
            self._resolved = int(match[1])
            return None
        if match := re.match(r"\s*Progress (\d+) of (\d+)$", line):  # pip's --progress-bar=raw
            done, total = int(match[1]), int(match[2])
            part, size = done / max(total, 1), f"{done / 1e6:.0f}/{total / 1e6:.0f} MB"
            return self._packages_done(max(self._came - 1, 0) + part, f"{self._file} {size}".strip())
        if match := re.match(r"\s*(?:Collecting|Requirement already satisfied:) (\S+)", line):
            self._collected += 1
            return self._packages_done(self._came, match[1])
        if match := re.match(r"\s*(?:Downloading|Using cached|Processing) (\S+)(?: \((.+)\))?$", line):
            self._file = match[1].rpartition("/")[2]
            if self._file.endswith(".metadata"):
                self._metadata = True
                return Progress(self._collected, None, "packages", self._file)
            if self._resolved is None and self._metadata:
                self._resolved = self._collected
            self._came += 1
            return self._packages_done(self._came - 1, f"{self._file} {match[2] or ''}".strip())
        if match := re.match(
            r"\s*(Building wheels? for|Installing collected packages|Preparing metadata)\b:? ?(.*)", line
        ):
            return Progress(self._collected, None, "packages", _short(f"{match[1]} {match[2]}"))
        return None

    def _packages_done(self, done: float, detail: str) -> Progress:
        """Of the resolved set, where that is known, with the time that the rest takes at this rate."""
        if self._resolved is None:
            return Progress(self._collected, None, "packages", detail)
        now = self._clock()
        if self._began is None:
            self._began = now
        elapsed, rest = now - self._began, self._resolved - done
        left = f", {left_text(elapsed / done * rest)}" if done > 0 and rest > 0 and elapsed > 0 else ""
        return Progress(min(done, self._resolved), self._resolved, "packages", detail + left)


class Gauge:
    """How far a job at work is, for people: nothing of what was before they came, then as it goes on."""

    def __init__(self, host: str, report: Reporter) -> None:
        self._host = host
        self._report = report
        self._live = False
        self.begin("")

    def begin(self, name: str) -> None:
        """Another command begins, under this name."""
        self._name, self._meter = name, Meter()
        self._last: Progress | None = None

    def read(self, line: str) -> None:
        found = self._meter.read(line)
        if found is not None:
            self._last = found
            self._tell()

    def live(self) -> None:
        """The log was read up to where the job is."""
        self._live = True
        self._tell()

    def _tell(self) -> None:
        if self._live and self._last is not None:
            now = self._last
            self._report.progress(self._name, now.done, now.total, host=self._host, unit=now.unit, detail=now.detail)


def left_text(seconds: float) -> str:
    """`40 s left`, `23 min left`, `2.5 h left`."""
    if seconds < 90:
        return f"{seconds:.0f} s left"
    return f"{seconds / 60:.0f} min left" if seconds < 5400 else f"{seconds / 3600:.1f} h left"


def _package(words: list[str]) -> str:
    """Of `bookworm/main amd64 nano amd64 7.2-1`, or `nvidia-open 580.1` of a flat repository."""
    return (
        words[-3] if len(words) > 2 and words[-2] in ("amd64", "arm64", "all") else words[-2 if len(words) > 1 else -1]
    )


def _work(text: str) -> str:
    """The source's name, where ninja says the whole compiler command, as PyTorch's builds do."""
    sources = re.findall(r"(?<=/)[^/ ]+\.(?:cu|cuh|cpp|cc|cxx|c)(?= |$)", text)
    return sources[-1] if sources else _short(text)


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
