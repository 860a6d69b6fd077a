"""A rollback from its first look to its end: it has to pass the gate as a new release has."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from dataclasses import replace

import pytest

from runbooks.canary import CanaryResult
from runbooks.deploy import back, gate, rollback_hosts
from runbooks.deploy.flow import deploy
from runbooks.engine.errors import NotWritten, RunbookError, UsageError
from runbooks.session import Session
from tests.deploy.deploy_fake import FakeHost, silent
from tests.deploy.test_deploy_flow import HOST, LOADED, OLD, canary_says, fake, looks, steps
from tests.deploy.test_deploy_releases import GOOD


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "POLL", 0.0)
    monkeypatch.setattr(gate, "COMES_BACK", 0.0)
    canary_says(monkeypatch, "healthy")


def _roll_back(host: FakeHost, monkeypatch: pytest.MonkeyPatch, to: int | None = None) -> tuple[int, list[str]]:
    report, events = silent()
    session = Session(LOADED, [HOST], report, True)
    monkeypatch.setattr(session, "connect", lambda _name: nullcontext(host.conn))
    return rollback_hosts(session, to), [event.text for event in events if event.kind == "result"]


SECOND = replace(GOOD, number=2, content="1" * 12)


def test_a_rollback_has_to_pass_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    host = fake(looks(OLD, SECOND, current=2))
    code, said = _roll_back(host, monkeypatch)
    assert (code, steps(host)) == (0, ["switch 1", "restart --no-block"])
    assert said[-1].startswith("release 1 (profile baseline) serves again after")


@pytest.mark.parametrize(
    ("its", "serving", "said"),
    [(450.0, 60.0, "about 8 min"), (None, 125.0, "about 2 min"), (40.0, 600.0, "about a minute"), (None, None, "some")],
)
def test_the_question_names_what_comes_and_the_time_that_is_known(
    monkeypatch: pytest.MonkeyPatch, its: float | None, serving: float | None, said: str
) -> None:
    host = fake(looks(replace(OLD, ready_seconds=its), replace(SECOND, ready_seconds=serving), current=2))
    asked: list[str] = []
    monkeypatch.setattr(Session, "consent", lambda _self, question: asked.append(question))
    with pytest.raises(UsageError, match="nothing was touched"):
        _roll_back(host, monkeypatch)
    assert f"serves release 2; it goes down for {said}" in asked[0]
    assert "until release 1 (profile baseline) serves (requests now: 3 running, 1 waiting)" in asked[0]


def test_a_rollback_that_speaks_nonsense_goes_forth_again(monkeypatch: pytest.MonkeyPatch) -> None:
    canary_says(monkeypatch, "nan")
    host = fake(looks(OLD, SECOND, current=2))
    with pytest.raises(RunbookError, match="the gate canary says nan") as failed:
        _roll_back(host, monkeypatch)
    assert steps(host) == ["switch 1", "restart --no-block", "switch 2", "restart --no-block"]
    left = json.loads(host.put_files["/opt/runbooks/releases/1/release.json"])
    assert left["verdict"] == "promoted", "what was good keeps its verdict"
    assert re.fullmatch(r"did not come back \S+: it answers, but the gate canary says nan", left["reason"])
    assert "release 2, which served before, serves again" in str(failed.value)


def test_a_way_back_to_what_never_was_promoted_is_judged_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    canary_says(monkeypatch, "nan")
    host = fake(looks(replace(OLD, verdict=None), SECOND, current=2))
    with pytest.raises(RunbookError, match="the gate canary says nan"):
        _roll_back(host, monkeypatch, 1)
    assert json.loads(host.put_files["/opt/runbooks/releases/1/release.json"])["verdict"] == "failed"


def test_one_that_came_back_after_all_has_nothing_said_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    host = fake(looks(replace(OLD, reason="did not come back"), SECOND, current=2))
    assert _roll_back(host, monkeypatch)[0] == 0
    left = json.loads(host.put_files["/opt/runbooks/releases/1/release.json"])
    assert (left["verdict"], left["reason"]) == ("promoted", None)


def test_a_rollback_to_no_release_touches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    host = fake(looks(OLD))
    with pytest.raises(UsageError, match="there is no release 9; there are: 1"):
        _roll_back(host, monkeypatch, 9)
    with pytest.raises(RunbookError, match="no earlier release that worked") as none:
        _roll_back(host, monkeypatch)
    assert list(none.value.details) == ["release 1 (profile baseline) is in use"]
    assert steps(host) == []


def test_after_a_deploy_that_went_back_by_itself_there_may_be_nothing_before(monkeypatch: pytest.MonkeyPatch) -> None:
    host = fake(looks(OLD, replace(SECOND, verdict="failed"), current=1))
    with pytest.raises(RunbookError, match="no earlier release that worked") as none:
        _roll_back(host, monkeypatch)
    assert list(none.value.details) == ["release 1 (profile baseline) is in use; release 2 was taken back already"]


def test_a_server_on_two_hosts_is_rolled_back_on_both_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    host = fake(looks(replace(OLD, hosts=(HOST, "second")), SECOND, current=2))
    with pytest.raises(UsageError, match="second is not chosen") as refused:
        _roll_back(host, monkeypatch)
    assert refused.value.next == f"invoke rollback --hosts {HOST} --hosts second"
    assert steps(host) == []


@pytest.mark.parametrize("fresh", [False, True], ids=["of a rollback", "of a deploy"])
def test_a_canary_that_cannot_be_written_is_no_verdict(monkeypatch: pytest.MonkeyPatch, fresh: bool) -> None:
    """A full disk: the plain completion counts, and the trouble is said."""

    def full(*_args: object, **_more: object) -> CanaryResult:
        raise NotWritten("the job canary-1 could not be created", details=["No space left on device"])

    monkeypatch.setattr(back, "run_canary", full)
    report, events = silent()
    host = fake(looks(OLD) if fresh else looks(OLD, SECOND, current=2))
    if fresh:
        done = deploy([host.conn], LOADED, "final", report=report, consent=lambda _question: True)
        assert (done.verdict, done.release) == ("promoted", 2)
    else:
        session = Session(LOADED, [HOST], report, True)
        monkeypatch.setattr(session, "connect", lambda _name: nullcontext(host.conn))
        assert rollback_hosts(session, None) == 0
        assert steps(host) == ["switch 1", "restart --no-block"]
    said = [event.text for event in events if "could not be asked" in event.text]
    assert said[0] == (
        "the gate canary could not be asked (the job canary-1 could not be created; No space left on device): "
        "it completes a plain request, and that counts"
    )
