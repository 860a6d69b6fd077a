"""A printer that keeps what was said."""

from __future__ import annotations

from runbooks.engine.report import Event


class Recorder:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def show(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None: ...

    @property
    def texts(self) -> list[str]:
        return [event.text for event in self.events]
