"""HTTPS in front of the stand-in's node: login, CSRF, the shape of PVE's answers, a journal of calls, and faults."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from lab.proxmox.calls import answer
from lab.proxmox.pve import Pve, Refused

PREFIX = "/api2/json"


@dataclass
class Fault:
    """What goes wrong with the next `times` calls that match: `drop` the connection, or a status of pveproxy's own.

    `after`: the call is done all the same, and only its answer is lost. `restart`: the API goes away for `seconds` with
    every connection, as when its package is upgraded; tasks go on, as PVE's do.
    """

    method: str
    path: str
    what: str  # "drop", "restart", "595", "596", "599"
    after: bool = False
    times: int = 1
    seconds: float = 3.0


@dataclass
class Accounts:
    """Who may log in: token ids with their values, users with their passwords."""

    tokens: dict[str, str] = field(default_factory=dict)
    passwords: dict[str, str] = field(default_factory=dict)
    second_factor: set[str] = field(default_factory=set)
    tickets: dict[str, tuple[str, str]] = field(default_factory=dict)  # ticket -> (user, CSRF token)


class Api(ThreadingHTTPServer):
    """`calls` is the journal: (method, path, parameters, user) of each call that reached PVE's code."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], pve: Pve, accounts: Accounts, certificate: Path) -> None:
        super().__init__(address, _Handler)
        self.pve, self.accounts = pve, accounts
        self.faults: list[Fault] = []
        self.calls: list[tuple[str, str, dict[str, Any], str]] = []
        self.journal: Callable[[str], None] = lambda _line: None
        self.orders: Path | None = None  # a file of faults, one JSON object a line, which the next call takes in
        self.away = 0.0  # seconds to be gone for, once serve_forever has returned
        self._certificate = certificate
        self._open: set[socket.socket] = set()
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(certificate)

    def get_request(self) -> tuple[socket.socket, Any]:
        """The handshake happens in the connection's own thread: a slow client stops nobody else."""
        raw, address = self.socket.accept()
        wrapped = self._tls.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
        self._open.add(wrapped)
        return wrapped, address

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or that does not trust us, is its own affair."""

    def cut(self) -> None:
        """Every open connection ends at once, as when pveproxy restarts."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def leave(self, seconds: float) -> None:
        """Go away; who serves us comes back with `again`."""
        self.away = seconds
        threading.Thread(target=self.shutdown, daemon=True).start()

    def again(self) -> Api:
        """The same API, come back at the same address."""
        host, port = self.server_address[:2]
        new = Api((str(host), int(port)), self.pve, self.accounts, self._certificate)
        new.faults, new.calls, new.journal, new.orders = self.faults, self.calls, self.journal, self.orders
        return new

    @property
    def url(self) -> str:
        return f"https://{self.server_address[0]!s}:{self.server_address[1]}"

    def take_fault(self, method: str, path: str) -> Fault | None:
        with contextlib.suppress(FileNotFoundError):
            if self.orders is not None:
                ordered = self.orders.read_text().splitlines()
                self.orders.unlink()
                self.faults += [Fault(**json.loads(line)) for line in ordered]
        for fault in self.faults:
            if fault.method == method and fault.times > 0 and re.search(fault.path, path):
                fault.times -= 1
                return fault
        return None


def serve(api: Api) -> threading.Thread:
    thread = threading.Thread(target=api.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    return thread


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "pve-api-daemon/3.0 (lab stand-in)"
    timeout = 60
    wbufsize = 1 << 16  # head and body in one packet: two would wait for each other (Nagle and delayed ACK)
    server: Api

    def log_message(self, *_arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_PUT(self) -> None:
        self._serve("PUT")

    def do_DELETE(self) -> None:
        self._serve("DELETE")

    def _serve(self, method: str) -> None:
        where = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        text = self.rfile.read(length).decode() if length else where.query
        many = parse_qs(text, keep_blank_values=True)
        parameters = {name: values[0] if len(values) == 1 else values for name, values in many.items()}
        path = where.path.removeprefix(PREFIX)
        fault = self.server.take_fault(method, path)
        if fault is not None and not fault.after:
            self._fail(fault)
            return
        status, reason, body = self._answer(method, path, parameters)
        if fault is not None:
            self._fail(fault)
            return
        self._send(status, reason, body)

    def _fail(self, fault: Fault) -> None:
        if fault.what == "restart":
            self.server.leave(fault.seconds)
        if fault.what in ("drop", "restart"):
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            return
        words = {"595": "Connection refused", "596": "Connection timed out", "599": "Too many redirections"}
        self._send(int(fault.what), words[fault.what], {"data": None})

    def _answer(self, method: str, path: str, parameters: dict[str, Any]) -> tuple[int, str, Any]:
        try:
            if (method, path) == ("POST", "/access/ticket"):
                return 200, "OK", {"data": self._ticket(parameters)}
            user = self._user(method)
            self.server.calls.append((method, path, parameters, user))
            self.server.journal(json.dumps([method, path, sorted(parameters), user]))
            return 200, "OK", {"data": answer(self.server.pve, method, path, parameters, user)}
        except Refused as no:
            extra = {"errors": no.errors} if no.errors else {}
            return no.status, no.reason, {"data": None, "message": f"{no.reason}\n", **extra}

    def _ticket(self, parameters: dict[str, Any]) -> Any:
        user, accounts = str(parameters.get("username")), self.server.accounts
        if accounts.passwords.get(user) != parameters.get("password"):
            raise Refused(401, "authentication failure")
        if user in accounts.second_factor:
            return {"ticket": f"PVE:!tfa!%7B%22totp%22:true%7D:{secrets.token_hex(8)}", "NeedTFA": 1, "username": user}
        ticket, csrf = f"PVE:{user}:{secrets.token_hex(16)}", secrets.token_hex(12)
        accounts.tickets[ticket] = (user, csrf)
        return {"ticket": ticket, "CSRFPreventionToken": csrf, "username": user}

    def _user(self, method: str) -> str:
        accounts, token = self.server.accounts, self.headers.get("Authorization", "")
        if token.startswith("PVEAPIToken="):
            user, _, value = token.removeprefix("PVEAPIToken=").partition("=")
            if user in accounts.tokens and accounts.tokens[user] == value:
                return user
            raise Refused(401, "no such user ('" + user + "')")
        ticket = re.search(r"PVEAuthCookie=([^;]+)", self.headers.get("Cookie", ""))
        if ticket is None or ticket[1] not in accounts.tickets:
            raise Refused(401, "No ticket")
        user, csrf = accounts.tickets[ticket[1]]
        if method != "GET" and self.headers.get("CSRFPreventionToken") != csrf:
            raise Refused(401, "Permission denied - invalid csrf token")
        return user

    def _send(self, status: int, reason: str, body: Any) -> None:
        data = json.dumps(body).encode()
        with contextlib.suppress(OSError):
            self.send_response(status, reason.replace("\n", " "))
            self.send_header("Content-Type", "application/json;charset=UTF-8")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
