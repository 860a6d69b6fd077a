"""A host that remembers what it was asked, for tests of order; what it answers is given beforehand."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from runbooks.engine.errors import Unreachable
from runbooks.engine.report import Event, Reporter
from runbooks.engine.shell import Answer
from runbooks.engine.transport import Connection

Reply = str | Callable[[str, bytes], str] | Exception


@dataclass
class FakeHost:
    """`replies`: a regular expression found in a script -> what the host prints. The first that fits answers."""

    replies: list[tuple[str, Reply]] = field(default_factory=list)
    name: str = "glm5-a"
    asked: list[str] = field(default_factory=list)
    put_files: dict[str, bytes] = field(default_factory=dict)
    archives: list[dict[str, tuple[int, bytes]]] = field(default_factory=list)
    dead_after: int | None = None  # exchanges after which the link is gone

    @property
    def conn(self) -> Connection:
        return cast(Connection, self)

    def ask(self, script: str, *, deadline: float = 30.0, stdin: bytes = b"") -> Answer:
        if self.dead_after is not None and len(self.asked) >= self.dead_after:
            raise Unreachable("the connection was lost", host=self.name)
        self.asked.append(script)
        if "tar -xpf" in script:
            with tarfile.open(fileobj=io.BytesIO(stdin)) as archive:
                members = archive.getmembers()
                self.archives.append({m.name: (m.mode, cast(Any, archive.extractfile(m)).read()) for m in members})
        for pattern, reply in self.replies:
            if re.search(pattern, script):
                if isinstance(reply, Exception):
                    raise reply
                out = reply if isinstance(reply, str) else reply(script, stdin)
                return Answer(0, out.encode(), "")
        return Answer(0, b"", "")

    def put(self, data: bytes, path: str, *, mode: int = 0o644, owner: str = "root:root") -> None:
        self.ask(f"put {path}")
        self.put_files[path] = data

    def fetch(self, path: str) -> bytes:
        self.ask(f"fetch {path}")
        return b"old-key\n"

    def order(self, *words: str) -> list[str]:
        """Which of the words turned up, in the order in which they did."""
        return [word for script in self.asked for word in words if word in script]


class Silent:
    """A printer that keeps the events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def show(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        return None


def silent() -> tuple[Reporter, list[Event]]:
    printer = Silent()
    return Reporter(printer), printer.events
