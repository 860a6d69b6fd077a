"""`--since`: how far back a log is read. On a host journald counts back from now; a text that was saved is counted back
from its own last line, by the time stamps that stand before its lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from runbooks.engine.errors import UsageError

if TYPE_CHECKING:
    from runbooks.diagnose.sources import Texts

_SINCE = re.compile(r"([0-9]{1,6})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
YEAR = 366 * 86400.0
MIDSUMMER = datetime(2000, 7, 1, tzinfo=UTC).timestamp()  # lines without a year are put into 2000, a leap year

Stamp = tuple[str, float]  # which clock, and seconds on it

# journald's short-iso, containers, SGLang's own, apt's term.log
_ISO = re.compile(
    r"(?:[\w.-]+ +\| |Log (?:started|ended): )?\[?(\d{4}-\d\d-\d\d)(?:T| +)(\d\d:\d\d:\d\d)(?:[.,]\d+)?"
    r" ?(Z|[+-]\d\d:?\d\d)?"
)
# syslog, journald's short, dmesg -T
_SHORT = re.compile(
    r"\[?(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)(?:\.\d+)?( \d{4})?"
)
_UPTIME = re.compile(r"(?:<\d+>)?\[ *(\d+\.\d+)\]")  # dmesg: seconds since the boot


def seconds(since: str) -> int:
    """'90s', '10m', '1h', '2d'. Raises UsageError for anything else."""
    match = _SINCE.fullmatch(since)
    if not match:
        raise UsageError(f"--since {since[:40]!r} is no length of time", details=["for example 30m, 1h or 2d"])
    return int(match[1]) * _SECONDS[match[2]]


def recent(texts: Texts, span: float) -> Texts | None:
    """What was said in the last `span` seconds of these texts; None where no line tells its time.

    A line without a stamp belongs to the one above it. Clocks are compared with their own kind only: seconds since a
    boot say nothing about a date, and a date without a zone nothing about one that has it.
    """
    logs = [list(_stamped(log)) for log in (texts.journal, texts.kernel, texts.installs)]
    times: dict[str, list[float]] = {}
    for clock, time in {stamp for log in logs for _, stamp in log if stamp}:
        times.setdefault(clock, []).append(time)
    if not times:
        return None
    short = times.get("short", [0.0])
    turned = max(short) - min(short) > YEAR / 2  # January follows December, and no line names its year

    def since(clock: str, time: float) -> float:
        return time + YEAR if turned and clock == "short" and time < MIDSUMMER else time

    last = {clock: max(since(clock, time) for time in found) for clock, found in times.items()}
    kept = [
        "\n".join(line for line, stamp in log if not stamp or last[stamp[0]] - since(*stamp) <= span) for log in logs
    ]
    return replace(texts, journal=kept[0], kernel=kept[1], installs=kept[2])


def _stamped(log: str) -> Iterator[tuple[str, Stamp | None]]:
    """Each line with its stamp, or with the last one above it."""
    stamp = None
    for line in log.splitlines():
        stamp = _stamp(line) or stamp
        yield line, stamp


def _stamp(line: str) -> Stamp | None:
    try:
        if match := _ISO.match(line):
            zone = (match[3] or "Z").replace("Z", "+00:00")
            return "date" if match[3] else "local", datetime.fromisoformat(f"{match[1]}T{match[2]}{zone}").timestamp()
        if match := _SHORT.match(line):
            when = datetime.strptime(f"{match[1]}{match[2] or ' 2000'}", "%b %d %H:%M:%S %Y").replace(tzinfo=UTC)
            return "local" if match[2] else "short", when.timestamp()
    except ValueError:  # it only looks like one
        return None
    match = _UPTIME.match(line)
    return ("boot", float(match[1])) if match else None
