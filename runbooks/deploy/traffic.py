"""A host behind a gateway: taken out of traffic before a deploy, and back in when it serves.

Taken out, the gateway sends it nothing new, and what it has goes on to its end. A host that does not serve afterwards
is left out, and the others serve on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runbooks.deploy.gateway import worker
from runbooks.engine.errors import NoAnswer, RunbookError
from runbooks.engine.report import Reporter
from runbooks.engine.secret import Secret
from runbooks.engine.step import quote
from runbooks.engine.transport import Connection
from runbooks.inventory.beside import beside
from runbooks.inventory.shape import Gateway, Inventory

POLL = 1.0  # seconds
QUIET = 3  # looks in a row with no request, until a host counts as drained: one may be on its way
UNSEEN = 60  # seconds that a server without /metrics is given: what it still has cannot be counted
TAKES = 60  # seconds that the gateway gets to take a server in: its check for health runs every 10


def group_of(inventory: Inventory, host: str) -> str | None:
    """The group whose gateway stands before this host."""
    for name, group in inventory.groups.items():
        if group.gateway is not None and host in group.hosts:
            return name
    return None


@dataclass
class Replica:
    """One host behind its gateway. `conn` leads to the gateway's machine."""

    conn: Connection
    gateway: Gateway
    host: str
    url: str
    key: Secret | None
    report: Reporter
    sleep: Callable[[float], None] = time.sleep

    @classmethod
    def of(
        cls, conn: Connection, inventory: Inventory, group: str, host: str, key: Secret | None, report: Reporter
    ) -> Replica:
        gateway = inventory.groups[group].gateway
        assert gateway is not None
        return cls(conn, gateway, host, worker(inventory, host), key, report)

    def others(self) -> list[str]:
        """The other servers that the gateway holds for healthy. Raises RunbookError where it does not answer."""
        return [one["url"] for one in self._ask("workers") if one["healthy"] and one["url"] != self.url]

    @contextmanager
    def aside(self, running: Callable[[], float | None], serves: Callable[[], bool]) -> Iterator[None]:
        """Out of traffic for as long as this lasts. `running` counts the host's requests; `serves` says whether it may
        come back in."""
        self.report.note("out of the gateway: what it has is brought to its end", host=self.host)
        self._ask("remove")
        try:
            self._drain(running)
            yield
        finally:
            if serves():
                self.take_in()
            else:
                text = "it does not answer, and stays out of the gateway; the others serve"
                self.report.note(text, host=self.host, level="warning")

    def take_in(self) -> None:
        """Into traffic, and there when this returns. Does nothing where it is in already."""
        until = time.monotonic() + TAKES
        while time.monotonic() < until:
            if any(one["url"] == self.url and one["healthy"] for one in self._ask("add")):
                self.report.note("the gateway sends it requests", host=self.host)
                return
            self.sleep(POLL)
        raise RunbookError(
            f"the gateway does not take the server in within {TAKES} s",
            host=self.host,
            step="gateway",
            details=[f"it serves, but {self.conn.name} does not reach {self.url}, or finds it unhealthy"],
            next="invoke gateway",
        )

    def _drain(self, running: Callable[[], float | None]) -> None:
        """Until it has no request left, or time is up: then what is left is cut off, and that is said."""
        until, quiet, left = time.monotonic() + self.gateway.drain, 0, 0.0
        while time.monotonic() < until:
            counted = running()
            if counted is None:
                text = f"its requests cannot be counted (enable_metrics is off): it gets {UNSEEN} s to end them"
                self.report.note(text, host=self.host, level="warning")
                self.sleep(min(UNSEEN, self.gateway.drain))
                return
            left = counted
            quiet = quiet + 1 if left <= 0 else 0
            if quiet >= QUIET:
                return
            self.report.progress("drain", 0, None, host=self.host, unit="requests", detail=f"{left:.0f} left")
            self.sleep(POLL)
        text = f"{left:.0f} requests did not end within {self.gateway.drain} s, and are cut off"
        self.report.note(text, host=self.host, level="warning")

    def _ask(self, what: str) -> list[dict[str, Any]]:
        return ask(self.conn, self.gateway, self.key, what, self.url)


def ask(conn: Connection, gateway: Gateway, key: Secret | None, what: str, url: str = "") -> list[dict[str, Any]]:
    """The gateway's workers, after one is added or removed. Raises RunbookError where it does not answer."""
    source = (Path(__file__).parent / "gateway_probe.py").read_text()
    question = {
        "url": f"http://{beside(gateway)}",
        "key": key.reveal() if key else "",
        "ask": what,
        "worker": url,
    }
    said: dict[str, Any] = {}
    try:
        answer = conn.ask(f"python3 -c {quote(source)}", stdin=json.dumps(question).encode(), deadline=50)
        said = json.loads(answer.out.splitlines()[-1])
    except (ValueError, IndexError):
        said = {"status": 0, "error": answer.err.strip()[-300:]}
    except NoAnswer as error:
        said = {"status": 0, "error": error.message}
    if said.get("status") != 200:
        raise RunbookError(
            "the gateway does not answer",
            host=conn.name,
            step="gateway",
            details=[f"{said.get('status')}: {said.get('error')}"],
            next="invoke gateway; on its machine: journalctl -u sglang-gateway -n 50",
        )
    return list(said["workers"])
