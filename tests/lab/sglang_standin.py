"""Starts the simulated SGLang for tests, talks raw HTTP to it, and reduces answers to their shape."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.standins import models
from lab.standins.sglang import stage

DATA = Path(__file__).parent / "data" / "sglang"
QUICK = {"start_delay": 0, "warmup": 0, "drain": 0, "c0": 1, "c1": 0, "c2": 0, "prefill_ms": 0}
CHAT = "/v1/chat/completions"
TWO = [{"role": "user", "content": "What is 2+2?"}]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The SSE events, parsed; the last one stays text."""
        found = [line[6:] for line in self.body.decode().split("\n\n") if line.startswith("data: ")]
        return [one if one == "[DONE]" else json.loads(one) for one in found]


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    port: int
    log: Path
    key: str | None = None
    sent: list[str] = field(default_factory=list)

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        head = {"Connection": "close", **({"Content-Type": "application/json"} if data is not None else {}), **headers}
        if self.key and "Authorization" not in head:
            head["Authorization"] = f"Bearer {self.key}"
        try:
            connection.request(method, path, body=data, headers=head)
            got = connection.getresponse()
            return Answer(got.status, {k.lower(): v for k, v in got.getheaders()}, got.read())
        finally:
            connection.close()

    def chat(self, **body: Any) -> Answer:
        return self.ask("POST", CHAT, {"model": "glm-5", "messages": TWO, "temperature": 0, "max_tokens": 32, **body})

    def metric(self, name: str) -> float:
        """The sum over all series of a family."""
        text = self.ask("GET", "/metrics").body.decode()
        return sum(
            float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if re.match(rf"sglang:{name}[{{ ]", line)
        )

    def lines(self) -> str:
        return self.log.read_text()

    def wait(self, seconds: float = 120) -> int:
        return self.process.wait(timeout=seconds)


def wait_for(found: Any, what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < deadline, f"{what} did not come within {seconds} s"
        time.sleep(0.01)


@contextmanager
def running(
    folder: Path,
    *args: str,
    version: str = "0.5.23",
    knobs: Mapping[str, object] | None = None,
    port: int | None = None,
    until: str = "ready to roll",
) -> Iterator[Server]:
    """A server of `version` with quick knobs, up until its log says `until`; ended with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    package = folder / f"package-{version}"
    if not package.is_dir():
        stage(version, package)
    model = folder / "models" / models.NAME
    if not model.is_dir():
        models.write(folder / "models")
    knob_file = folder / "knobs.json"
    knob_file.write_text(json.dumps({**QUICK, **(knobs or {})}))
    port = port or free_port()
    log = folder / f"log-{port}-{time.monotonic_ns()}"
    # GLM-5 fits no single card, and the stand-in says so as the real one would.
    cards = () if "--tp-size" in args else ("--tp-size", "8")
    words = ["--model-path", str(model), "--served-model-name", "glm-5", "--port", str(port), *cards, *args]
    env = {**os.environ, "PYTHONPATH": str(package), "LAB_SGLANG_KNOBS": str(knob_file), "PYTHONDONTWRITEBYTECODE": ""}
    with log.open("wb") as out:
        command = [sys.executable, "-m", "sglang.launch_server", *words]
        process = subprocess.Popen(command, env=env, stdout=out, stderr=out, cwd=folder)
    key = args[args.index("--api-key") + 1] if "--api-key" in args else None
    server = Server(process, port, log, key)
    try:
        wait_for(lambda: until in server.lines() or process.poll() is not None, until)
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()


def capture(name: str) -> Answer:
    """One captured answer of the real SGLang: its raw bytes, dechunked."""
    raw = (DATA / name).read_bytes()
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in rest)
    if headers.get("transfer-encoding") == "chunked":
        body = dechunk(body)
    return Answer(int(first.split()[1]), headers, body)


def dechunk(data: bytes) -> bytes:
    out = b""
    while data:
        size, _, rest = data.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            break
        out, data = out + rest[:length], rest[length + 2 :]
    return out


def shape(value: Any) -> Any:
    """Keys in their order and kinds of values. Lists become the set of their members' shapes."""
    if isinstance(value, dict):
        return tuple((key, shape(one)) for key, one in value.items())
    if isinstance(value, list):
        return ["empty"] if not value else sorted({repr(shape(one)) for one in value})
    if isinstance(value, bool) or value is None:
        return repr(value)
    return "number" if isinstance(value, (int, float)) else "text"


def flow(answer: Answer, plain: Callable[[Any], Any] = lambda event: event) -> list[Any]:
    """The shapes of a stream's events in order, runs of the same shape as one. `plain` takes off what may differ."""
    shapes = [one if one == "[DONE]" else shape(plain(one)) for one in answer.events]
    return [one for n, one in enumerate(shapes) if n == 0 or shapes[n - 1] != one]
