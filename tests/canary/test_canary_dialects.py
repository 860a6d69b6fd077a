"""Engines that are not SGLang: sound answers are never called sick, and '!!!!' is never missed, whatever the shape."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from runbooks.canary.probe.client import Endpoint
from runbooks.canary.probe.run import Canary
from tests.canary.other_engines import HTML, JSON, SHAPES, Body, Engine, Http, error, vllm
from tests.canary.scripted_server import right_answer

pytestmark = pytest.mark.served


def right(body: Body) -> str:
    return right_answer(body["messages"][-1]["content"])


def run(engine: Engine, battery: str = "quick", silence: float = 5.0) -> tuple[str, list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    endpoint = Endpoint(engine.url, "glm-5", silence=silence)
    return Canary(endpoint, battery, lambda event: events.append(dict(event))).run(), events


def faults(events: list[dict[str, Any]]) -> set[str]:
    return {one["kind"] for one in events[-1]["findings"] if one["grade"] != "note"}


def engine(name: str, answer: Any) -> Engine:
    return Engine(SHAPES[name], answer, models=("llama3:8b",) if name == "ollama" else ("glm-5",))


@pytest.mark.parametrize("name", SHAPES)
def test_sound_answers_are_never_called_sick(name: str) -> None:
    with engine(name, right) as server:
        verdict, events = run(server)
    assert (verdict, faults(events)) == ("healthy", set())


@pytest.mark.parametrize("name", SHAPES)
def test_token_zero_is_never_missed(name: str) -> None:
    with engine(name, lambda body: " ".join(["!" * 8] * 4)) as server:
        assert run(server)[0] == "nan"


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "thinks"])
def test_nonsense_is_never_missed(name: str) -> None:
    with engine(name, lambda body: "wet kettle " * 30) as server:
        assert run(server)[0] == "degraded"


@pytest.mark.parametrize("name", ["tgi", "openai", "no_logprobs", "says_little"])
def test_what_is_refused_is_said_once_and_left_out_from_then_on(name: str) -> None:
    with engine(name, right) as server:
        _, events = run(server)
    notes = [event["text"] for event in events if event["event"] == "note"]
    assert any("does not take" in note for note in notes)
    assert len(server.asked) <= 20 + 4


def test_an_engine_that_works_on_one_at_a_time_is_not_stuck() -> None:
    pause = threading.Event()

    def slow(body: Body) -> str:
        pause.wait(0.05 if body["max_tokens"] == 32 else 0)
        return right(body)

    with Engine(vllm, slow, slots=1) as server:
        verdict, events = run(server, "gate", silence=2.0)
    assert verdict == "healthy", faults(events)


def test_a_burst_of_which_some_hear_nothing_while_others_are_quick_is_a_fault() -> None:
    hold, seen = threading.Event(), iter(range(1000))

    def answer(body: Body) -> str:
        if body["max_tokens"] == 32 and next(seen) % 4 == 3:
            hold.wait(20)
        return right(body)

    with Engine(vllm, answer) as server:
        verdict, events = run(server, silence=0.5)
        hold.set()
    assert (verdict, faults(events)) == ("dead", {"silent"})


def test_turning_some_of_a_burst_away_is_a_limit_and_no_sickness() -> None:
    running = threading.Semaphore(40)

    def limited(body: Body, text: str) -> Http:
        if body["max_tokens"] == 32 and not running.acquire(blocking=False):
            return error(503, "Model is overloaded", type="overloaded")
        return vllm(body, text)

    with Engine(limited, right) as server:
        verdict, events = run(server, "gate")
    assert (verdict, faults(events)) == ("healthy", set())
    assert any(one["kind"] == "queued" for one in events[-1]["findings"])


REFUSED = {
    "[json.exception.type_error.302] type must be number, but is null": ("nan", {"nan-error", "rejected"}),  # llama.cpp
    "json: unsupported value: NaN": ("nan", {"nan-error", "rejected"}),  # Go's encoder
    "something else is wrong": ("degraded", {"rejected"}),
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_400_about_nothing_that_was_asked_stays_a_fault(words: str) -> None:
    """So is a request for logprobs answered where they are NaN, and only logprobs show it."""

    def broken(body: Body, text: str) -> Http:
        return error(400, words) if body.get("logprobs") else vllm(body, text)

    with Engine(broken, right) as server:
        verdict, events = run(server)
    assert (verdict, faults(events)) == REFUSED[words]


NGINX = (
    "<html>\r\n<head><title>404 Not Found</title></head>\r\n<body><h1>404 Not Found</h1><hr>nginx/1.22.1</body></html>"
)
FOREIGN: dict[str, tuple[Http, str, str]] = {
    "a web server without the route": ((404, HTML, NGINX), "foreign", "404 Not Found"),
    "a web server that shows its page": ((200, HTML, "<!DOCTYPE html><title>Welcome!</title>"), "foreign", "Welcome"),
    "another program's API": ((404, JSON, '{"detail":"Not Found"}'), "foreign", "Not Found"),
    "a proxy with nothing behind it": ((502, HTML, NGINX.replace("404", "502")), "bad-gateway", "502"),
}  # fmt: skip


@pytest.mark.parametrize("what", FOREIGN)
def test_what_is_no_such_server_is_called_so_in_one_line(what: str) -> None:
    page, kind, seen = FOREIGN[what]
    with Engine(lambda body, text: page, right, models=(), pages={"/v1/models": page, "/health": page}) as server:
        verdict, events = run(server)
    assert (verdict, faults(events)) == ("dead", {kind})
    evidence = events[-1]["findings"][0]["evidence"]
    assert seen in evidence
    assert "<" not in evidence
    assert len(server.asked) == 1


def test_something_that_speaks_no_http() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as door:

        def greet() -> None:
            while True:
                try:
                    peer, _ = door.accept()
                except OSError:
                    return
                with peer:
                    peer.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")
                    peer.recv(65536)

        threading.Thread(target=greet, daemon=True).start()
        events: list[Any] = []
        url = f"http://127.0.0.1:{door.getsockname()[1]}"
        assert Canary(Endpoint(url, "glm-5"), "quick", events.append).run() == "dead"
    assert events[-1]["findings"][0]["kind"] == "foreign"
    assert "SSH-2.0" in events[-1]["findings"][0]["evidence"]
