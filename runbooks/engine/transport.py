"""One host over SSH: Fabric with its defaults mended, and one long-lived root shell that answers questions.

What is mended: host keys are checked (pinned in a known_hosts beside the inventory, nothing accepted on sight),
TCP_NODELAY and keepalive are set, connecting and opening a channel have time-outs, a password reaches sudo only at a
prompt that we recognise. ssh_config and ProxyJump stay Fabric's.

The only module that imports Fabric or Paramiko.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import socket
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runbooks.engine.errors import (
    HostKeyChanged,
    HostKeyUnknown,
    NotWritten,
    RunbookError,
    Unreachable,
    UsageError,
    page_of,
)
from runbooks.engine.reasons import in_words, unusable
from runbooks.engine.secret import Secret
from runbooks.engine.shell import Answer, Shell

if TYPE_CHECKING:
    import paramiko

CONNECT_TIMEOUT = 10.0  # seconds, for TCP; a banner and a login get the same each
KEEPALIVE = 15  # seconds
UNHEARD = 30.0  # seconds that the other side's TCP may acknowledge nothing of what was sent; the kernel waits 15 min
DROPPED_TRIES = 5  # connects, where an sshd drops one before it greets: too many logins at once (MaxStartups)
BLOCK = 1024 * 1024  # bytes of a file that go in one exchange


class Dropped(Unreachable):
    """sshd was there, and closed the connection before it greeted."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where a host is and how to log in. `sudo_password` is asked for when sudo wants one; None: it must not."""

    name: str
    address: str
    known_hosts: Path
    port: int = 22
    user: str = "root"
    key: Path | None = None
    proxy_jump: str | None = None
    sudo_password: Secret | None = None

    @property
    def ssh(self) -> str:
        """The same login as a line to copy and paste."""
        parts = ["ssh", f"-o UserKnownHostsFile={self.known_hosts}"]
        parts += [f"-i {self.key}"] if self.key else []
        parts += [f"-p {self.port}"] if self.port != 22 else []
        parts += [f"-J {self.proxy_jump}"] if self.proxy_jump else []
        return " ".join([*parts, f"{self.user}@{self.address}"])


class Connection:
    """A host that answers. Made lazily; one thread at a time. Counts what it costs."""

    def __init__(self, target: Target, *, turns: AbstractContextManager[object] | None = None) -> None:
        """`turns` is held while a jump host is logged in to: where many hosts stand behind it, some have to wait."""
        self.target = target
        self._turns = turns or contextlib.nullcontext()
        self.name = target.name
        self.connects = 0
        self.execs = 0
        self.exchanges = 0
        self._fabric: Any = None
        self._shell: Shell | None = None
        self._login: threading.Thread | None = None
        self._met: BaseException | None = None

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def begin(self) -> None:
        """Log in while the caller does something else; the first `ask` waits for that, and raises what it met."""
        import fabric  # noqa: F401  here: beside other imports, which the caller may have left to do, it would take longer

        def log_in() -> None:
            try:
                self._open_shell()
            except BaseException as error:
                self._met = error

        self._login = threading.Thread(target=log_in, daemon=True)
        self._login.start()

    def _await_login(self) -> None:
        if self._login is not None and self._login is not threading.current_thread():
            self._login.join()
            self._login, met, self._met = None, self._met, None
            if met is not None:
                raise met

    def ask(self, script: str, *, deadline: float = 30.0, stdin: bytes = b"") -> Answer:
        """Run POSIX shell text as root; one exchange.

        Children read `stdin`, or /dev/null. Raises NoAnswer when the deadline (seconds) passes, Unreachable when the
        link is gone; either way the shell is dropped, and the next `ask` opens a new one.
        """
        import paramiko

        shell = self._open_shell()
        self.exchanges += 1
        try:
            return shell.ask(script, deadline=deadline, stdin=stdin)
        except (OSError, EOFError, paramiko.SSHException) as error:
            self._drop_shell()
            raise self._unreachable(f"the connection was lost ({error or type(error).__name__})") from None
        except BaseException as error:
            # NoAnswer, or Ctrl-C in the middle of a reply: what still comes belongs to no question of ours.
            self._drop_shell()
            self._add_next(error)
            raise

    def put(self, data: bytes, path: str, *, mode: int = 0o644, owner: str = "") -> None:
        """Write a whole file as root, atomically: a temporary name in the same folder, then a rename.

        `owner` is `user:group`; "": root's. Through the shell, block by block: SFTP would want a second channel, which
        MaxSessions or a startup file that reads or prints can make fail, or hang.
        """
        from runbooks.engine.step import quote

        target, staged = quote(path), quote(f"{path}.rb-{secrets.token_hex(4)}")
        own = f"chown -- {quote(owner)} {staged} && " if owner else ""
        folder = f'mkdir -p -- "$(dirname -- {target})" && '
        finish = f" && {own}chmod {mode:04o} {staged} && mv -f -- {staged} {target}"
        for at in range(0, len(data) or 1, BLOCK):
            last = at + BLOCK >= len(data)
            script = f"{folder}umask 077 && cat >>{staged}{finish if last else ''}"
            answer = self.ask(script, stdin=data[at : at + BLOCK], deadline=60)
            if answer.rc != 0:
                self.ask(f"rm -f -- {staged}")
                said = answer.err.strip().splitlines()[-3:]
                raise NotWritten(f"could not write {path}", host=self.name, details=said, page=page_of(said))

    def fetch(self, path: str) -> bytes:
        """Read a whole file as root, block by block."""
        from runbooks.engine.step import quote

        blocks: list[bytes] = []
        while True:
            offset = sum(map(len, blocks))
            answer = self.ask(f"tail -c +{offset + 1} -- {quote(path)} | head -c {BLOCK}", deadline=120)
            if answer.err:
                raise Unreachable(f"could not read {path}", host=self.name, details=answer.err.splitlines()[-3:])
            blocks.append(answer.raw)
            if len(answer.raw) < BLOCK:
                return b"".join(blocks)

    def close(self) -> None:
        self._drop_shell()
        if self._fabric is not None:
            _hang_up(self._fabric)
            self._fabric = None

    def reconnect(self) -> None:
        """Drop everything; the next `ask` connects anew."""
        self.close()

    def _open_shell(self) -> Shell:
        import paramiko

        self._await_login()
        if self._shell is None:
            channel = self._channel()
            self.execs += 1
            try:
                self._shell = Shell.start(channel, self.target.user, self.target.sudo_password, host=self.name)
            except (OSError, EOFError, paramiko.SSHException) as error:
                self.close()
                raise self._unreachable(f"no shell ({error or type(error).__name__})") from None
            except RunbookError as error:
                self._add_next(error)
                raise
        return self._shell

    def _drop_shell(self) -> None:
        if self._shell is not None:
            with contextlib.suppress(Exception):
                self._shell.close()
            self._shell = None

    def _channel(self) -> paramiko.Channel:
        import paramiko

        try:
            return self._connected().transport.open_session(timeout=CONNECT_TIMEOUT)  # type: ignore[no-any-return]
        except (OSError, EOFError, paramiko.SSHException) as error:
            self.close()
            why = "sshd allows none: MaxSessions" if isinstance(error, paramiko.ChannelException) else error
            raise self._unreachable(f"no channel ({why or type(error).__name__})") from None

    def _connected(self) -> Any:
        if self._fabric is not None and not self._fabric.is_connected:
            self.close()  # the link died since the last question
        if self._fabric is None:
            self._fabric = self._connect_again()
        return self._fabric

    def _connect_again(self) -> Any:
        """Connect, and a few times more where sshd drops the connection before it greets."""
        for attempt in range(1, DROPPED_TRIES):
            try:
                return self._connect()
            except Dropped:
                time.sleep(attempt * random.uniform(0.3, 0.9))
        return self._connect()

    def _connect(self) -> Any:
        import logging

        import fabric
        import paramiko

        # It prints tracebacks of links that break, as every reboot breaks one; the errors below say it in words.
        logging.getLogger("paramiko.transport").setLevel(logging.CRITICAL)
        target = self.target
        connection = fabric.Connection(
            target.address,
            user=target.user,
            port=target.port if target.port != 22 else None,  # so that ssh_config may name another
            gateway=fabric.Connection(target.proxy_jump) if target.proxy_jump else None,
        )
        began = time.monotonic()
        try:
            if _is_machine(connection.gateway):
                with self._turns:
                    self._mend(connection)
                    connection.gateway.open()
            else:
                self._mend(connection)
            connection.open()
        except (OSError, EOFError, paramiko.SSHException) as error:
            met = self._explained(error, connection, time.monotonic() - began)
            _hang_up(connection)
            raise met from None
        self.connects += 1
        connection.transport.set_keepalive(KEEPALIVE)
        return connection

    def _mend(self, connection: Any) -> None:
        """Host keys, time-outs, the key and TCP_NODELAY, for the host and each jump host before it."""
        login: dict[str, Any] = {**connection.connect_kwargs}  # ssh_config may have named a key
        login |= dict.fromkeys(("banner_timeout", "auth_timeout", "channel_timeout"), CONNECT_TIMEOUT)
        if self.target.key is not None:
            if not os.access(self.target.key, os.R_OK):
                raise UsageError(
                    f"the key file {self.target.key} is not there, or cannot be read",
                    host=self.name,
                    next=f"ls -l {self.target.key}; then `key` of {self.name} in the inventory",
                    page="host-unreachable",
                )
            login |= {"key_filename": str(self.target.key), "look_for_keys": False}
        if connection.gateway is None:
            login["sock"] = _open_socket(connection.host, connection.port)
        connection.connect_timeout, connection.connect_kwargs = int(CONNECT_TIMEOUT), login
        port = connection.port
        self._check_host_keys(connection.client, connection.host if port == 22 else f"[{connection.host}]:{port}")
        if _is_machine(connection.gateway):
            self._mend(connection.gateway)

    def _check_host_keys(self, client: paramiko.SSHClient, name: str) -> None:
        import paramiko

        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        known = self.target.known_hosts
        if known.exists() and not known.is_file():
            raise UsageError(f"{known} cannot be read as known_hosts: it is no file")
        if known.exists():
            try:
                client.load_host_keys(str(known))
            except Exception as error:  # whatever Paramiko trips over in a line
                line = getattr(error, "line", "")
                reason = f"{line.strip()[:80]!a} is no line of it" if line else in_words(error)
                raise UsageError(f"{known} cannot be read as known_hosts: {reason}") from None
        if client.get_host_keys().lookup(name) is None:
            # The person's own ~/.ssh/known_hosts tells of hosts that nobody pinned beside the inventory, and no others:
            # Paramiko believes it first, and there may be an old line of the same address in it.
            with contextlib.suppress(Exception):  # a damaged line there is theirs to mend, and the host is unknown then
                client.load_system_host_keys()

    def _add_next(self, error: BaseException) -> None:
        """An error of this host has a line to copy and paste, where nothing better is known."""
        if isinstance(error, RunbookError) and error.next is None:
            error.next = self.target.ssh

    def _unreachable(self, what: str) -> Unreachable:
        return Unreachable(what, host=self.name, next=self.target.ssh, page="host-unreachable")

    def _explained(self, error: Exception, connection: Any, seconds: float) -> Unreachable:
        """In words, and of the machine that it was: the host, or one on the way to it."""
        import paramiko

        machine = connection
        while _is_machine(machine.gateway) and not machine.gateway.is_connected:
            machine = machine.gateway
        where = f"{'' if machine is connection else 'the jump host '}{machine.host} port {machine.port}"
        text = str(error)
        if isinstance(error, paramiko.BadHostKeyException):
            return self._key_changed(error.hostname, error.key)
        if isinstance(error, paramiko.AuthenticationException):
            with_key = f" with the key {self.target.key}" if self.target.key else ""
            return self._unreachable(f"{where.partition(' port ')[0]} refused the login of {machine.user}{with_key}")
        if isinstance(error, (EOFError, ConnectionResetError)) or ("banner" in text and seconds < CONNECT_TIMEOUT):
            return self._dropped(where, error)
        if "not found in known_hosts" in text:
            return self._unknown(machine.host, machine.port)
        if "banner" in text or "No existing session" in text:  # Paramiko's words for a handshake cut short
            return self._unreachable(f"{where}: it is there, and does not greet within {CONNECT_TIMEOUT:.0f} s")
        if isinstance(error, paramiko.ChannelException) or "opening channel" in text:  # only a jump host opens one here
            reason = "no answer" if "Timeout" in text else text
            return self._unreachable(f"{where}: the jump host {machine.gateway.host} cannot reach it ({reason})")
        if isinstance(error, paramiko.SSHException):
            read, locked = paramiko.PKey.from_path, paramiko.PasswordRequiredException
            keys = machine.connect_kwargs.get("key_filename")
            if told := unusable(error, self.target.key, keys, read=read, locked=locked):
                return self._unreachable(told)
        return self._unreachable(f"{where}: {in_words(error)}")

    def _unknown(self, address: str, port: int) -> HostKeyUnknown:
        return HostKeyUnknown(
            f"the host key of {address} is not known, so it is not trusted",
            host=self.name,
            details=[
                f"looked in {self.target.known_hosts} and ~/.ssh/known_hosts",
                "compare the fingerprint with the one its console shows for",
                "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub",
            ],
            next=f"ssh-keyscan -p {port} {address} | tee -a {self.target.known_hosts}",
        )

    def _dropped(self, where: str, error: Exception) -> Dropped:
        return Dropped(
            f"{where}: its sshd dropped the connection before it greeted ({in_words(error)})",
            host=self.name,
            details=["too many logins at once (MaxStartups), or an address that it blocks"],
            next=self.target.ssh,
            page="host-unreachable",
        )

    def _key_changed(self, name: str, shown: paramiko.PKey) -> HostKeyChanged:
        return HostKeyChanged(
            f"{name} shows another host key than the one pinned for it",
            host=self.name,
            details=[
                f"shown:  {shown.get_name()} {shown.fingerprint}",
                f"pinned: in {self.target.known_hosts} or ~/.ssh/known_hosts",
                "either the machine was rebuilt, or somebody stands in between; nothing was sent to it",
            ],
            next=f"ssh-keygen -f {self.target.known_hosts} -R '{name}'   (only if you know why it changed)",
            page="host-unreachable",
        )


def _is_machine(gateway: Any) -> bool:
    """A jump host that we log in to ourselves; not none, and no ProxyCommand."""
    return hasattr(gateway, "client")


def _hang_up(connection: Any) -> None:
    """The host, and all on the way to it. Fabric itself leaves open what it has not logged in to."""
    while _is_machine(connection):
        with contextlib.suppress(Exception):
            connection.client.close()
        connection = connection.gateway


def _open_socket(host: str, port: int) -> socket.socket:
    """Connected, without Nagle's delays from the first packet of the key exchange on, and never stuck in a send."""
    sock = socket.create_connection((host, port), timeout=CONNECT_TIMEOUT)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * UNHEARD))
    return sock
