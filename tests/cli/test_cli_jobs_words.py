"""What `invoke jobs` shows of a job's log: words that a person can read, and no piece of an event for programs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runbooks.engine.follow import Job
from runbooks.jobs import _row, words

POINT: dict[str, Any] = {
    "event": "point", "concurrency": 64, "tok_s": 1010.4, "requests": {"failed": 0},
    "timeline": {"bin_s": 0.5, "tok_s": [12.25, 1013.0625, 1e-05], "window": [10.0, 40.0]},
}  # fmt: skip
PROMPT = {"event": "prompt", "number": 1, "name": "capital", "ok": True, "excerpt": "Paris", "findings": []}
PROGRESS = {"event": "progress", "point": 8, "open": False, "phase": "window", "done": 3.0, "total": 30.0}


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"event": "end", "out": "out", "text": "7 points; raw logs: out"}, "7 points; raw logs: out"),
        ({"event": "error", "kind": "busy", "text": "2 requests of others run"}, "2 requests of others run"),
        ({"event": "verdict", "verdict": "healthy", "findings": []}, "healthy"),
        (POINT, "64 streams: 1,010 tok/s"),
        (PROMPT, "capital: ok"),
        (PROMPT | {"ok": False}, "capital: NOT ok"),
        (PROGRESS, "8 streams: window"),
        (PROGRESS | {"point": 2.5, "open": True}, "2.5 a second: window"),
    ],
)
def test_of_an_event_its_words(event: dict[str, Any], said: str) -> None:
    assert words([json.dumps(event)]) == [said]


def test_of_a_piece_of_an_event_nothing_wherever_it_was_cut() -> None:
    for event in (POINT, PROMPT | {"excerpt": ""}, {"event": "result", "result": {"rows": [[1.5, None], [2.5, True]]}}):
        line = json.dumps(event)
        for at in range(1, len(line) - 14):
            assert not any(mark in said for said in words([line[at:]]) for mark in ('": ', "{", "[")), line[at:]
    assert words(["0.1, 2.25, 3e-05]}", '{"event": "point", "tok_s": 12.', json.dumps({"event": "vitals"})]) == []


def test_plain_lines_stay_as_they_are() -> None:
    lines = ["Setting up nvidia-driver-580 (1.2)", "100%", "E: Unable to locate package x", "done", "42", "a, b"]
    assert words(lines) == lines


def test_a_cell_is_empty_where_nothing_can_be_read() -> None:
    job = Job(label="bench-1", state="0", name="bench", who="me", changes=False, since=0.0, ended=9.0, tail=("{", "]}"))
    assert _row(job)[-1] == ""
