"""One stream of events: everything that people or programs see of a run passes here, and is redacted here.

An event has a kind, a host or none, a text, and data by kind. With `--json` each event is one line:

    {"event": "note", "host": "glm5-a", "text": "...", "level": "warning", "time": 1764000000.0}

| event    | data                                                                              |
|----------|-----------------------------------------------------------------------------------|
| heading  |                                                                                   |
| note     | level: info, good, warning, error; doctor: check; watch: seen, and of an error    |
|          | its parts                                                                         |
| progress | done, total (null: unknown), unit, detail; the same text again replaces the line  |
| output   | a line of a log; chatter: of a step at work, news only while it is under way      |
| stage    | state: ok, changed, would-change, failed, undecided; ok, changed: counts; seconds |
| step     | state: changed, would-change, failed, undecided; diff: lines; unified: text       |
| table    | columns, rows                                                                     |
| result   | the outcome of a host or a command: state (ok, changed, would-change, left-out,   |
|          | failed, or a release's verdict) or level; left-out, failed: message, details      |
|          | (lines), step, next (a command), page; null: none. And by command:                |
|          | provision: changed, unchanged, would_change; deploy: release, seconds, observed;  |
|          | health: checks, page; gateways: workers; canary: verdict, findings, causes,       |
|          | settings; diagnose: causes; jobs: rc (running, killed, restart or an exit code);  |
|          | runbook: ran (its blocks), page (where it goes on)                                |
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from runbooks.engine.errors import RunbookError, printable
from runbooks.engine.secret import MASK, SHORTEST, Secret

Level = Literal["info", "good", "warning", "error"]


@dataclass(frozen=True)
class Event:
    kind: str
    text: str
    host: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    time: float = field(default_factory=time.time)


class Printer(Protocol):
    def show(self, event: Event) -> None: ...

    def close(self) -> None: ...


class Reporter:
    """Where all parts say what happens. Threads may share one."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self._secrets: set[str] = set()
        self._lock = threading.Lock()

    def hide(self, secret: Secret) -> None:
        """From now on this value is shown as *** wherever it turns up."""
        value = secret.reveal()
        if len(value) >= SHORTEST:
            self._secrets.update({value, *(line for line in value.splitlines() if len(line) >= SHORTEST)})

    def redact(self, value: Any) -> Any:
        """The same value with every hidden secret masked and fit to be shown, through mappings and sequences."""
        if isinstance(value, str):
            for secret in self._secrets:
                value = value.replace(secret, MASK)
            return printable(value)
        if isinstance(value, Mapping):
            return {self.redact(key): self.redact(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.redact(item) for item in value]
        return value

    def emit(self, kind: str, text: str, *, host: str | None = None, **data: Any) -> None:
        with self._lock:
            self._printer.show(Event(kind, self.redact(text), host, self.redact(data)))

    def close(self) -> None:
        with self._lock:
            self._printer.close()

    def failed(self, error: RunbookError, *, host: str | None = None, state: str = "failed") -> None:
        """The end of a host: its error, whole for people and in parts for programs."""
        host = host or error.host
        self.emit("result", error.told(host), host=host, state=state, **error.fields)

    def heading(self, text: str) -> None:
        self.emit("heading", text)

    def note(self, text: str, *, host: str | None = None, level: Level = "info") -> None:
        self.emit("note", text, host=host, level=level)

    def progress(
        self, what: str, done: float, total: float | None, *, host: str | None = None, unit: str = "", detail: str = ""
    ) -> None:
        """A live line, replaced by the next one of the same `what`; it goes away when `done` reaches `total`."""
        self.emit("progress", what, host=host, done=done, total=total, unit=unit, detail=detail)

    def output(self, line: str, *, host: str | None = None, chatter: bool = False) -> None:
        """A line of a log. `chatter`: what a step at work prints, for a live line; pipes show it only when asked."""
        self.emit("output", line, host=host, chatter=chatter)

    def table(
        self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, host: str | None = None
    ) -> None:
        self.emit("table", title, host=host, columns=list(columns), rows=[list(row) for row in rows])


def moment_text(when: float | str) -> str:
    """A moment, in seconds since the epoch or as ISO 8601 text, as people read it: UTC, as in the hosts' logs and ours,
    to the minute.

    Text that is no time comes back as it is.
    """
    try:
        moment = datetime.fromisoformat(when) if isinstance(when, str) else datetime.fromtimestamp(when, tz=UTC)
        return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return str(when)


def span(seconds: float) -> str:
    """A time in the unit that people would use."""
    seconds = max(0.0, seconds)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
