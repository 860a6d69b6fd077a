"""A plain HTTP server over the depot's folders: byte ranges for resumed downloads, pip's two kinds of index, a hub."""

from __future__ import annotations

import html
import ipaddress
import posixpath
import re
import time
from collections.abc import Mapping
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from lab.depot import hub
from runbooks.engine.errors import UsageError

SERVED = ("apt", "simple", "models", "images")
_CHUNK = 1 << 18
_NONE: Mapping[str, str] = {}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128


def server(bind: str, port: int, root: Path, *, rate: int = 0) -> ThreadingHTTPServer:
    """Bound and ready for `serve_forever`. Only loopback and private addresses: a lab is nobody else's business.

    `rate`: the most bytes a second of each connection, as of a source far away.
    """
    address = ipaddress.ip_address(bind)
    if address.is_unspecified or not (address.is_loopback or address.is_private):
        raise UsageError(f"depot: {bind} is neither a loopback nor a private address")
    return _Server((bind, port), partial(_Handler, root=root.resolve(), rate=rate))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "lab-depot"
    timeout = 60

    def __init__(self, *arguments: object, root: Path, rate: int) -> None:
        self.root, self.rate = root, rate
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        try:
            self._send(unquote(urlsplit(self.path).path), body=body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _send(self, asked: str, *, body: bool) -> None:
        """Paths with `..` or doubled slashes are read as what they mean; only the served folders exist."""
        path = posixpath.normpath("/" + asked.lstrip("/"))
        parts = [part for part in path.split("/") if part]
        file = self.root.joinpath(*parts)
        if not parts:
            self._page([f"{name}/" for name in SERVED], body=body)
        elif answer := self._hub(parts):
            self._answer_of_hub(answer, body=body)
        elif parts[0] not in SERVED:
            self.send_error(HTTPStatus.NOT_FOUND)
        elif file.is_file():
            self._file(file, body=body)
        elif parts[0] == "simple":
            self._index(parts[1:], body=body)
        elif file.is_dir():
            self._page(
                [f"{entry.name}/" if entry.is_dir() else entry.name for entry in sorted(file.iterdir())], body=body
            )
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    # -- pip ---------------------------------------------------------------------------------------------------------

    def _index(self, parts: list[str], *, body: bool) -> None:
        """/simple/ lists projects (PEP 503) and, for --find-links, every file; /simple/PROJECT/ its files."""
        files = sorted(entry.name for entry in (self.root / "simple").glob("*") if _project(entry.name))
        if not parts:
            self._page([*sorted({f"{_project(name)}/" for name in files}), *files], body=body)
            return
        wanted = _normal(parts[0])
        own = [name for name in files if _project(name) == wanted]
        if len(parts) > 1 or not own:
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            self._page([f"../{name}" for name in own], body=body)

    def _page(self, links: list[str], *, body: bool) -> None:
        rows = "\n".join(
            f'<a href="{quote(link)}">{html.escape(posixpath.basename(link) or link)}</a><br>' for link in links
        )
        page = (
            f"<!DOCTYPE html>\n<html><head><title>lab depot (stand-ins)</title></head><body>\n{rows}\n</body></html>\n"
        )
        content = page.encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    # -- the hub -----------------------------------------------------------------------------------------------------

    def _hub(self, parts: list[str]) -> hub.Answer | None:
        host = self.headers.get("Host", "")
        authorization = self.headers.get("Authorization", "")
        return hub.answer(self.root, parts, urlsplit(self.path).query, authorization, host)

    def _answer_of_hub(self, answer: hub.Answer, *, body: bool) -> None:
        if answer.file is not None:
            self._file(answer.file, body=body, headers=answer.headers)
            return
        self.send_response(answer.status)
        for name, value in {**answer.headers, "Content-Length": str(len(answer.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(answer.body)

    # -- files -------------------------------------------------------------------------------------------------------

    def _file(self, path: Path, *, body: bool, headers: Mapping[str, str] = _NONE) -> None:
        with path.open("rb") as file:
            stat = path.stat()
            tag = f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"'
            modified = formatdate(stat.st_mtime, usegmt=True)
            if tag == self.headers.get("If-None-Match") or modified == self.headers.get("If-Modified-Since"):
                self.send_response(HTTPStatus.NOT_MODIFIED)
                self.end_headers()
                return
            span = self._span(stat.st_size, tag, modified)
            if span is None:
                self.send_response(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
                self.send_header("Content-Range", f"bytes */{stat.st_size}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            start, end = span
            whole = end - start == stat.st_size
            self.send_response(HTTPStatus.OK if whole else HTTPStatus.PARTIAL_CONTENT)
            if not whole:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{stat.st_size}")
            usual = {"Content-Type": "application/octet-stream", "Accept-Ranges": "bytes", "Last-Modified": modified}
            for name, value in {**usual, "ETag": tag, **headers, "Content-Length": str(end - start)}.items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.flush()
                file.seek(start)
                left = end - start
                while left and (chunk := file.read(min(left, _CHUNK))):
                    self.wfile.write(chunk)
                    left -= len(chunk)
                    if self.rate:
                        time.sleep(len(chunk) / self.rate)

    def _span(self, size: int, tag: str, modified: str) -> tuple[int, int] | None:
        """The bytes asked for as [start, end); all of them without one usable Range; None when it lies outside."""
        found = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if not found or self.headers.get("If-Range", tag) not in (tag, modified) or found[0] == "bytes=-":
            return 0, size
        first, last = found[1], found[2]
        start = int(first) if first else max(0, size - int(last))
        end = min(size, int(last) + 1) if first and last else size
        return (start, end) if start < end else None


def _normal(project: str) -> str:
    return re.sub(r"[-_.]+", "-", project).lower()


def _project(name: str) -> str | None:
    """The project that a distribution's file name belongs to, normalized as in PEP 503; None for other files."""
    if name.endswith(".whl"):
        return _normal(name.split("-")[0])
    found = re.fullmatch(r"(.+)-\d[^-]*\.(?:tar\.gz|zip)", name)
    return _normal(found[1]) if found else None
