"""The probe by itself: what it is called with, and a server that never comes to an end."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path

import pytest

from runbooks.canary.probe.cli import main
from runbooks.canary.probe.client import Endpoint, complete, get


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--url", "http://[::1"], "Invalid IPv6 URL"),
        (["--url", "http://h:99999"], "Port out of range"),
        (["--url", "nowhere"], "--url is http"),
        (["--url", "http://ann:5ecret@h"], "without a user or a password"),
        (["--url", "http://h/\x1b[2J"], "--url holds"),
        (["--silence", "0"], "--silence and --budget"),
        (["--budget", "nan"], "--silence and --budget"),
        (["--key-file", "/nonexistent/key"], "No such file"),
        (["--key-file", "/"], "directory"),
    ],
)
def test_a_wrong_call_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    out, errors = capsys.readouterr()
    assert out == ""
    assert said in errors
    assert len(errors.splitlines()) == 1
    assert "5ecret" not in errors


@pytest.mark.parametrize("key", ["two\nlines-5ecret", "caf\u00e9-5ecret", "a 5ecret"])
def test_a_key_that_no_header_takes_is_not_shown(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "key").write_text(key, encoding="utf-8")
    assert main(["--key-file", str(tmp_path / "key")]) == 2
    assert "5ecret" not in "".join(capsys.readouterr())
    (tmp_path / "key").write_bytes(b"\xff\xfe5ecret")
    assert main(["--key-file", str(tmp_path / "key")]) == 2
    assert "5ecret" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("drop", [b"X: y\r\n", b"\r\nx"])
def test_an_answer_in_drops_ends_in_time(drop: bytes) -> None:
    def one(conn: socket.socket) -> None:
        with conn, contextlib.suppress(OSError):
            conn.recv(65536)
            conn.sendall(b"HTTP/1.1 200 OK\r\n")
            while True:
                conn.sendall(drop)
                time.sleep(0.1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        for _ in range(2):
            threading.Thread(target=lambda: one(listener.accept()[0]), daemon=True).start()
        endpoint, began = Endpoint(f"http://127.0.0.1:{listener.getsockname()[1]}", "m", silence=5.0), time.monotonic()
        assert get(endpoint, "/metrics", timeout=0.7)[0] == 0
        assert complete(endpoint, {"max_tokens": 1}, limit=0.7).failure
        assert time.monotonic() - began < 4
