"""Servers that are none, drip or never end, and addresses that are none: an error in words, in time, without keys."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from runbooks.bench.loadgen import cli, server
from runbooks.bench.loadgen.records import request_of
from runbooks.bench.loadgen.server import Server
from runbooks.bench.loadgen.wire import Target, head_of
from runbooks.canary.probe.reply import Reply, read_body
from runbooks.canary.probe.shape import compression
from runbooks.engine.printers import PlainPrinter
from runbooks.engine.report import Reporter

KEY = "sk-hostile-key"
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@contextlib.contextmanager
def serving(begin: bytes, more: bytes = b"", pause: float = 0.0) -> Iterator[Target]:
    """A server that says `begin` to everything, and then `more` for ever; without more it hangs up."""
    end = threading.Event()

    def one(conn: socket.socket) -> None:
        with conn, contextlib.suppress(OSError):
            conn.recv(65536)
            conn.sendall(begin)
            while more and not end.wait(pause):
                conn.sendall(more)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield Target("127.0.0.1", listener.getsockname()[1], False, "")
        end.set()
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("begin", "more", "said"),
    [
        (b"", b"", "closed connection without response"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", b"", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", "within 1 s|does not speak HTTP"),
        (OK + b'\r\n{"a": "', b"x", "within 1 s"),
        (OK + b"Content-Length: 100\r\n\r\n{}", b"", "broke off"),
        (OK + b"Content-Length: -1\r\n\r\n{}", b"", "does not speak HTTP|names no model"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", b"", "does not speak HTTP"),
        (OK + b"\r\n" + b"[" * 200_000, b"", "not JSON"),
        (OK + b"\r\n\x1b[2Jhello", b"", r"'\\x1b\[2Jhello', not JSON"),
        (OK + b'\r\n{"error": "\x1b[2J"}', b"", "not JSON"),
        (b"HTTP/1.1 401 No\r\n\r\n", b"", "wants another API key"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", b"", "answered 302"),
        (OK + b'\r\n{"data": null}', b"", "names no model"),
    ],
)
def test_what_is_no_server_is_said(begin: bytes, more: bytes, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server.ask, "__defaults__", (None, 1.0))
    began = time.monotonic()
    with serving(begin, more, pause=0.05) as target, pytest.raises(OSError, match=said) as refused:
        Server(target, KEY).models()
    assert time.monotonic() - began < 5
    assert KEY not in str(refused.value)
    assert str(refused.value).isprintable()


def test_an_answer_without_an_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LARGEST", 100_000)
    with serving(OK + b"\r\n", b"x" * 65536) as target, pytest.raises(OSError, match="is longer than"):
        Server(target, KEY).ask("GET", "/metrics")


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1", "http://h:99999", "http://h:abc", "http://h:0", "http://", "ftp://h", "http://" + "a" * 5000,
        "http://ann:pa55word@h:1", "http://h/a b", "http://h/\x1b[2J", "http://h/?q=1", "http://h/\u00e4", "http://h\n",
    ],
)  # fmt: skip
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ValueError, match="url: ") as refused:
        Target.parse(url)
    assert "pa55word" not in str(refused.value)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("url", ["http://[::1]:30000/v1", "127.0.0.1:8000", "https://b\u00fccher.example/llm/v1/"])
def test_an_address_that_is_one(url: str) -> None:
    assert Target.parse(url).prefix in ("", "/llm")


@pytest.mark.parametrize("key", ["two\nlines-5ecret", "caf\u00e9-5ecret", "a 5ecret", "\udcff-5ecret"])
def test_a_key_that_no_header_takes(
    key: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RUNBOOKS_API_KEY", key)
    assert told(["--url", "http://127.0.0.1:1", "--json"], capfd)["kind"] == "usage"
    assert "5ecret" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("head", "body", "said"),
    [
        (b"Content-Encoding: gzip\r\n", b"not gzip", "not gzip"),
        (b"Transfer-Encoding: chunked\r\n", b"-5\r\nabc\r\n", "not the size of a chunk"),
        (b"Transfer-Encoding: chunked\r\n", b"zz\r\nabc\r\n", "invalid literal|not the size"),
        (b"Content-Length: \xb2\r\n", b"{}", "invalid literal|no events"),
        (b"X: " + b"y" * 70_000, b"", "over 64 KiB"),
        (b"X: " + b"y" * 70_000 + b"\r\n", b"{}", "over 64 KiB"),
    ],
)
def test_an_answer_that_is_no_http_is_a_failure_of_its_request(head: bytes, body: bytes, said: str) -> None:
    reads = [(1_000, b"HTTP/1.1 200 OK\r\n" + head + (b"\r\n" + body if body else b""))]
    error = request_of({"slot": 0, "asked": 3, "start": 0, "end": 6_000}, reads).error
    assert error is not None
    assert re.search(said, error), error


def test_what_comes_before_the_answer_is_not_the_answer() -> None:
    """RFC 9110: 1xx answers may stand before any other; a proxy sends 100 or 103."""
    head = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    answer = (
        b"HTTP/1.1 200 OK\r\n\r\n" + b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\ndata: [DONE]\n\n'
    )
    for reads in ([(1, head + answer)], [(1, head), (2, answer)], [(1, head[:30]), (2, head[30:]), (3, answer)]):
        request = request_of({"slot": 0, "asked": 1, "start": 0, "end": 9}, reads)
        assert (request.status, request.done, request.failure) == (200, True, None)
    with pytest.raises(ValueError, match="over 64 KiB"):
        head_of(b"HTTP/1.1 100 Continue\r\n\r\n" * 5_000)


def test_half_a_letter_and_a_number_without_end_are_counted_like_any() -> None:
    """JSON may hold half of a pair, and a server that cuts its text by tokens sends one."""
    text = r"\ud83d"
    first = b'data: {"choices": [{"index": 0, "delta": {"content": "%s"}}]}\n\n' % text.encode()
    deep = b"data: " + b"[" * 100_000 + b"\n\n"
    endless = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}], "usage": {"completion_tokens": 1e400}}\n\n'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    reads = [(1_000, head + first), (2_000, first), (3_000, endless), (4_000, deep), (5_000, b"data: [DONE]\n\n")]
    meta = {"slot": 0, "asked": 3, "start": 0, "end": 6_000}
    request = request_of(meta, reads)
    assert request.done
    assert request.error == "an event that is not JSON"
    assert compression("\ud83d" * 400) < 0.5
    logprobs = {"content": [{"token": "a", "logprob": 10**400, "top_logprobs": []}]}
    chunk = {"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": logprobs, "finish_reason": "stop"}]}
    read_body(reply := Reply(status=200, asked_logprobs=True), f"data: {json.dumps(chunk)}\n\n".encode(), stream=True)
    assert reply.content == "a"


@pytest.mark.parametrize(
    "words",
    [
        ["--input-len", "\u00b2"], ["--output-len", "9" * 5000], ["--input-len", "-512"], ["--input-len", "9-3"],
        ["--token-ids", "\u00b2:3"], ["--concurrency", "9" * 5000], ["--rate", "nan"], ["--temperature", "nan"],
        ["--again", "-1"], ["--repeats", "999999999"], ["--lengths", "/dev/null"], ["--window", "inf"],
    ],
)  # fmt: skip
def test_an_option_that_cannot_be(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    event = told(["--url", "http://127.0.0.1:1", "--json", "--api", "generate", *words], capfd)
    assert event["kind"] == "usage"
    assert event["text"].startswith(words[0].strip("-"))
    assert len(event["text"]) < 300


def test_a_bug_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def bug(*_: object) -> bool:
        raise LookupError(KEY)

    monkeypatch.setattr(cli, "run", bug)
    event = told(["--url", "http://127.0.0.1:1", "--json"], capfd)
    assert event["kind"] == "bug"
    assert "LookupError at test_bench_hostile.py" in event["text"]
    assert KEY not in json.dumps(event)


def told(words: list[str], capfd: pytest.CaptureFixture[str]) -> dict[str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code in (1, 2)
    out, errors = capfd.readouterr()
    assert errors == ""
    event: dict[str, str] = json.loads(out)
    return event


@pytest.mark.parametrize("say", [lambda r, t: r.note(t), lambda r, t: r.output(t), lambda r, t: r.table(t, [t], [[t]])])
def test_what_a_server_says_moves_no_cursor(
    say: Callable[[Reporter, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    say(Reporter(PlainPrinter(sys.stdout)), "\x1b[2Jm\x07\x9b31m")
    assert "\x1b" not in (out := capsys.readouterr().out)
    assert "\\x1b[2Jm" in out
