"""What the server saw, and servers that never end: nothing is flushed, no answer fills the memory, rubbish is given up.

The servers are lab/traps.py within this process, with eyes.
"""

from __future__ import annotations

import contextlib
import io
import json
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, ClassVar

import pytest

from lab import traps
from runbooks.bench.loadgen import rawlog
from runbooks.bench.loadgen.loop import Made, Plan, Worker
from runbooks.bench.loadgen.shared import CUT, WINDOW, Board
from runbooks.bench.loadgen.stream import Stream
from runbooks.bench.loadgen.summary import point_of
from runbooks.bench.loadgen.wire import Target
from runbooks.bench.validity import Limits, faults
from tests.bench.generator import error_of, measured

pytestmark = pytest.mark.served

READS = {"GET /v1/models", "GET /server_info", "GET /get_server_info", "GET /metrics", "GET /v1/loads", "GET /get_load"}
WAYS = ("waiting", "endless", "rubbish", "breaks")
WELL = 30  # answers, after which `breaks` answers rubbish


class Eyes(traps.Handler):
    """Writes down what is asked. The first part of a path may name one more way to mislead."""

    asked: ClassVar[list[tuple[str, str, dict[str, Any]]]] = []  # where, what, and the body

    def begin(self, method: str, body: dict[str, Any]) -> str:
        where = self.path.split("/")[1]
        if where in WAYS:
            self.path = self.path.removeprefix(f"/{where}")
        self.asked.append((where, f"{method} {self.route()[1]}", body))
        return where

    def do_GET(self) -> None:
        way = self.begin("GET", {})
        if way == "waiting" and self.path == "/metrics":
            self.plain(200, b"sglang:num_running_reqs 0.0\nsglang:num_queue_reqs 3.0\n")
        elif way == "waiting" and self.path == "/v1/loads":
            self.plain(200, b'{"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 3}]}')
        else:
            super().do_GET()

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"] or 0))
        body = json.loads(text or b"{}")
        way = self.begin("POST", body)
        streams = body.get("stream") and body["max_tokens"] > 2
        well = sum(one[0] == way for one in self.asked if one[2].get("stream"))
        if streams and way == "endless":
            self.without_end()
        elif streams and (way == "rubbish" or (way == "breaks" and well > WELL)):
            self.plain(200, b"Welcome. There is nothing to see here.", "text/plain")
        else:
            before, self.rfile = self.rfile, io.BufferedReader(io.BytesIO(text))
            super().do_POST()
            self.rfile = before

    def without_end(self) -> None:
        """Until the client has gone."""
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with contextlib.suppress(OSError):
            while True:
                self.event(traps.chunk({"content": "and on " * 10_000}))


class StandsStill(traps.Engine):
    """For 0.4 s of each second."""

    def step(self, job: traps.Job) -> None:
        time.sleep(max(0.0, 0.4 - time.monotonic() % 1.0))
        super().step(job)


@pytest.fixture
def server() -> Iterator[str]:
    Eyes.asked.clear()
    traps.engines.clear()
    with traps.Server(("127.0.0.1", 0), Eyes) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_address[1]}"
        listening.shutdown()


def asked_of(where: str) -> set[str]:
    return {what for place, what, _ in Eyes.asked if place == where}


def requests_of(blocks: list[rawlog.Block]) -> list[dict[str, Any]]:
    return [meta for meta, _ in blocks if meta["kind"] == "request"]


def log(folder: Path, name: str) -> list[rawlog.Block]:
    return list(rawlog.decode((folder / name).read_bytes()))


def test_nothing_is_flushed_and_nothing_but_completions_is_posted(pyz: Path, server: str, tmp_path: Path) -> None:
    """Also where other people's requests are running, and the measurement was told to go on."""
    for trap, more in (("strict", ("--concurrency", "1,2")), ("busy", ("--concurrency", "1", "--force"))):
        assert measured(pyz, f"{server}/{trap}", tmp_path / trap, "--self-check", *more)[0] == 0
        assert {"GET /metrics", "GET /server_info"} <= asked_of(trap)
        assert asked_of(trap) - READS == {"POST /v1/chat/completions"}


@pytest.mark.parametrize("trap", ["busy", "waiting"])
def test_a_server_with_other_requests_is_only_looked_at(pyz: Path, server: str, tmp_path: Path, trap: str) -> None:
    code, events = measured(pyz, f"{server}/{trap}", tmp_path / "out")
    assert (code, "the server has 3 live or queued requests" in error_of(events)) == (3, True)
    assert asked_of(trap) <= READS


@pytest.mark.parametrize(
    ("workload", "prompt", "answer", "shared"),
    [("prefill-heavy", 4096, 128, 0), ("decode-heavy", 128, 1024, 0), ("shared-prefix", 2048, 256, 1536)],
)
def test_a_workload_is_of_exactly_its_lengths(
    pyz: Path, server: str, tmp_path: Path, workload: str, prompt: int, answer: int, shared: int
) -> None:
    words = [sys.executable, "-I", str(pyz), "--json", "--url", f"{server}/lumps", "--workload", workload]
    words += ["--out", str(tmp_path), "--concurrency", "2", "--warmup", "0", "--window", "3", "--drain", "60"]
    subprocess.run(words, check=True, capture_output=True, timeout=120)
    blocks = log(tmp_path, "00-c2.bin")
    point = point_of(blocks)
    tokens = point["tokens"]
    assert (tokens["prompt_min"], tokens["prompt_max"], point["shared_len"]) == (prompt, prompt, shared)
    assert {meta["asked"] for meta in requests_of(blocks) if not meta["first"]} == {answer}
    assert (point["requests"]["failed"], tokens["output"]) == (0, sum(one["asked"] for one in requests_of(blocks)))
    prompts = [body["messages"][0]["content"].split() for _, _, body in Eyes.asked if body.get("stream")]
    common = sum(1 for _ in takewhile(lambda same: len(set(same)) == 1, zip(*prompts, strict=False)))
    assert common == shared - 4 if shared else common < 5  # the template's four tokens are not ours
    assert len({tuple(words[common:]) for words in prompts}) == len(prompts) > 2


def test_an_open_loop_asks_a_server_that_stands_still(pyz: Path, server: str, tmp_path: Path) -> None:
    """Who is due meanwhile is asked all the same, and waits: no coordinated omission."""
    engine = StandsStill("stale", 2.0, 2.0)
    traps.engines["stale"] = engine
    threading.Thread(target=engine.run, daemon=True).start()
    more = ("--rate", "40", "--steady", "--window", "3", "--output-len", "8", "--drain", "10")
    assert measured(pyz, f"{server}/stale", tmp_path, *more)[0] == 0
    blocks = log(tmp_path, "00-r40.bin")
    starts = sorted(meta["start"] for meta in requests_of(blocks))
    assert {round((after - before) / 1e6, 3) for before, after in pairwise(starts)} == {25.0}
    point = point_of(blocks)
    assert point["requests"]["failed"] == 0
    assert point["open"]["started"] == pytest.approx(40, rel=0.05)
    assert point["ttft_ms"]["max"] > 300
    assert point["ttft_ms"]["p90"] > 150  # four in ten came while it stood still: their wait is in the numbers


def test_an_answer_without_end_is_given_up_and_fills_no_memory(pyz: Path, server: str, tmp_path: Path) -> None:
    script = (
        "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL); "
        "print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    words = [sys.executable, "-I", str(pyz), "--json", "--url", f"{server}/endless", "--out", str(tmp_path)]
    words += ["--input-len", "40", "--output-len", "32", "--warmup", "0", "--window", "3", "--concurrency", "4"]
    command = [sys.executable, "-c", script, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    code, kilobytes = map(int, done.stdout.split())
    assert (code, kilobytes < 200_000) == (0, True), kilobytes
    blocks = log(tmp_path, "00-c4.bin")
    point = point_of(blocks)
    assert set(point["requests"]["failures"]) == {"an answer without end"}
    assert sum(len(data) for _, reads in blocks for _, data in reads) < 300_000 * point["requests"]["sent"]
    assert any("x an answer without end" in fault for fault in faults(point, Limits(), None))


def test_a_server_that_answers_rubbish_is_given_up_early(pyz: Path, server: str, tmp_path: Path) -> None:
    more = ("--concurrency", "4", "--warmup", "20", "--window", "60")
    began = time.monotonic()
    code, events = measured(pyz, f"{server}/rubbish", tmp_path, *more)
    assert (code, time.monotonic() - began < 30) == (0, True)
    point = point_of(log(tmp_path, "00-c4.bin"))
    assert point["requests"]["sent"] == point["requests"]["failed"] <= 28  # 20, and those that were on their way
    found = faults(point, Limits(), None)
    assert "given up early: nearly every request failed" in found
    assert any("Welcome" in fault for fault in found)
    assert json.loads((tmp_path / "run.json").read_text())["interrupted"] is False
    assert [event["event"] for event in events].count("point") == 1


def test_a_server_that_begins_to_answer_rubbish_is_not_asked_in_a_tight_loop(
    pyz: Path, server: str, tmp_path: Path
) -> None:
    """Thirty answers are well; what comes then comes at once, and each slot asks twice a second."""
    assert measured(pyz, f"{server}/breaks", tmp_path, "--concurrency", "2", "--window", "6")[0] == 0
    point = point_of(log(tmp_path, "00-c2.bin"))
    assert WELL - 3 <= point["requests"]["ok"] <= WELL
    assert 3 <= point["requests"]["failed"] <= 2 * 2 * 8 + 2
    assert any("requests failed" in fault for fault in faults(point, Limits(), None))


def test_a_request_that_no_socket_takes_at_once_arrives_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long prompt goes out in pieces, between which others are read."""
    body, got = b"x" * 3_000_000, list[bytes]()
    whole = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    ordinary, sends = Target.connect, Counter[int]()

    def narrow(self: Target, timeout: float) -> socket.socket:
        sock = ordinary(self, timeout)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        return sock

    def flush(self: Worker, stream: Stream) -> None:
        left = len(stream.out)
        usual(self, stream)
        sends[left - len(stream.out)] += 1

    def serve() -> None:
        conn, _ = listener.accept()
        with conn:
            while sum(map(len, got)) < len(whole):
                got.append(conn.recv(65536))
            conn.sendall(answer)
            conn.recv(1)

    usual = Worker._flush
    monkeypatch.setattr(Target, "connect", narrow)
    monkeypatch.setattr(Worker, "_flush", flush)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        board, part = Board(1), tmp_path / "part"
        target = Target("127.0.0.1", listener.getsockname()[1], False, "")
        worker = Worker(Plan(target, (0,), lambda _: Made(whole, 1, 1), 0.0, 20.0, 1, part), board, 0)
        running = threading.Thread(target=worker.run)
        running.start()
        board.phase = WINDOW
        running.join(30)
        board.phase = CUT
        running.join(5)
    assert b"".join(got) == whole
    assert max(sends) < len(whole)
    assert sends.total() > 2
    meta, reads = next(block for block in rawlog.decode(part.read_bytes()) if block[0]["kind"] == "request")
    assert b"".join(data for _, data in reads) == answer
    assert reads[0][0] > meta["sent"] > meta["start"]
