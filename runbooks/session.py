"""What every command needs: the inventory, the hosts that were meant, a way to connect, one place to say things."""

from __future__ import annotations

import getpass
import os
import select as system_select
import sys
import termios
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TypeVar

from runbooks.engine.errors import UsageError, worst
from runbooks.engine.fleet import Fleet, Interrupt, NotStarted, Outcome, Rollout
from runbooks.engine.printers import printer
from runbooks.engine.report import Reporter
from runbooks.engine.secret import Secret
from runbooks.engine.transport import Connection, Target
from runbooks.inventory import Loaded, load, select
from runbooks.inventory.shape import Login
from runbooks.paths import expand, home

DEFAULT_INVENTORY = "inventory.yaml"
JUMP_LOGINS = 5  # at once, at jump hosts: an sshd drops some of a burst (MaxStartups 10:30:100), and is not ours alone

T = TypeVar("T")


@dataclass
class Session:
    """One command's run. Use it as a context manager: it closes the live display and the connections."""

    loaded: Loaded
    hosts: list[str]
    report: Reporter
    yes: bool = False
    rollout: Rollout = field(default_factory=Rollout)
    interrupt: Interrupt = field(default_factory=Interrupt)
    _begun: dict[str, Connection] = field(default_factory=dict)
    _asking: threading.Lock = field(default_factory=threading.Lock)
    _turns: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(JUMP_LOGINS))
    _passwords: dict[str, Secret] = field(default_factory=dict)
    _secrets: dict[object, Secret] = field(default_factory=dict)
    _keyless: bool = False  # and said so

    @classmethod
    def open(
        cls,
        *,
        inventory: str | None = None,
        hosts: Sequence[str] = (),
        json: bool = False,
        plain: bool = False,
        verbose: bool = False,
        yes: bool = False,
        rollout: Rollout | None = None,
    ) -> Session:
        """Read the inventory and select the hosts. Raises UsageError before anything is touched."""
        path = expand(inventory or os.environ.get("RUNBOOKS_INVENTORY") or home(DEFAULT_INVENTORY))
        loaded = load(path)
        report = Reporter(printer(json_lines=json, plain=plain, verbose=verbose))
        return cls(loaded, select(loaded, hosts), report, yes, rollout or Rollout())

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.report.close()
        while self._begun:
            self._begun.popitem()[1].close()

    def begin(self) -> None:
        """Log in to the first hosts while the caller loads what it will do there, which takes as long.

        Not where a person may be asked for a password, a VM may still have to be made, or a jump host drops a burst.
        """
        for name in self.rollout.batches(self.hosts)[0][: self.rollout.parallel]:
            host = self.loaded.inventory.hosts[name]
            if host.vm is None and host.proxy_jump is None and host.sudo != "password":
                connection = self._begun[name] = self.connect(name)
                connection.begin()

    def secret(self, ref: object) -> Secret | None:
        """Resolve an optional reference, and have its value redacted from now on."""
        if ref is None:
            return None
        with self._asking:  # once a run: a password manager may ask a person each time
            if ref not in self._secrets:
                self._secrets[ref] = self.loaded.secret(ref)  # type: ignore[arg-type]
                self.report.hide(self._secrets[ref])
            return self._secrets[ref]

    def api_key(self) -> Secret | None:
        """What the server wants to be asked with; None where it is open, or no key was made yet."""
        ref = self.loaded.inventory.server.api_key
        if ref is not None and (source := self.loaded.source(ref)).unmade:
            said, self._keyless = self._keyless, True
            if said:
                return None
            self.report.note(
                f"asking without a key: {source.path} is not there (invoke deploy makes it, or brings it here)"
            )
            return None
        return self.secret(ref)

    def connect(self, name: str) -> Connection:
        """A connection to a host of the inventory; it opens at the first question."""
        begun = self._begun.pop(name, None)
        return begun or self._connection(name, self.loaded.inventory.hosts[name])

    def connect_node(self, name: str) -> Connection:
        """A connection to a Proxmox node of the inventory, which has an `ssh` part."""
        login = self.loaded.inventory.nodes[name].ssh
        assert login is not None
        return self._connection(name, login)

    def connect_gateway(self, group: str) -> Connection:
        """A connection to the machine of a group's gateway; the group must have one."""
        gateway = self.loaded.inventory.groups[group].gateway
        assert gateway is not None
        return self._connection(f"gateway-{group}", gateway.ssh)

    def _connection(self, name: str, host: Login) -> Connection:
        folder = self.loaded.folder
        return Connection(
            Target(
                name=name,
                address=host.address,
                port=host.port,
                user=host.user,
                key=folder / expand(host.key) if host.key else None,
                known_hosts=folder / expand(self.loaded.inventory.known_hosts),
                proxy_jump=host.proxy_jump,
                sudo_password=self._sudo_password(host) if host.sudo == "password" else None,
            ),
            turns=self._turns,
        )

    def _sudo_password(self, host: Login) -> Secret | None:
        """From its source, or asked of a person: once a run for each login name."""
        if host.sudo_password is not None:
            return self.secret(host.sudo_password)
        with self._asking:
            if host.user not in self._passwords:
                if not sys.stdin.isatty():
                    raise UsageError(
                        f"sudo wants the password of {host.user}, and there is nobody to ask here",
                        next="give the host a `sudo_password` in the inventory: env, file or command",
                    )
                self.report.close()
                secret = Secret(getpass.getpass(f"sudo password of {host.user}: "))
                self.report.hide(secret)
                self._passwords[host.user] = secret
            return self._passwords[host.user]

    def each(
        self,
        work: Callable[[Connection], T],
        *,
        parallel: bool = True,
        gently: bool = False,
        failed: Callable[[T], bool] = lambda _value: False,
    ) -> list[Outcome[T]]:
        """Do the work on every host, side by side; an error of one host does not stop the others.

        `gently`: the work changes something, so the first Ctrl-C lets the running step come to its end. `failed` tells
        whether a value counts as a failure for `--stop-after-failures`.
        """

        def one(name: str) -> T:
            with self.connect(name) as connection:
                return work(connection)

        fleet = Fleet(
            work=one,
            rollout=self.rollout if parallel else replace(self.rollout, parallel=1),
            failed=failed,
            interrupt=self.interrupt,
            on_interrupt=self._tell_interrupt,
        )
        with self.interrupt.listening() if gently else nullcontext():
            return fleet.run(self.hosts)

    def _tell_interrupt(self) -> None:
        self.report.note("interrupted: the running step comes to its end; once more to leave at once", level="warning")

    def tell_errors(self, outcomes: Sequence[Outcome[T]]) -> int:
        """Say each host's error. The exit code: 0 without one, 2 where all are mistakes of ours, else 1."""
        failed = [(outcome.error, outcome.host) for outcome in outcomes if outcome.error is not None]
        for error, host in sorted(failed, key=lambda one: isinstance(one[0], NotStarted)):  # the cause comes first
            self.report.failed(error, host=host, state="left-out" if isinstance(error, NotStarted) else "failed")
        return worst(0, *(error.exit_code for error, _ in failed))

    def consent(self, question: str) -> bool:
        """Ask a person; `--yes` has answered beforehand. Raises UsageError where there is nobody to ask."""
        if self.yes:
            return True
        if not sys.stdin.isatty():
            asked = question.removesuffix(" Go on?")
            raise UsageError(
                f"{asked} That needs consent, and there is nobody to ask", next="the same command with --yes"
            )
        with self._asking:  # hosts ask from threads of their own, and people answer one at a time
            self.report.close()  # the live lines would draw over the question
            termios.tcflush(sys.stdin, termios.TCIFLUSH)  # what was typed before it was asked answers nothing
            print(f"{question} [y/N] ", end="", flush=True)
            while not self.interrupt:
                if system_select.select([sys.stdin], [], [], 0.2)[0]:
                    return sys.stdin.readline().strip().lower() in ("y", "yes")
        return False
