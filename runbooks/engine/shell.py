"""The long-lived shell of a host: scripts in, exact bytes out.

A request is the script in a here-document; its output goes to files of a private folder on a tmpfs, and comes back
behind a header line with a random token and byte counts. So noisy rc files, banners, odd bytes and unfinished lines
cannot be taken for an answer, and what a background child prints later lands nowhere.
"""

from __future__ import annotations

import base64
import secrets
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runbooks.engine.errors import NoAnswer, Unreachable
from runbooks.engine.secret import Secret

if TYPE_CHECKING:
    import paramiko

EXEC_TIMEOUT = 10.0  # seconds, for the word that a command begins
START_TIMEOUT = 20.0  # seconds until the first shell answers, a sudo prompt included
GRACE = 3.0  # seconds that the far side gets to end a script that ran into its deadline, before we give it up
SLOWEST = 16 * 1024  # bytes a second: what is sent over such a link gets its time on top of the deadline
OUTPUT_LIMIT = 16 * 1024 * 1024  # bytes of one answer; what is longer is cut

# All that questions and jobs see: a login's own TMPDIR, POSIXLY_CORRECT or PYTHONHOME would change what tools answer.
ENVIRONMENT = (
    "HOME=/root USER=root LOGNAME=root LC_ALL=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

_READY = """\
# a startup file that reads a line gets this one
umask 077
for d in /run /dev/shm /tmp; do  # the first that can be written, and is not full
  T=$(mktemp -d "$d/rb.XXXXXXXX" 2>/dev/null) && echo >"$T/o" && break
  rm -rf "$T"
done 2>/dev/null
[ -d "$T" ] || {{ echo "{no_room}" >&2; exit 1; }}
export T
trap 'rm -rf "$T"' EXIT
trap 'exit 1' HUP TERM
printf '%s ready\\n' {token}
"""

_NO_ROOM = "nothing can be written to /run, /dev/shm and /tmp"

_REQUEST = """\
timeout -k 1 {limit:.0f} sh -s >"$T/o" 2>"$T/e" <<'{end}'
{{ {{
{script}
}} <{stdin}
}}
{end}
rc=$?
set -- $(stat -c %s "$T/o" "$T/e")
n=$(($1 < {cap} ? $1 : {cap})) m=$(($2 < {cap} ? $2 : {cap}))
printf '\\n%s %s %s %s\\n' {token} "$rc" "$n" "$m"
[ "$n" -eq 0 ] || head -c "$n" "$T/o"; [ "$m" -eq 0 ] || head -c "$m" "$T/e"
"""

_STDIN = """\
base64 -d >"$T/i" <<'{end}'
{data}
{end}
"""

# sudo 1.9 says the first ones, sudo-rs (Ubuntu 25.10, Debian 13) the last.
_NO_PASSWORD = ("password is required", "terminal is required", "interactive authentication is required")
_BEFORE = "what runs before it: the login's shell (getent passwd), startup files, a command that sshd forces on it"
_REFUSED = ("not in the sudoers file", "is not allowed to", "I'm afraid I can't do that")


@dataclass(frozen=True)
class Answer:
    """What a script printed and how it ended."""

    rc: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode("utf-8", "replace")


class Shell:
    """A root shell on an open channel. Raises EOFError or OSError when the link is gone."""

    def __init__(self, channel: paramiko.Channel, host: str, password: Secret | None) -> None:
        self._channel = channel
        self._host = host
        self._password = password
        self._buffer = bytearray()
        self._errors = bytearray()
        self._token = secrets.token_hex(8)
        self._prompt = f"rb-{secrets.token_hex(8)}"
        self._ready = False

    @classmethod
    def start(cls, channel: paramiko.Channel, user: str, password: Secret | None, *, host: str) -> Shell:
        """Become root and get ready. Raises Unreachable when sudo refuses, or wants a password that we do not have.

        Where no prompt can come that would read it, the first question is sent at once, behind all this: the link's
        round trip is saved, and what is raised here is raised there.
        """
        shell = cls(channel, host, None if user == "root" else password)
        begin = f"printf '%s begin\\n' {shell._token}; exec sh"
        clean = f"env -i {ENVIRONMENT}"
        if user == "root":
            _begin(channel, f'exec {clean} sh -c "{begin}"')
        else:
            how = f"-S -p {shell._prompt}" if password else "-n"
            _begin(channel, f'exec sudo {how} -H -- {clean} sh -c "{begin}"')
        if shell._password is not None:
            shell._become_root()
        shell._send(_READY.format(token=shell._token, no_room=_NO_ROOM))
        if shell._password is not None:
            shell._await_ready()
        return shell

    def _send(self, text: str) -> None:
        """Until the shell is ready, one that is gone already is left to `_await_ready`, which has sudo's own words."""
        try:
            self._channel.sendall(text.encode())
        except OSError:
            if self._ready:
                raise

    def _await_ready(self) -> None:
        if self._password is None:
            self._become_root()
        try:
            self._read_past(f"{self._token} ready\n".encode(), time.monotonic() + START_TIMEOUT)
        except EOFError:
            self._receive_errors()
            if _NO_ROOM.encode() in self._errors:
                raise Unreachable(
                    _NO_ROOM, host=self._host, next="df -h /run /dev/shm /tmp", page="disk-full"
                ) from None
            raise
        self._ready = True

    def _become_root(self) -> None:
        """Wait until the shell speaks. The password goes in only at sudo's own prompt, which carries our random text:
        with a cached ticket there is no prompt, and the shell would run the password as a command."""
        deadline = time.monotonic() + START_TIMEOUT
        sent, mark = False, f"{self._token} begin\n".encode()
        while mark not in self._buffer:
            if self._prompt.encode() in self._errors and self._password is not None:
                if sent:
                    raise self._no_root("sudo did not take the password")
                self._errors.clear()
                self._channel.sendall(self._password.reveal().encode() + b"\n")
                sent = True
            if _READY.splitlines()[0].encode() in self._buffer:
                self._buffer.clear()
                raise self._no_root("no root shell: what we send comes back as it is")
            if time.monotonic() > deadline:
                raise self._no_root(f"no root shell within {START_TIMEOUT:.0f} s")
            try:
                self._receive(0.05)
            except EOFError:
                time.sleep(0.2)  # what it said on its way out may still be under way
                if not getattr(self._channel.get_transport(), "active", False):
                    raise  # it was the link that ended, not the shell
                self._receive_errors()
                raise self._no_root("no root shell") from None
        del self._buffer[: self._buffer.index(mark) + len(mark)]

    def _no_root(self, what: str) -> Unreachable:
        said = (self._errors + self._buffer).decode("utf-8", "replace").splitlines()
        lines = [line for line in said if line.strip() and "rb-" not in line]
        if any(said in line for line in lines for said in _NO_PASSWORD):
            return Unreachable(
                "sudo asks for a password, and the inventory gives none",
                host=self._host,
                details=lines[-3:],
                next="set `sudo: password` (and `sudo_password`) for this host in the inventory",
            )
        if any("must have a tty" in line for line in lines):
            return Unreachable(
                "sudo on this host works only on a terminal (requiretty)",
                host=self._host,
                details=lines[-3:],
                next="visudo there: Defaults:THE_LOGIN_USER !requiretty",
            )
        if any(said in line for line in lines for said in _REFUSED):
            what = "sudo on this host does not let this login become root"
        elif what.startswith("no root shell"):
            lines.append(_BEFORE)
        return Unreachable(what, host=self._host, details=lines[-4:])

    def ask(self, script: str, *, deadline: float, stdin: bytes = b"") -> Answer:
        """Run a script and return its answer. Raises NoAnswer when the deadline (seconds) passes."""
        token = secrets.token_hex(8)
        self._channel.settimeout(max(10.0, deadline))
        sent = request(script, token, deadline=deadline, stdin=stdin)
        self._send(sent)
        if not self._ready:
            self._await_ready()
        began, deadline = time.monotonic(), max(1.0, deadline)
        until = began + deadline + GRACE + len(sent) / SLOWEST
        self._read_past(f"\n{token} ".encode(), until)
        rc, out_size, err_size = map(int, self._read_past(b"\n", until).split())
        raw = self._read(out_size, until)
        err = self._read(err_size, until).decode("utf-8", "replace")
        if rc in (124, 137) and time.monotonic() > began + deadline - 0.5:
            raise NoAnswer(
                f"no answer within {deadline:.0f} s", host=self._host, details=[f"asked: {_first_line(script)}"]
            )
        return Answer(rc, raw, err)

    def close(self) -> None:
        self._channel.close()

    def _read_past(self, mark: bytes, until: float) -> bytes:
        """Everything up to `mark`, which is taken out of the stream too."""
        start = 0
        while (at := self._buffer.find(mark, start)) < 0:
            start = max(0, len(self._buffer) - len(mark))
            self._more(until)
        found = bytes(self._buffer[:at])
        del self._buffer[: at + len(mark)]
        return found

    def _read(self, size: int, until: float) -> bytes:
        while len(self._buffer) < size:
            self._more(until)
        found = bytes(self._buffer[:size])
        del self._buffer[:size]
        return found

    def _more(self, until: float) -> None:
        left = until - time.monotonic()
        if left <= 0:
            raise NoAnswer("no answer; the host or the link hangs", host=self._host, page="host-unreachable")
        self._receive(min(left, 1.0))

    def _receive(self, wait: float) -> None:
        self._channel.settimeout(wait)
        self._receive_errors()
        try:
            data = self._channel.recv(256 * 1024)
        except TimeoutError:
            return
        if not data:
            raise EOFError("the shell ended")
        self._buffer += data

    def _receive_errors(self) -> None:
        """Keep the last of stderr, which only the start reads: a full window there would block the shell."""
        while self._channel.recv_stderr_ready() and (data := self._channel.recv_stderr(64 * 1024)):
            self._errors = (self._errors + data)[-4096:]


def _begin(channel: paramiko.Channel, command: str) -> None:
    """Paramiko waits without an end for the word that it begins: over a link that went deaf, for ever."""
    late = threading.Timer(EXEC_TIMEOUT, channel.close)
    late.daemon = True
    late.start()
    try:
        channel.exec_command(command)
    finally:
        late.cancel()


def request(script: str, token: str, *, deadline: float, stdin: bytes) -> str:
    """What is sent for a question; the answer comes behind the token.

    Where the link breaks in the middle of it, the shell takes what it has for the whole: so the script stands in
    braces twice, and no beginning of it can run.
    """
    end = f"rb-{secrets.token_hex(8)}"
    given = _STDIN.format(end=end, data=base64.encodebytes(stdin).decode()) if stdin else ""
    # The here-document is unquoted text to the outer shell only as far as its quoted end marker: nothing expands.
    return given + _REQUEST.format(
        limit=max(1.0, deadline),
        end=end,
        script=script,
        stdin='"$T/i"' if stdin else "/dev/null",
        token=token,
        cap=OUTPUT_LIMIT,
    )


def _first_line(script: str) -> str:
    return next((line.strip()[:100] for line in script.splitlines() if line.strip()), "")
