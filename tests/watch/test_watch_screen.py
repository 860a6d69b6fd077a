"""`invoke watch`: how a look reads, and what it costs."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from runbooks.canary.install import TIMER
from runbooks.engine.errors import Unreachable, UsageError
from runbooks.engine.printers import JsonPrinter, console
from runbooks.engine.report import Reporter
from runbooks.watch.glance import cli
from runbooks.watch.hosts import watch_hosts
from runbooks.watch.screen import Row, changed, draw, plain_lines

LOOK: dict[str, Any] = {
    "unit": ["active", "0"],
    "t": 100.0,
    "ready": True,
    "tokens": 5000.0,
    "run": 4,
    "queue": 0,
    "kv": 0.31,
    "gpus": [[98, 301, 61]] * 8,
    "canary": ["healthy", 312],
    "lines": [],
}
METRICS = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="glm-5",tp_rank="0"} 3.0
sglang:num_queue_reqs{model_name="glm-5",tp_rank="0"} 1.0
sglang:token_usage{model_name="glm-5"} 0.25
sglang:realtime_tokens_total{mode="prefill_compute",model_name="glm-5"} 121.0
sglang:realtime_tokens_total{mode="decode",model_name="glm-5"} 129.0
"""


def row(before: dict[str, Any] | None = None, **changes: Any) -> Row:
    return Row("a", {**LOOK, **changes}, before)


def test_the_rate_is_that_between_two_looks() -> None:
    assert row({**LOOK, "t": 95.0, "tokens": 4000.0}).rate == 200
    assert row().rate is None
    assert row({**LOOK, "t": 95.0, "tokens": 9000.0}).rate is None, "restarted"
    assert row({**LOOK, "t": 95.0}, tokens=None).rate is None, "no metrics"


def test_requests_without_tokens_are_stuck_and_idle_is_not() -> None:
    before = {**LOOK, "t": 95.0}
    assert row(before).stuck
    assert not row(before, run=0).stuck
    assert "STUCK" in plain_lines(row(before))[0]


@pytest.mark.parametrize("active", ["active", "inactive"])
def test_a_canary_that_waits_for_its_first_run_is_installed(
    active: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cli, "_ask", lambda *words: active if words == ("systemctl", "is-active", TIMER) else "")
    found = row(canary=cli._canary(tmp_path / "state.json")).canary
    assert found == ("installed, not run yet" if active == "active" else "not installed")
    (tmp_path / "state.json").write_text('{"verdict": "healthy", "last_run": 0}')
    assert row(canary=cli._canary(tmp_path / "state.json")).canary.startswith("healthy")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "8 GPUs   98 98 98 98 98 98 98 98 %"),
        ({"gpus": [[100, 140, 50]] * 8}, "SPINNING"),
        ({"gpus": None}, "nvidia-smi does not answer"),
        ({"gpus": [[98, 301, 61]] * 7 + [[98, 301, 93]]}, "too hot"),
        ({"ready": False, "unit": ["failed", "3"]}, "failed, port closed, 3 restarts"),
        ({"canary": None}, "canary not installed"),
        ({"canary": ["nan", 40]}, "canary nan, 40 s ago"),
        ({"kv": None, "run": None}, "KV ?"),
    ],
)
def test_a_look_in_a_line(changes: dict[str, Any], said: str) -> None:
    assert said in plain_lines(row(**changes))[0]


def test_lines_of_the_journal_and_what_they_mean() -> None:
    lines = plain_lines(row(lines=[[14, "ValueError: Detected errors during sampling! NaN in the logits."]]))
    assert lines[1].startswith("14 s ago: ValueError")
    assert "invoke runbook nan-output" in lines[2]


def test_the_screen_shows_every_host_whatever_is_wrong_with_it() -> None:
    def drawn(rows: list[Row]) -> str:
        screen = console()
        screen.file, screen.width, screen.record = StringIO(), 100, True
        screen.print(draw(rows, 5))
        return screen.export_text()

    said = drawn([row({**LOOK, "t": 95.0}), Row("b", None, None, "b: no connection"), Row("c", None, None)])
    assert all(words in said for words in ("STUCK", "b: no connection", "connecting", "Ctrl-C leaves"))
    odd = "[bold]x[/bold] [/foo] [mem 0x1]"
    lines = [[5, odd], [6, "[mem 0x1]"]]
    assert (
        drawn([Row(odd, {**LOOK, "lines": lines, "canary": [odd, 3]}, None), Row("b", None, None, odd)]).count(odd) >= 4
    )


@pytest.mark.parametrize("every", [0.0, 0.5, 4000.0])
def test_a_pause_that_makes_no_sense(every: float) -> None:
    session: Any = None
    with pytest.raises(UsageError, match="--every"):
        watch_hosts(session, every=every, times=0, live=False)


def test_only_lines_that_differ_are_written() -> None:
    assert changed([], ["a", "b"]) == "\x1b[2J\x1b[1Ha\x1b[K\x1b[2Hb\x1b[K"
    assert changed(["a", "b"], ["a", "b"]) == ""
    assert changed(["a", "b", "c"], ["a", "x"]) == "\x1b[2Hx\x1b[K\x1b[3H\x1b[J"


@pytest.fixture
def port() -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(METRICS.encode())

        def log_message(self, format: str, *args: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()


@pytest.mark.served
def test_a_glance_is_a_short_line(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state.json").write_text(json.dumps({"verdict": "nan", "last_run": 0}))
    entry = json.dumps({"MESSAGE": f"Scheduler hit an exception: {'x' * 500}", "__REALTIME_TIMESTAMP": "1"})
    harmless = json.dumps({"MESSAGE": 'GET /x HTTP/1.1" 404 error', "__REALTIME_TIMESTAMP": "1"})
    said = {"systemctl": "NRestarts=2\nActiveState=active", "nvidia-smi": "\n".join(["98, 301.22, 61"] * 8)}
    said["journalctl"] = "\n".join([harmless, *(entry.replace("xx", f"{n}", 1) for n in range(9))])
    monkeypatch.setattr(cli, "_ask", lambda *words: said[words[0]])
    found = cli.glance(f"127.0.0.1:{port}", "sglang.service", tmp_path / "state.json")
    assert found["unit"] == ["active", "2"]
    assert (found["tokens"], found["run"], found["queue"], found["kv"]) == (129, 3, 1, 0.25)
    assert found["gpus"] == [[98, 301, 61]] * 8
    assert found["canary"][0] == "nan"
    assert len(found["lines"]) == cli.LINES
    assert all(len(text) <= cli.WIDTH for _, text in found["lines"])
    assert len(json.dumps(found, separators=(",", ":"))) < cli.LONGEST
    closed = cli.glance("127.0.0.1:9", "sglang.service", tmp_path / "none")
    assert (closed["ready"], closed["tokens"], closed["canary"]) == (False, None, None)


def test_a_host_that_cannot_be_reached_says_so_once_and_in_parts(capsys: pytest.CaptureFixture[str]) -> None:
    class Away:
        hosts = ("a",)
        report = Reporter(JsonPrinter(sys.stdout))

        def connect(self, name: str) -> Any:
            raise Unreachable("no route", host=name, next="ssh a", page="host-unreachable")

    session: Any = Away()
    assert watch_hosts(session, every=1, times=1, live=False) == 1
    event = json.loads(capsys.readouterr().out)
    assert (event["text"], event["host"], event["next"], event["page"]) == (
        "no route",
        "a",
        "ssh a",
        "host-unreachable",
    )
