"""What every command needs: the inventory, the hosts that were meant, a way to connect, one place to say things."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from runbooks.engine.errors import RunbookError, UsageError
from runbooks.engine.printers import printer
from runbooks.engine.report import Reporter
from runbooks.engine.secret import Secret
from runbooks.engine.transport import Connection, Target
from runbooks.inventory import Loaded, load, select
from runbooks.inventory.shape import Login

DEFAULT_INVENTORY = "inventory.yaml"
STAGGER = 0.05  # seconds between two connects: sshd drops some of a burst (MaxStartups 10:30:100)
MAX_THREADS = 50

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What became of one host: a value, or the error that ended it."""

    host: str
    value: T | None
    error: RunbookError | None


@dataclass
class Session:
    """One command's run. Use it as a context manager: it closes the live display and the connections."""

    loaded: Loaded
    hosts: list[str]
    report: Reporter
    yes: bool = False

    @classmethod
    def open(
        cls,
        *,
        inventory: str | None = None,
        hosts: Sequence[str] = (),
        json: bool = False,
        plain: bool = False,
        yes: bool = False,
    ) -> Session:
        """Read the inventory and select the hosts. Raises UsageError before anything is touched."""
        path = Path(inventory or os.environ.get("RUNBOOKS_INVENTORY") or DEFAULT_INVENTORY).expanduser()
        loaded = load(path)
        return cls(loaded, select(loaded, hosts), Reporter(printer(json_lines=json, plain=plain)), yes)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.report.close()

    def secret(self, ref: object) -> Secret | None:
        """Resolve an optional reference, and have its value redacted from now on."""
        if ref is None:
            return None
        secret = self.loaded.secret(ref)  # type: ignore[arg-type]
        self.report.hide(secret)
        return secret

    def connect(self, name: str) -> Connection:
        """A connection to a host of the inventory; it opens at the first question."""
        return self._connection(name, self.loaded.inventory.hosts[name])

    def connect_node(self, name: str) -> Connection:
        """A connection to a Proxmox node of the inventory, which has an `ssh` part."""
        login = self.loaded.inventory.nodes[name].ssh
        assert login is not None
        return self._connection(name, login)

    def _connection(self, name: str, host: Login) -> Connection:
        folder = self.loaded.folder
        return Connection(
            Target(
                name=name,
                address=host.address,
                port=host.port,
                user=host.user,
                key=folder / Path(host.key).expanduser() if host.key else None,
                known_hosts=folder / Path(self.loaded.inventory.known_hosts).expanduser(),
                proxy_jump=host.proxy_jump,
                sudo_password=self.secret(host.sudo_password) if host.sudo == "password" else None,
            )
        )

    def each(self, work: Callable[[Connection], T], *, parallel: bool = True) -> list[Outcome[T]]:
        """Do the work on every host, side by side; an error of one host does not stop the others."""
        threads = min(len(self.hosts), MAX_THREADS) if parallel else 1
        stop = threading.Event()

        def one(number: int, name: str) -> Outcome[T]:
            time.sleep(STAGGER * number if parallel else 0)
            if stop.is_set():
                raise KeyboardInterrupt
            with self.connect(name) as connection:
                try:
                    return Outcome(name, work(connection), None)
                except RunbookError as error:
                    error.host = error.host or name
                    return Outcome(name, None, error)

        if threads == 1:
            return [one(0, name) for name in self.hosts]
        with ThreadPoolExecutor(threads) as pool:
            futures = [pool.submit(one, number, name) for number, name in enumerate(self.hosts)]
            try:
                return [future.result() for future in futures]
            except KeyboardInterrupt:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def tell_errors(self, outcomes: Sequence[Outcome[T]]) -> bool:
        """Say each host's error; True when there was one."""
        failed = [outcome.error for outcome in outcomes if outcome.error is not None]
        for error in failed:
            self.report.emit("result", str(error), state="failed")
        return bool(failed)

    def consent(self, question: str) -> bool:
        """Ask a person; `--yes` has answered beforehand. Raises UsageError where there is nobody to ask."""
        if self.yes:
            return True
        if not sys.stdin.isatty():
            raise UsageError(f"{question} There is nobody to ask here", next="the same command with --yes")
        self.report.close()  # the live lines would draw over the question
        print(f"{question} [y/N] ", end="", flush=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")
