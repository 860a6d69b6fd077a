"""A connection without SSH: the same shell protocol, spoken with a local sh."""

from __future__ import annotations

import os
import select
import subprocess
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runbooks import paths
from runbooks.engine.transport import Connection, Target


class LocalChannel:
    """What Shell uses of paramiko.Channel, over the pipes of a local process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._timeout = 1.0
        self.eof_received = False

    def exec_command(self, command: str) -> None:
        self._process = subprocess.Popen(
            ["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )

    def _pipe(self, name: str) -> Any:
        assert self._process is not None
        return getattr(self._process, name)

    @property
    def closed(self) -> bool:
        return self._process is not None and self._process.poll() is not None and not self.recv_ready()

    def get_transport(self) -> Any:
        return types.SimpleNamespace(active=True)

    def settimeout(self, seconds: float) -> None:
        self._timeout = seconds

    def sendall(self, data: bytes) -> None:
        while data:
            data = data[self._pipe("stdin").write(data) :]

    def recv_ready(self) -> bool:
        return bool(select.select([self._pipe("stdout")], [], [], 0)[0])

    def recv(self, size: int) -> bytes:
        if not select.select([self._pipe("stdout")], [], [], self._timeout)[0]:
            raise TimeoutError
        data = os.read(self._pipe("stdout").fileno(), size)
        self.eof_received = not data
        return data

    def recv_stderr_ready(self) -> bool:
        return bool(select.select([self._pipe("stderr")], [], [], 0)[0]) and self._process is not None

    def recv_stderr(self, size: int) -> bytes:
        data = os.read(self._pipe("stderr").fileno(), size)
        if not data:
            self.recv_stderr_ready = lambda: False  # type: ignore[method-assign]
        return data

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for name in ("stdin", "stdout", "stderr"):
                self._pipe(name).close()


class LocalConnection(Connection):
    """Runs everything on this machine, as whoever runs the tests."""

    def _channel(self) -> Any:
        return LocalChannel()


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    """A connection to this machine whose jobs, tools, lock and audit log lie below tmp_path."""
    for name in ("JOBS", "TOOLS", "LOCK", "AUDIT"):
        monkeypatch.setattr(paths, name, str(tmp_path / name.lower()))
    with LocalConnection(Target(name="local", address="127.0.0.1", known_hosts=tmp_path / "known_hosts")) as found:
        yield found
