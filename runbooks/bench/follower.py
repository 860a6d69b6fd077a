"""Reads the load generator's JSON lines: progress with the time that is left, results as they come, errors."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runbooks.bench.words import streams
from runbooks.engine.report import Reporter


def event_of(line: str, report: Reporter, host: str) -> dict[str, Any]:
    """One of what a job prints. A line that is none is shown as it is, and gives {}."""
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    if not isinstance(event, dict):  # a bare number is JSON, too
        report.output(line, host=host)
        return {}
    return event


@dataclass
class Follower:
    """`points`: how many will be measured, over all passes; `each`: seconds that one takes, until the first is over."""

    report: Reporter
    host: str
    points: int
    each: float
    done: int = 0
    began: float = 0.0  # the point under way; 0: before the first
    took: list[float] = field(default_factory=list)
    error: dict[str, Any] | None = None

    def line(self, line: str) -> None:
        event = event_of(line, self.report, self.host)
        match event.get("event"):
            case "progress":
                self._progress(event)
            case "point":
                self._point(event)
            case "error":
                self.error = event
            case "note" | "self_check":
                self.report.note(event["text"], host=self.host)

    def _point(self, event: Mapping[str, Any]) -> None:
        self.done += 1
        now = time.monotonic()
        if self.began and not event.get("resumed"):
            self.took.append(max(now - self.began, event.get("window_s", 0.0)))  # a log is read again all at once
        self.began = now
        failed = event["requests"]["failed"]
        known = f" ±{event['tok_s_ci'] / event['tok_s']:.1%}" if event["tok_s_ci"] and event["tok_s"] else ""
        text = f"{_load(event)}: {event['tok_s']:.1f} tok/s{known}" + (f", {failed} requests failed" if failed else "")
        text += f", pass {event['repeat'] + 1}" if event.get("repeat") else ""
        text += ", kept from before" if event.get("resumed") else ""
        text += ", interrupted" if event.get("interrupted") else ""
        self.report.note(text, host=self.host, level="warning" if failed else "info")

    def _progress(self, event: Mapping[str, Any]) -> None:
        self.began = self.began or time.monotonic()
        each = sum(self.took) / len(self.took) if self.took else self.each
        share = min(0.99, (time.monotonic() - self.began) / max(each, 1e-9))
        done = min(self.done + share, self.points - 0.01)
        left = each * (self.points - done)
        rate = f", about {event['rate']:.0f} tok/s" if event.get("rate") else ""
        failed = f", {event['failed']} failed" if event.get("failed") else ""
        where = f"{event['point']:g} a second" if event.get("open") else streams(event["point"])
        number = f"point {min(self.done + 1, self.points)} of {self.points}"
        detail = f"{number}: {where}, {event['phase']}{rate}{failed}, {_minutes(left)} left"
        self.report.progress("bench", int(100 * done / self.points), 100, host=self.host, unit="%", detail=detail)


def _load(point: Mapping[str, Any]) -> str:
    return f"{point['open']['offered']:g} a second" if point.get("open") else streams(point["concurrency"])


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min"
