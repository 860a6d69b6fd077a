"""The canary against the simulated SGLang: each of its failure modes, its pace, and what a busy one is spared."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lab.standins.sglang.src.knobs import FAILURES
from runbooks.canary.probe.battery import burst
from runbooks.canary.probe.client import Endpoint
from runbooks.canary.probe.run import Canary
from tests.lab.sglang_standin import Server, running

pytestmark = pytest.mark.served

AT_START = {"die_at_start", "hang_at_start"}  # nothing listens: that is the gate's to tell
KINDS: Mapping[str, tuple[str, set[str]]] = {
    "": ("healthy", set()),
    "never_ready": ("degraded", {"not-serving"}),
    "nan": ("nan", {"token-zero"}),
    "nan_long": ("nan", {"token-zero"}),
    "nan_busy": ("nan", {"journal-nan"}),
    "nan_stop": ("nan", {"nan-stop"}),
    "logprob_500": ("nan", {"nan-error"}),
    "hang_after": ("dead", {"silent"}),
    "crash_after": ("dead", {"dropped"}),
    "error_in_stream": ("degraded", {"stream-error"}),
    "no_done": ("degraded", {"no-done"}),
    "one_token": ("degraded", {"too-short"}),
    "garbage": ("degraded", {"one-token"}),
}


def ask(server: Server, battery: str = "quick", **options: Any) -> tuple[str, dict[str, Any], list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    endpoint = Endpoint(f"http://127.0.0.1:{server.port}", "glm-5", silence=options.pop("silence", 10.0))
    canary = Canary(endpoint, battery, lambda event: events.append(dict(event)), **options)
    return canary.run(), events[-1], events


def test_every_failure_mode_has_its_verdict() -> None:
    assert set(KINDS) == set(FAILURES) - AT_START


@pytest.mark.parametrize("fail", KINDS)
def test_a_failure_mode(fail: str, tmp_path: Path) -> None:
    verdict, kinds = KINDS[fail]
    busy = fail == "nan_busy"  # asked only that, and slow enough that its requests meet on any machine
    # The seventh request is one of the long prompts: what befalls `reading`, the fifth, is only noted.
    knobs = {"fail": fail, "detail": 6 if fail == "crash_after" else 4, "c0": 200 if busy else 0} if fail else {}
    until = "Uvicorn running" if fail == "never_ready" else "ready to roll"
    with running(tmp_path, "--enable-metrics", knobs=knobs, until=until) as server:
        said, end, _ = ask(server, log=server.log, prompts=(burst(8),) if busy else ())
    found = {one["kind"] for one in end["findings"] if one["grade"] != "note"}
    assert (said, kinds <= found) == (verdict, True), (found, end["findings"])


def test_prefix_hits_are_proven_and_edges_are_met_to_the_token(tmp_path: Path) -> None:
    with running(tmp_path, "--enable-metrics", "--enable-cache-report", "--reasoning-parser", "glm45") as server:
        said, end, events = ask(server, "full")
    prompts = {event["name"]: event for event in events if event["event"] == "prompt"}
    assert said == "healthy", end["findings"]
    assert prompts["repeat"]["cached_tokens"] > 1000
    edges = {name: one for name, one in prompts.items() if name.startswith("edge")}
    assert {name: one["prompt_tokens"] % 64 for name, one in edges.items()} == {
        f"edge{at:+d}": at % 64 for at in (0, 1, 4, 5, 6, 7, 8, 9, 10, -1)
    }
    assert all(one["cached_tokens"] >= 960 and one["cached_tokens"] % 64 == 0 for one in edges.values())
    assert prompts["think"]["completion_tokens"] > 40


@pytest.mark.slow
@pytest.mark.parametrize("battery", ["quick", "gate"])
def test_at_eleven_tokens_a_second_it_is_done_within_ninety_seconds(battery: str, tmp_path: Path) -> None:
    pace = {"c0": 90, "c1": 0, "c2": 0.0, "prefill_ms": 0.5}
    with running(tmp_path, "--enable-metrics", knobs=pace) as server:
        said, end, _ = ask(server, battery, silence=30.0)
    print(f"\n{battery}: {end['requests']} requests, {end['tokens']} tokens, {end['seconds']} s")
    assert (said, end["asked"][-1]) == ("healthy", "again")
    assert end["seconds"] < 90


def test_a_busy_server_is_asked_little_with_its_lowest_priority(tmp_path: Path) -> None:
    pace = {"c0": 20}
    words = ["--enable-metrics", "--enable-priority-scheduling"]
    with running(tmp_path, *words, knobs=pace) as server:
        work = [
            threading.Thread(target=lambda: server.chat(max_tokens=150, ignore_eos=True), daemon=True) for _ in range(6)
        ]
        for one in work:
            one.start()
        while server.metric("num_running_reqs") < 6:
            threading.Event().wait(0.01)
        said, end, events = ask(server, silence=10.0)
        for one in work:
            one.join()
    assert said == "healthy"
    assert end["requests"] == 7  # six prompts and one measurement
    assert end["tokens"] < 5000
    assert any("busy" in event.get("text", "") for event in events)
