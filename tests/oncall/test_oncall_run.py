"""`invoke runbook PAGE --run`: what runs, in which order, what is asked first, and what the log keeps."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from runbooks import incident, oncall
from runbooks.engine.errors import UsageError
from runbooks.engine.printers import JsonPrinter
from runbooks.engine.report import Reporter
from runbooks.oncall.blocks import blocks


@dataclass
class FakeSession:
    answers: list[bool] | None
    yes: bool = False
    hosts: list[str] = field(default_factory=list)
    report: Reporter = field(default_factory=lambda: Reporter(JsonPrinter(io.StringIO())))

    def consent(self, question: str) -> bool:
        if self.yes:
            return True
        if self.answers is None:
            raise UsageError("nobody to ask")
        return self.answers.pop(0)


def walk(
    monkeypatch: pytest.MonkeyPatch,
    codes: dict[str, list[int]],
    answers: list[bool] | None,
    *,
    yes: bool = False,
    page: str = "nan-output",
) -> tuple[int, list[str], str]:
    """Walk a page with these exit codes of its blocks (default 1: it fails)."""
    log = io.StringIO()
    session: Any = FakeSession(answers, yes)
    run = incident.Incident(session, page, [], log)
    monkeypatch.setattr(run, "_here", lambda block: codes[block.name].pop(0) if codes.get(block.name) else 1)
    return run.walk(), run.ran, log.getvalue()


@pytest.mark.parametrize("name", oncall.names())
def test_all_blocks_of_a_page_are_found(name: str) -> None:
    text = oncall.load(name).text
    found = blocks(text)
    assert len(found) == text.count("\n```sh name=") >= 1
    assert all(block.script and block.section for block in found)


def test_it_ends_when_the_proof_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    code, ran, log = walk(monkeypatch, {"back": [0], "check": [0], "releases": [0]}, [True])
    assert (code, ran) == (0, ["look", "releases", "back", "check"])
    assert "invoke rollback" in log
    assert "agreed: True" in log


def test_what_is_not_agreed_to_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    code, ran, _ = walk(monkeypatch, {}, [False, False, False])
    assert (code, ran) == (1, ["look", "releases", "check"])


def test_it_goes_on_to_the_next_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    code, ran, _ = walk(monkeypatch, {"check": [1, 0], "careful": [0]}, [True, True])
    assert (code, ran) == (0, ["look", "releases", "back", "check", "careful", "check"])


def test_a_proof_that_changes_something_is_asked_for_like_all_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    code, ran, log = walk(monkeypatch, {}, [False] * 9, page="peer-to-peer")
    assert (code, ran) == (1, ["look", "check"])
    assert "bench.collectives" in log


def test_with_nobody_to_ask_only_looks_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    code, ran, log = walk(monkeypatch, {"check": [0]}, None)
    assert (code, ran) == (0, ["look", "releases", "check"])
    assert "nobody to ask" in log


def test_yes_changes_nothing_where_nothing_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert walk(monkeypatch, {"look": [0]}, None, yes=True)[:2] == (0, ["look"])


def test_our_own_commands_get_the_hosts_and_the_consent() -> None:
    words = incident.command("invoke rollback   # back", ["a", "b"], agreed=True)
    assert words[:3] == [sys.executable, "-m", "invoke"]
    assert words[5:] == ["rollback", "--hosts", "a", "--hosts", "b", "--yes"]
    assert incident.command("invoke canary", [], agreed=True)[5:] == ["canary"]
    assert incident.command("df -h", ["a"], agreed=True) == ["df", "-h"]
    assert incident.command("# only a remark", [], agreed=False) == []


def test_a_log_that_cannot_be_written_is_said_before_anything_runs(tmp_path: Path) -> None:
    session: Any = FakeSession(None)
    with pytest.raises(UsageError, match="cannot write the log"):
        incident.run_page(session, "nan-output", [], str(tmp_path / "no" / "log"))


def test_no_page_at_all_is_answered_with_the_list() -> None:
    session: Any = FakeSession(None)
    with pytest.raises(UsageError, match="which page") as caught:
        incident.run_page(session, "", [])
    assert "nan-output" in caught.value.details[0]


def test_an_unknown_page_begins_no_log(tmp_path: Path) -> None:
    session: Any = FakeSession(None)
    with pytest.raises(UsageError):
        incident.run_page(session, "nan-outptu", [], str(tmp_path / "log"))
    assert list(tmp_path.iterdir()) == []
