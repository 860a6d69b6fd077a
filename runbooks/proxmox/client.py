"""The API of one Proxmox VE node: every read may be asked again, every write is sent once.

A write whose answer was lost is looked for in the task list before it is sent again. What comes back is never thrown
away: PVE says what is wrong in `errors`, in the reason phrase, or in both.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlencode

from runbooks.engine.errors import RunbookError, Unreachable, UsageError
from runbooks.engine.secret import Secret

if TYPE_CHECKING:
    import requests

CONNECT_TIMEOUT = 10.0  # seconds
READ_TIMEOUT = 30.0  # seconds; pveproxy itself gives up on its daemons after 30 (596, 599)
PATIENCE = 180.0  # seconds that calls are tried while the API restarts, or its proxy times out
FIRST_PATIENCE = 30.0  # seconds, as long as it has never answered: mostly a wrong address
TICKET_AGE = 3600.0  # seconds; PVE's tickets live for two hours, and are taken for a new one in their second
PROXY_CODES = (595, 596, 599)  # pveproxy's own: no connection to, no answer from, too much trouble with its daemon

Value = str | int | bool | Sequence[str]
Parameters = Mapping[str, Value]


class ApiError(RunbookError):
    """PVE said no. `status` is HTTP's, `reason` its words, `errors` what it holds against each parameter."""

    def __init__(self, call: str, status: int, reason: str, errors: Mapping[str, str]) -> None:
        from runbooks.proxmox.failures import explain

        said = [*_lines(reason), *(f"{name}: {line}" for name, text in errors.items() for line in _lines(text))]
        cause = explain("\n".join([f"{status} {reason}", *said]))
        super().__init__(
            cause.what if cause else f"the API of Proxmox refused: {said[0] if said else f'HTTP {status}'}",
            details=[f"{call}: HTTP {status}", *said, *((f"cure: {cause.cure}",) if cause else ())],
            page=cause.page if cause else "proxmox-api",
        )
        self.status = status
        self.reason = reason
        self.errors = dict(errors)


class LostAnswer(Unreachable):
    """A write was sent, and nobody knows whether it arrived."""


class NotReached(Unreachable):
    """Nothing was sent, or nothing that could change anything: the same again does no harm."""


class Clock(Protocol):
    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Login:
    """How to log in and whom to believe. One of `token` and `password`; one of `ca`, `fingerprint`, or neither."""

    api: str
    user: str
    token: Secret | None = None
    password: Secret | None = None
    ca: Path | None = None
    fingerprint: str | None = None

    @property
    def is_root(self) -> bool:
        """May set what PVE gives to root@pam alone."""
        return self.user == "root@pam" and self.password is not None


@dataclass
class Client:
    """Not for several threads at once. `reads` and `writes` count calls that were answered; a login is neither."""

    login: Login
    clock: Clock = time
    reads: int = 0
    writes: int = 0
    tell: Callable[[str], None] = lambda _text: None  # what it waits for, while it waits
    _session: requests.Session | None = None
    _headers: dict[str, str] = field(default_factory=dict)
    _ticket_time: float = 0.0

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def get(self, path: str, /, **query: Value) -> Any:
        """Read. Asked again while the API is away or its proxy times out; raises ApiError or Unreachable."""
        began, wait = self.clock.monotonic(), 0.25
        while True:
            try:
                answer = self._send("GET", path, query)
                self.reads += 1
                return answer
            except (Unreachable, ApiError) as error:
                if not _passes(error) or self.clock.monotonic() - began > self._patience:
                    raise
                self.tell(f"the API of {self.login.api} does not answer, asked again: {error.message}")
            self.clock.sleep(wait)
            wait = min(2 * wait, 5.0)

    def write(self, method: str, path: str, /, parameters: Parameters | None = None) -> Any:
        """Send a POST, PUT or DELETE once.

        Raises LostAnswer when nobody knows whether it arrived. Where it certainly did not, as with a refused
        connection while the API restarts, it is sent again.
        """
        began, wait = self.clock.monotonic(), 0.25
        while True:
            try:
                answer = self._send(method, path, parameters or {})
                self.writes += 1
                return answer
            except NotReached as error:
                if self.clock.monotonic() - began > self._patience:
                    raise
                self.tell(f"the API of {self.login.api} does not answer, tried again: {error.message}")
            self.clock.sleep(wait)
            wait = min(2 * wait, 5.0)

    @property
    def _patience(self) -> float:
        return PATIENCE if self.reads or self.writes else FIRST_PATIENCE

    def _send(self, method: str, path: str, parameters: Parameters) -> Any:
        self._log_in()
        try:
            return self._exchange(method, path, parameters)
        except ApiError as error:
            if error.status != 401 or self.login.password is None:
                raise
        self._headers = {}  # the ticket is not taken any more, and so nothing was done: a new one, once
        self._log_in()
        return self._exchange(method, path, parameters)

    def _log_in(self) -> None:
        if self.login.token is not None:
            self._headers = {"Authorization": f"PVEAPIToken={self.login.user}={self.login.token.reveal()}"}
            return
        now = self.clock.monotonic()
        if self._headers and now - self._ticket_time < TICKET_AGE:
            return
        assert self.login.password is not None
        self._headers = {}
        secret = {"username": self.login.user, "password": self.login.password.reveal()}
        try:
            ticket = self._exchange("POST", "/access/ticket", secret)
        except ApiError as error:
            if error.status != 401:
                raise
            raise RunbookError(f"{self.login.api} refused the login of {self.login.user}", page="proxmox-api") from None
        except LostAnswer as error:
            raise NotReached(error.message, page="proxmox-api") from None  # a login changes nothing
        if "ticket" not in (ticket or {}) or ticket.get("NeedTFA"):
            raise RunbookError(
                f"{self.login.user} has a second factor, which a tool cannot answer",
                next="use an API token for it in the inventory",
                page="proxmox-api",
            )
        self._headers = {"Cookie": f"PVEAuthCookie={ticket['ticket']}", "CSRFPreventionToken": _csrf(ticket)}
        self._ticket_time = now

    def _exchange(self, method: str, path: str, parameters: Parameters) -> Any:
        import requests

        session = self._open()
        form = urlencode([pair for name, value in parameters.items() for pair in _pairs(name, value)])
        url = f"{self.login.api.rstrip('/')}/api2/json{path}"
        body = None
        headers = dict(self._headers)
        if method in ("GET", "DELETE"):
            url += f"?{form}" if form else ""
        else:
            body = form
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        # Not as a session's setting: with REQUESTS_CA_BUNDLE in the environment requests would take that instead.
        verify: bool | str = str(self.login.ca) if self.login.ca else self.login.fingerprint is None
        try:
            answer = session.request(
                method,
                url,
                data=body,
                headers=headers,
                verify=verify,
                timeout=(CONNECT_TIMEOUT, READ_TIMEOUT),
                allow_redirects=False,
            )
        except requests.exceptions.SSLError as error:
            raise self._not_trusted(error) from None
        except (requests.exceptions.ConnectTimeout, requests.exceptions.ConnectionError) as error:
            raise self._no_connection(method, path, error) from None
        except requests.exceptions.RequestException as error:
            raise _lost(method, path, type(error).__name__) from None
        return self._read(f"{method} {path}", method, path, answer)

    def _open(self) -> requests.Session:
        if self._session is None:
            import requests

            from runbooks.proxmox import tls

            if self.login.ca is not None and not self.login.ca.is_file():
                place = "/etc/pve/pve-root-ca.pem of the node, kept beside the inventory"
                raise UsageError(f"ca: {self.login.ca} is not there", next=place, page="proxmox-api")
            self._session = requests.Session()
            self._session.trust_env = False
            if self.login.fingerprint is not None:
                self._session.mount("https://", tls.PinnedAdapter(tls.plain(self.login.fingerprint)))
        return self._session

    def _read(self, call: str, method: str, path: str, answer: requests.Response) -> Any:
        if answer.status_code in PROXY_CODES and method != "GET":
            raise _lost(method, path, f"HTTP {answer.status_code} {answer.reason}")
        content: Any = None
        with contextlib.suppress(ValueError):
            content = answer.json()
        if answer.status_code == 200 and isinstance(content, Mapping):
            return content.get("data")
        known = content if isinstance(content, Mapping) else {}
        reason = str(answer.reason or "").strip() or str(known.get("message") or "").strip()
        raise ApiError(call, answer.status_code, reason, known.get("errors") or {})

    def _no_connection(self, method: str, path: str, error: Exception) -> Unreachable:
        """Nothing was sent, unless the connection stood already: then a write may have arrived."""
        text = str(error)
        unsent = any(word in text for word in ("NewConnectionError", "Connection refused", "ConnectTimeout"))
        unsent = unsent or "NameResolutionError" in text or "timed out. (connect timeout" in text
        if not unsent and method != "GET":
            return _lost(method, path, _short(error))
        return NotReached(f"no connection to {self.login.api} ({_short(error)})", page="proxmox-api")

    def _not_trusted(self, error: Exception) -> Unreachable:
        from runbooks.proxmox import tls

        shown = tls.observed(self.login.api)
        details = [f"it shows the SHA-256 fingerprint {shown}" if shown else _short(error)]
        if self.login.fingerprint is not None:
            details.append(f"pinned in the inventory:           {self.login.fingerprint}")
        details.append("compare it on the node's console: pvenode cert info")
        return Unreachable(
            f"the certificate of {self.login.api} is not trusted; nothing was sent",
            details=details,
            next="set `fingerprint` (if it is the same on the console) or `ca` for this node in the inventory",
            page="proxmox-api",
        )


def _csrf(ticket: Mapping[str, Any]) -> str:
    return str(ticket.get("CSRFPreventionToken", ""))


def _pairs(name: str, value: Value) -> list[tuple[str, str]]:
    """A list repeats its key, as PVE wants arrays; a boolean is 1 or 0."""
    if isinstance(value, bool):
        return [(name, str(int(value)))]
    if isinstance(value, str | int):
        return [(name, str(value))]
    return [(name, item) for item in value]


def _passes(error: RunbookError) -> bool:
    """Will it be gone by itself? The API restarts, its proxy timed out, another task holds the VM's lock."""
    if isinstance(error, ApiError):
        if "hostname lookup" in error.reason:  # there is no such node
            return False
        return error.status in PROXY_CODES or is_locked(error.reason)
    return isinstance(error, LostAnswer | NotReached)


def is_locked(text: str) -> bool:
    """`can't lock file '/var/lock/qemu-server/lock-190.conf' - got timeout` (bpg #935)."""
    return "can't lock file" in text and "got timeout" in text


def _lost(method: str, path: str, why: str) -> LostAnswer:
    return LostAnswer(f"the answer to {method} {path} was lost ({why})", page="proxmox-api")


def _short(error: Exception) -> str:
    inner: BaseException = error
    while (cause := inner.__cause__ or inner.__context__) is not None:
        inner = cause
    return f"{type(inner).__name__}: {inner}"[:200]


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
