"""Drift: the answers of the deploy, kept once, and what is and what is not a change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runbooks.canary.probe import drift
from runbooks.canary.probe.client import Endpoint
from runbooks.canary.probe.reply import Logprob, Reply
from runbooks.canary.probe.run import Canary
from tests.canary.scripted_server import Asked, Scripted, healthy

STORY = "Once upon a time a keeper lived in a tower by the sea, and every evening she lit the lamp."


def said(*texts: str, logprobs: list[float] | None = None) -> dict[str, Reply]:
    names = ("arithmetic", "capital", "story")
    replies = {name: Reply(status=200, content=text) for name, text in zip(names, texts, strict=True)}
    replies["capital"].logprobs = [Logprob(f"t{at}", value) for at, value in enumerate(logprobs or [])]
    return replies


BEFORE = said("2+2 equals 4.", "The capital of France is Paris.", STORY, logprobs=[-0.1, -0.4, -1.2, -0.2, -0.8])

SAME: dict[str, dict[str, Reply]] = {
    "to the last letter": BEFORE,
    "a story that goes another way after its beginning": said(
        "2+2 equals 4.", "The capital of France is Paris.", "Once upon a time a keeper of bees met a fox.",
        logprobs=[-0.1, -0.4, -1.2, -0.2, -0.8],
    ),
    "one answer in other words": said(
        "The sum is four.", "The capital of France is Paris.", STORY, logprobs=[-0.12, -0.38, -1.25, -0.2, -0.81]
    ),
    "numerics of another batch size": said(
        "2+2 equals 4.", "The capital of France is Paris.", STORY, logprobs=[-0.13, -0.35, -1.31, -0.22, -0.9]
    ),
    "logprobs that part after three tokens": said(
        "2+2 equals 4.", "The capital of France is Paris.", STORY, logprobs=[-3.0, -3.0, -3.0]
    ),
}  # fmt: skip

OTHER: dict[str, dict[str, Reply]] = {
    "most answers": said("Four, I would say", "Paris", STORY),
    "all answers": said("Four, I would say", "Paris", "In a town far from here there was a baker"),
    "the same words, far less likely": said(
        "2+2 equals 4.", "The capital of France is Paris.", STORY, logprobs=[-1.1, -1.4, -2.2, -1.2, -1.8]
    ),
}


def record(folder: Path) -> Path:
    path = folder / "answers.json"
    drift.keep(path, BEFORE)
    return path


@pytest.mark.parametrize("story", SAME)
def test_what_is_no_drift(story: str, tmp_path: Path) -> None:
    assert drift.compare(drift.kept(record(tmp_path)), SAME[story]) is None


@pytest.mark.parametrize("story", OTHER)
def test_drift_is_degraded_and_never_nan(story: str, tmp_path: Path) -> None:
    found = drift.compare(drift.kept(record(tmp_path)), OTHER[story])
    assert found is not None
    assert (found.kind, found.grade) == ("drift", "degraded")


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"arithmetic": 4, "capital": null}'])
def test_a_record_that_cannot_be_read_is_none(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "answers.json"
    path.write_text(broken)
    assert drift.compare(drift.kept(path), BEFORE) is None
    assert drift.compare(drift.kept(tmp_path / "none"), BEFORE) is None


@pytest.mark.served
def test_the_first_healthy_run_writes_them_and_a_later_one_tells(tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    events: list[Any] = []

    def run(answer: Any) -> str:
        events.clear()
        with Scripted(answer) as server:
            return Canary(Endpoint(server.url, "glm-5"), "quick", events.append, answers=path).run()

    def terse(asked: Asked) -> str:
        """Right, but no longer what it said."""
        return {"What is 2+2?": "4", "What is the capital of France?": "Paris"}.get(asked.text, healthy(asked))

    assert run(lambda asked: "!" * 24) == "nan"
    assert not path.exists()
    assert run(healthy) == "healthy"
    first = path.read_text()
    assert run(healthy) == "healthy"
    assert run(terse) == "degraded"
    assert [one["kind"] for one in events[-1]["findings"] if one["grade"] != "note"] == ["drift"]
    assert path.read_text() == first


@pytest.mark.served
def test_a_change_that_is_meant_is_accepted_by_a_healthy_run_alone(tmp_path: Path) -> None:
    path = record(tmp_path)
    events: list[Any] = []

    def run(answer: Any, *, accept: bool) -> str:
        events.clear()
        with Scripted(answer) as server:
            endpoint = Endpoint(server.url, "glm-5")
            return Canary(endpoint, "quick", events.append, answers=path, accept=accept).run()

    def terse(asked: Asked) -> str:
        return {"What is 2+2?": "4", "What is the capital of France?": "Paris"}.get(asked.text, healthy(asked))

    before = path.read_text()
    assert run(lambda asked: "!" * 24, accept=True) == "nan"
    assert run(lambda asked: "4" if "2+2" in asked.text else "wet kettle", accept=True) == "degraded"
    assert (path.read_text(), events[-1]["accepted"]) == (before, False)

    assert run(terse, accept=False) == "degraded"
    assert run(terse, accept=True) == "healthy"
    assert events[-1]["accepted"]
    assert any("taken as meant" in event["text"] for event in events if event["event"] == "note")
    assert run(terse, accept=False) == "healthy"
    assert run(healthy, accept=False) == "degraded"


def test_answers_that_cannot_be_kept_are_not_accepted(tmp_path: Path) -> None:
    assert not drift.keep(tmp_path / "none" / "answers.json", BEFORE)
    assert list(tmp_path.iterdir()) == []
    assert drift.keep(tmp_path / "answers.json", BEFORE)
