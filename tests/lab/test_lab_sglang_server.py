"""The simulated SGLang as a process on loopback: shapes against captured answers, counters, failures."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.sglang_standin import CHAT, DATA, TWO, Server, capture, flow, running, shape, wait_for

pytestmark = pytest.mark.served

COMPLETIONS = "/v1/completions"
GLM = "[gMASK]<sop><|user|>\nWhat is 2+2?<|assistant|>\n"
LOST = (http.client.RemoteDisconnected, ConnectionResetError)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sglang")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    """A healthy 0.5.23 for all tests that only ask."""
    with running(folder, "--enable-metrics") as one:
        yield one


# -- shapes ----------------------------------------------------------------------------------------------------------


def test_headers_are_uvicorns(server: Server) -> None:
    for name, stream in (("chat", False), ("chat_stream_usage", True)):
        real, ours = capture(f"0.5.23-{name}.resp").headers, server.chat(stream=stream).headers
        assert list(ours) == list(real)
        same = [key for key in real if key not in ("date", "content-length")]
        assert {key: ours[key].lower() for key in same} == {key: real[key] for key in same}


def test_a_chat_completion(server: Server) -> None:
    ours = server.chat().json
    assert shape(ours) == shape(capture("0.5.23-chat.resp").json)
    assert ours["choices"][0]["message"]["content"] == "2+2 equals 4."


def test_logprobs_of_a_chat(server: Server) -> None:
    ours = server.chat(logprobs=True, top_logprobs=3, max_tokens=8).json
    assert shape(ours) == shape(capture("0.5.23-chat_logprobs.resp").json)
    entry = ours["choices"][0]["logprobs"]["content"][0]
    assert [one["logprob"] for one in entry["top_logprobs"]] == sorted(
        (one["logprob"] for one in entry["top_logprobs"]), reverse=True
    )


def test_a_chat_stream(server: Server) -> None:
    real, ours = (
        capture("0.5.23-chat_stream_usage.resp"),
        server.chat(stream=True, stream_options={"include_usage": True}),
    )
    assert flow(ours) == flow(real)
    assert ours.headers["content-type"] == real.headers["content-type"]


def test_a_chat_stream_with_usage_in_every_event(folder: Path) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    with running(folder, "--enable-cache-report") as one:
        assert flow(one.chat(stream=True, max_tokens=2, stream_options=options)) == flow(
            capture("0.5.23-chat_continuous_usage.resp")
        )
        events = one.chat(stream=True, stream_options=options).events
    counts = [event["usage"]["completion_tokens"] for event in events[1:-3]]
    assert counts == list(range(1, len(counts) + 1))


def test_a_completion_and_its_stream(server: Server) -> None:
    body = {"model": "glm-5", "prompt": GLM, "max_tokens": 32, "temperature": 0}
    assert shape(server.ask("POST", COMPLETIONS, body).json) == shape(capture("0.5.23-cmpl.resp").json)
    streamed = server.ask("POST", COMPLETIONS, {**body, "stream": True, "stream_options": {"include_usage": True}})
    assert flow(streamed) == flow(capture("0.5.23-cmpl_stream_usage.resp"))


def test_native_generation_streams_the_whole_text_so_far(server: Server) -> None:
    body = {"text": "What is 2+2?", "stream": True, "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
    events = server.ask("POST", "/generate", body).events
    texts = [one["text"] for one in events[:-1]]
    assert len(texts) == 4
    assert all(after.startswith(before) for before, after in itertools.pairwise(texts))
    real = capture("0.5.23-generate_stream.resp").events
    assert set(events[-2]["meta_info"]) <= set(real[-2]["meta_info"])
    assert events[-2]["meta_info"]["finish_reason"] == {"type": "length", "length": 4}


def test_the_old_dialect(folder: Path) -> None:
    with running(folder, "--enable-metrics", version="0.5.9") as old:
        assert shape(old.chat().json) == shape(capture("0.5.9-chat.resp").json)
        ours = old.chat(stream=True, stream_options={"include_usage": True})
        assert flow(ours) == flow(capture("0.5.9-chat_stream_usage.resp"))
        assert "server_args=ServerArgs(" in old.lines()
        assert old.ask("GET", "/server_info").json["nsa_decode_backend"] == "flashmla_kv"


def test_reasoning_comes_apart(folder: Path) -> None:
    with running(folder, "--reasoning-parser", "glm45", version="0.5.10.post1", knobs={"thinking": 5}) as one:
        message = one.chat().json["choices"][0]["message"]
        assert (len(message["reasoning_content"].split()), message["content"]) == (5, "2+2 equals 4.")
        off = one.chat(chat_template_kwargs={"enable_thinking": False}).json["choices"][0]["message"]
        assert off["reasoning_content"] is None
        assert flow(one.chat(stream=True, max_tokens=1)) == flow(capture("0.5.10.post1-reasoning_stream.resp"))


# -- counting --------------------------------------------------------------------------------------------------------


def test_counters_are_the_sum_of_the_usages(folder: Path) -> None:
    with running(folder, "--enable-metrics", "--enable-cache-report") as one:
        usages = [one.chat(max_tokens=n, ignore_eos=True).json["usage"] for n in (1, 7, 7)]
        streamed = one.chat(max_tokens=9, ignore_eos=True, stream=True, stream_options={"include_usage": True}).events
        usages.append(streamed[-2]["usage"])
        assert [one["completion_tokens"] for one in usages] == [1, 7, 7, 9]
        for name, key in (("prompt", "prompt_tokens"), ("generation", "completion_tokens")):
            assert one.metric(f"{name}_tokens_total") == sum(usage[key] for usage in usages)
        assert one.metric("num_requests_total") == 4
        long = [{"role": "user", "content": "word " * 300}]
        cached = [one.chat(messages=long).json["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(2)]
        assert cached == [0, 256]  # whole pages of 64
        assert one.metric("cached_tokens_total") == 256
        assert one.ask("POST", "/flush_cache").status == 200
        assert one.chat(messages=long).json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_every_metric_family_is_a_real_one(server: Server) -> None:
    server.chat(stream=True)
    text = server.ask("GET", "/metrics")
    ours = {line.removeprefix("# TYPE ") for line in text.body.decode().splitlines() if line.startswith("# TYPE ")}
    real = set((DATA / "0.5.23-metric-families.txt").read_text().splitlines())
    assert ours - real == set()
    assert text.headers["transfer-encoding"] == "chunked"


def test_running_and_waiting_requests_show(folder: Path) -> None:
    with running(folder, "--enable-metrics", "--max-running-requests", "2", knobs={"c0": 20}) as one:
        body = {"model": "glm-5", "messages": TWO, "max_tokens": 4000, "ignore_eos": True}
        for _ in range(3):
            threading.Thread(target=_ignored, args=(one, body), daemon=True).start()
        wait_for(lambda: one.metric("num_running_reqs") == 2 and one.metric("num_queue_reqs") == 1, "two and one")
        assert one.ask("POST", "/abort_request", {"abort_all": True}).status == 200
        wait_for(lambda: one.metric("num_running_reqs") == 0, "an empty server")


def _ignored(server: Server, body: dict[str, Any]) -> None:
    """A request whose answer may never come."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        server.ask("POST", CHAT, body)


# -- who may, and what is refused ------------------------------------------------------------------------------------


def test_a_key_closes_all_but_health_and_metrics(folder: Path) -> None:
    with running(folder, "--enable-metrics", "--api-key", "sk-1") as one:
        for method, path in (("POST", CHAT), ("GET", "/v1/models"), ("GET", "/server_info"), ("POST", "/generate")):
            refused = one.ask(method, path, {} if method == "POST" else None, Authorization="Bearer no")
            assert (refused.status, refused.body) == (401, b'{"error":"Unauthorized"}')
            assert "vary" not in refused.headers
        assert one.ask("GET", "/metrics", Authorization="").status == 200
        assert one.chat().status == 200
        assert "'api_key': 'sk-1'" in one.lines()  # the real one leaks it here too
        assert one.ask("GET", "/server_info").json["api_key"] == "sk-1"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"messages": []}, "Messages cannot be empty."),
        ({"messages": "x"}, "Input should be a valid list"),
        ({"temperature": -1}, "temperature must be a non-negative finite number, got -1.0."),
        ({"top_p": 2.0}, "top_p must be in (0, 1], got 2.0."),
        ({"max_tokens": "abc"}, "unable to parse string as an integer"),
        ({"max_tokens": -3}, "max_new_tokens must be at least 0, got -3."),
        ({"max_tokens": 300_000}, "maximum context length of 202752 tokens. You requested a total of 300007 tokens"),
        (
            {"messages": [{"role": "user", "content": "word " * 250_000}]},
            "longer than the model's context length (202752",
        ),
    ],
)
def test_bad_requests_are_refused_in_its_words(server: Server, change: dict[str, Any], text: str) -> None:
    found = server.chat(**change)
    assert found.status == 400
    assert text in found.json["message"]
    assert set(found.json) == {"object", "message", "type", "param", "code"}


def test_other_refusals(server: Server) -> None:
    assert server.ask("GET", "/nope").json == {"detail": "Not Found"}
    wrong = server.ask("GET", CHAT)
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
    assert server.ask("POST", CHAT, b'{"model": ').status == 400
    assert server.chat(model="no-such-model").status == 200  # the real one does not check it either
    bad = server.ask("POST", "/generate", {"sampling_params": {}})
    assert bad.json == {"error": {"message": "Either text, input_ids or input_embeds should be provided."}}


def test_a_client_that_leaves_frees_its_place(folder: Path) -> None:
    with (
        running(folder, "--enable-metrics", knobs={"c0": 20}) as one,
        socket.create_connection(("127.0.0.1", one.port)) as raw,
    ):
        body = json.dumps({"messages": TWO, "max_tokens": 4000, "ignore_eos": True, "stream": True}).encode()
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        raw.sendall(head.encode() + body)
        assert raw.recv(100).startswith(b"HTTP/1.1 200 OK")
        wait_for(lambda: one.metric("num_running_reqs") == 1, "the request")
        raw.close()
        wait_for(lambda: one.metric("num_running_reqs") == 0, "an empty server")


# -- life and death --------------------------------------------------------------------------------------------------


def test_it_says_that_it_is_a_stand_in_and_how_it_started(server: Server) -> None:
    lines = server.lines()
    assert lines.startswith("This is a lab stand-in for SGLang 0.5.23")
    order = (
        "Use dsa attention backend", "Set DSA backends for GLM FP8", "server_args={", "TP0] Load weight begin.",
        "TP0] Load weight end.", "TP0] KV Cache is allocated.", "TP0] Capture target decode CUDA graph begin.",
        "CUDA graph end. bs=[", "TP0] max_total_num_tokens=", "Application startup complete.", "Uvicorn running on",
        "The server is fired up and ready to roll!",
    )  # fmt: skip
    places = [lines.index(one) for one in order]
    assert places == sorted(places)
    assert server.ask("GET", "/server_info").json["standin"] == "lab stand-in for SGLang"


def test_before_the_warm_up_models_answer_and_health_does_not(folder: Path) -> None:
    with running(folder, knobs={"fail": "never_ready"}, until="Uvicorn running on") as one:
        paths = ("/health", "/health_generate", "/v1/models", "/metrics")
        assert [one.ask("GET", path).status for path in paths] == [
            503,
            503,
            200,
            404,
        ]  # no --enable-metrics, no metrics


def test_a_nan_crash_kills_the_whole_server(folder: Path) -> None:
    """Before 0.5.13 at once; later releases sleep 5 s between the exception and the kill."""
    with running(folder, "--enable-metrics", version="0.5.9", knobs={"fail": "nan"}) as one:
        greedy = one.chat(logprobs=True, top_logprobs=3, max_tokens=8).json["choices"][0]
        assert (greedy["message"]["content"], greedy["finish_reason"]) == ("!" * 8, "length")
        assert {entry["logprob"] for entry in greedy["logprobs"]["content"]} == {None}
        assert one.chat(temperature=1).status == 200  # without top_p nothing asserts
        assert one.ask("GET", "/health").status == 200  # with a token that nobody asked for, and that is not counted
        assert one.metric("num_requests_total") == 2
        with pytest.raises(LOST):
            one.chat(temperature=0.7, top_p=0.95)
        assert one.wait() == -9
        assert "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0" in one.lines()
        assert "SIGQUIT received. signum=None, frame=None. It usually means one child failed." in one.lines()


def test_a_failure_can_hang_on_what_was_resolved(folder: Path) -> None:
    knobs = {"fail": "nan", "fail_when": {"dsa_decode_backend": ["flashmla_kv"]}}
    words = ("--nsa-prefill-backend", "trtllm", "--nsa-decode-backend", "trtllm")
    with running(folder, version="0.5.9", knobs=knobs) as before:
        assert before.chat().json["choices"][0]["message"]["content"].startswith("!!!!")
    with running(folder, *words, version="0.5.9", knobs=knobs) as after:
        assert after.chat().json["choices"][0]["message"]["content"] == "2+2 equals 4."


def test_a_taken_port_is_said_and_then_nothing_happens(folder: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = int(other.getsockname()[1])
        with running(folder, port=port, until="Waiting for application shutdown.") as one:
            assert f"[Errno 98] error while attempting to bind on address ('127.0.0.1', {port})" in one.lines()
            assert one.process.poll() is None


@pytest.mark.parametrize(
    ("version", "code"), [("0.5.13.post1", -9), ("0.5.23", 0)], ids=["before 0.5.14 by SIGKILL", "later by itself"]
)
def test_a_stop(folder: Path, version: str, code: int) -> None:
    with running(folder, version=version) as one:
        one.process.terminate()
        assert one.wait() == code
        assert "Gracefully exiting... Remaining number of requests 0." in one.lines()


@pytest.mark.parametrize(
    ("failure", "last"), [("no_done", "usage"), ("error_in_stream", "error"), ("logprob_500", ""), ("nan_stop", "")]
)
def test_broken_answers(folder: Path, failure: str, last: str) -> None:
    with running(folder, knobs={"fail": failure}) as one:
        if failure == "logprob_500":
            found = one.chat(logprobs=True)
            assert (found.status, "Out of range float values are not JSON compliant" in found.json["message"]) == (
                500,
                True,
            )
        elif failure == "nan_stop":
            choice = one.chat().json["choices"][0]
            assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", "NaN happened")
        else:
            events = one.chat(stream=True, stream_options={"include_usage": True}, ignore_eos=True).events
            assert "[DONE]" not in events
            assert last in events[-1]
            assert events[-1][last]


def test_a_hang_is_seen_by_health(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_HEALTH_CHECK_TIMEOUT", "1")
    with running(folder, knobs={"fail": "hang_after", "detail": 1}) as one:
        threading.Thread(target=_ignored, args=(one, {"messages": TWO}), daemon=True).start()
        wait_for(lambda: "Prefill batch" in one.lines(), "the request")
        assert one.ask("GET", "/health").status == 503
        assert "Health check failed. Server couldn't get a response from detokenizer" in one.lines()
