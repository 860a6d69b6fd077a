"""The simulated SGLang side by side with the real one on this machine's CPU: status, headers, keys, order of events.

Slow: the real one is downloaded and built into the lab's cache first (minutes, once), and takes half a minute to start.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from lab import engine
from runbooks.engine.errors import UsageError
from tests.lab.sglang_standin import CHAT, TWO, Answer, Server, flow, free_port, running, shape, wait_for

pytestmark = pytest.mark.slow

VERSION = "0.5.10.post1"
KEY = "sk-side-by-side"
FLAGS = ("--enable-metrics", "--enable-cache-report", "--disable-radix-cache", "--api-key", KEY)
STORY = [{"role": "user", "content": "Write a long story."}]
LONG = [{"role": "user", "content": "word " * 300_000}]
TEXT = {"model": "glm-5", "prompt": "What is 2+2?", "temperature": 0, "max_tokens": 3, "ignore_eos": True}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
EACH = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}


def chat(**change: Any) -> tuple[str, str, Any]:
    return ("POST", CHAT, {"model": "glm-5", "messages": TWO, "temperature": 0, "max_tokens": 3, **change})


def text(**change: Any) -> tuple[str, str, Any]:
    return ("POST", "/v1/completions", {**TEXT, **change})


def native(**change: Any) -> tuple[str, str, Any]:
    few = {"max_new_tokens": 3, "temperature": 0, "ignore_eos": True}
    return ("POST", "/generate", {"text": "What is 2+2?", "sampling_params": few, **change})


ASKED: dict[str, tuple[str, str, Any]] = {
    "models": ("GET", "/v1/models", None),
    "one model": ("GET", "/v1/models/glm-5", None),
    "no such model": ("GET", "/v1/models/nope", None),
    "root": ("GET", "/", None),
    "ping": ("GET", "/ping", None),
    "no such page": ("GET", "/nope", None),
    "wrong method": ("GET", CHAT, None),
    "health": ("GET", "/health", None),
    "health_generate": ("GET", "/health_generate", None),
    "model info": ("GET", "/model_info", None),
    "chat": chat(ignore_eos=True),
    "chat to its end": chat(max_tokens=32),
    "chat, two of it": chat(n=2),
    "chat, other model": chat(model="no-such-model"),
    "chat, stop": chat(messages=STORY, max_tokens=32, stop=[" a"]),
    "chat, none": chat(max_tokens=0),
    "chat, max_completion_tokens": chat(max_tokens=None, max_completion_tokens=2),
    "chat, logprobs": chat(logprobs=True, top_logprobs=2, ignore_eos=True),
    "chat, stream": chat(stream=True, ignore_eos=True),
    "chat, stream and usage": chat(max_tokens=32, **USAGE),
    "chat, stream and usage each": chat(max_tokens=32, **EACH),
    "chat, stream of one": chat(max_tokens=1, stream=True),
    "chat, stream to a stop": chat(messages=STORY, max_tokens=32, stop=[" a"], stream=True),
    "chat, stream with logprobs": chat(logprobs=True, top_logprobs=2, ignore_eos=True, stream=True),
    "chat, parts": chat(messages=[{"role": "user", "content": [{"type": "text", "text": "What is 2+2?"}]}]),
    "chat, too long": chat(messages=LONG),
    "chat, too long as a stream": chat(messages=LONG, stream=True),
    "chat, too much": chat(max_tokens=1_000_000),
    "chat, no messages": ("POST", CHAT, {"model": "glm-5"}),
    "chat, empty messages": chat(messages=[]),
    "chat, wrong messages": chat(messages="x"),
    "chat, wrong temperature": chat(temperature=-1),
    "chat, wrong top_p": chat(top_p=2.0),
    "chat, wrong max_tokens": chat(max_tokens="abc"),
    "chat, negative max_tokens": chat(max_tokens=-1),
    "chat, broken JSON": ("POST", CHAT, b'{"model": '),
    "text": text(),
    "text, stream": text(stream=True),
    "text, stream and usage": text(**USAGE),
    "text, stream and usage each": text(**EACH),
    "text, logprobs": text(logprobs=2),
    "text, two prompts": text(prompt=["What is 2+2?", "Say hello."]),
    "text, ids": text(prompt=[5, 6, 7]),
    "text, echo": text(echo=True),
    "native": native(),
    "native, stream": native(stream=True),
    "native, batch": native(text=["What is 2+2?", "Say hello."]),
    "native, logprobs": native(return_logprob=True, top_logprobs_num=2),
    "native, nothing": ("POST", "/generate", {"sampling_params": {}}),
    "flush": ("POST", "/flush_cache", None),
    "abort": ("POST", "/abort_request", {"rid": "none"}),
}

# What may differ, and why. Everything else is the same.
TIMES = (
    "prefill_waiting_latency",
    "prefill_launch_latency",
    "request_received_ts",
    "api_server_dispatch_finish_ts",
    "request_finished_ts",
    "inference_time",
    "decode_throughput",
    "response_sent_to_client_ts",
    "e2e_latency",
)
ALLOWED = {
    "chat, wrong temperature": "the text of later releases: 'a non-negative finite number' for 'non-negative'",
}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    try:
        made = engine.prepare(print, version=VERSION)
    except UsageError as missing:
        pytest.skip(str(missing))
    port, folder = free_port(), tmp_path_factory.mktemp("real")
    log = folder / "log"
    words = [
        "--model-path",
        str(made.models / f"{engine.PREFIX}healthy"),
        "--served-model-name",
        "glm-5",
        "--port",
        str(port),
    ]
    cpu = [
        "--device",
        "cpu",
        "--attention-backend",
        "torch_native",
        "--mem-fraction-static",
        "0.05",
        "--max-total-tokens",
        "16384",
    ]
    env = {**os.environ, **engine.ENVIRONMENT}
    with log.open("wb") as out:
        command = [str(made.python), "-m", "sglang.launch_server", *words, *cpu, *FLAGS]
        process = subprocess.Popen(command, env=env, stdout=out, stderr=out, cwd=folder)
    server = Server(process, port, log, KEY)
    try:
        wait_for(lambda: "ready to roll" in server.lines() or process.poll() is not None, "the real SGLang", 180)
        yield server
    finally:
        process.kill()  # its workers end with it
        process.wait(timeout=60)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("simulated"), *FLAGS, version=VERSION, knobs={"c0": 5}) as one:
        yield one


@pytest.mark.parametrize("name", ASKED)
def test_side_by_side(real: Server, simulated: Server, name: str) -> None:
    method, path, body = ASKED[name]
    theirs, ours = real.ask(method, path, body), simulated.ask(method, path, body)
    assert ours.status == theirs.status
    assert list(ours.headers) == list(theirs.headers)
    assert kinds(ours) == kinds(theirs)
    if "event-stream" in theirs.headers.get("content-type", ""):
        assert flow(ours, plain) == flow(theirs, plain)
    elif "json" in theirs.headers.get("content-type", ""):
        assert shape(plain(ours.json)) == shape(plain(theirs.json))
        if theirs.status >= 400 and name not in ALLOWED:
            assert without_numbers(ours.body) == without_numbers(theirs.body)
    else:
        assert ours.body == theirs.body


def test_who_needs_the_key(real: Server, simulated: Server) -> None:
    for path in (
        "/health",
        "/metrics",
        "/v1/models",
        "/server_info",
        "/get_server_info",
        "/model_info",
        "/v1/loads",
        "/",
    ):
        answers = [one.ask("GET", path, Authorization="Bearer wrong") for one in (real, simulated)]
        assert answers[0].status == answers[1].status, path
        if answers[0].status == 401:
            assert answers[0].body == answers[1].body
            assert list(answers[0].headers) == list(answers[1].headers)


def test_our_metrics_are_a_part_of_its(real: Server, simulated: Server) -> None:
    for one in (real, simulated):
        one.chat(**USAGE)
        one.chat()
    theirs, ours = (series(one.ask("GET", "/metrics")) for one in (real, simulated))
    graphs = {one for one in ours if 'mode="decode_cuda_graph"' in one}  # a CPU has none
    assert ours - theirs == graphs


def test_server_info_has_every_argument_of_the_table(real: Server, simulated: Server) -> None:
    theirs, ours = (one.ask("GET", "/server_info").json for one in (real, simulated))
    assert set(ours) - set(theirs) == {"standin"}
    for key in ("version", "status", "max_req_input_len", "internal_states"):
        assert type(ours[key]) is type(theirs[key])


def kinds(answer: Answer) -> list[str | None]:
    return [answer.headers.get(name) for name in ("content-type", "vary", "transfer-encoding", "connection", "allow")]


def plain(value: Any) -> Any:
    """Without time stamps, and without the tokens of two different tokenizers as keys (top_logprobs of completions)."""
    if isinstance(value, dict):
        return {key: "rows" if key == "top_logprobs" else plain(one) for key, one in value.items() if key not in TIMES}
    return [plain(one) for one in value] if isinstance(value, list) else value


def without_numbers(body: bytes) -> str:
    """Error texts name paths, lines and token counts of their own."""
    words = re.sub(r'File \\"[^"]*\\", line \d+', "File", body.decode())
    return re.sub(r"\d+", "N", words)


def series(answer: Answer) -> set[str]:
    """Names and label names of every series, with the values of labels that are no places or ports."""
    lines = [line for line in answer.body.decode().splitlines() if line and not line.startswith("#")]
    return {re.sub(r'(endpoint|method|status_code|le|pid)="[^"]*"', r"\1", line.rsplit(" ", 1)[0]) for line in lines}
