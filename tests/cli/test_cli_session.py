"""Which hosts are logged in to while the command itself is still being loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from runbooks.engine.errors import RunbookError, UsageError
from runbooks.engine.fleet import NotStarted, Outcome, Rollout
from runbooks.engine.report import Reporter
from runbooks.engine.transport import Connection
from runbooks.inventory import load
from runbooks.session import Session
from tests.recorder import Recorder

LOADED = load(Path(__file__).parents[2] / "inventory.yaml")
LIKE = next(iter(LOADED.inventory.hosts.values()))
HOSTS = {
    "plain": msgspec.structs.replace(LIKE, vm=None, sudo="auto", proxy_jump=None),
    "asks": msgspec.structs.replace(LIKE, vm=None, sudo="password"),  # a person, perhaps
    "behind": msgspec.structs.replace(LIKE, vm=None, proxy_jump="jump"),  # whose sshd drops some of a burst
    "other": msgspec.structs.replace(LIKE, vm=None, sudo="auto", proxy_jump=None),
}


@pytest.mark.parametrize(
    ("rollout", "begun"),
    [
        (Rollout(), ["plain", "other"]),
        (Rollout(serial="2"), ["plain"]),  # the others at their turn
        (Rollout(parallel=1), ["plain"]),
    ],
)
def test_who_is_begun_with(rollout: Rollout, begun: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    closed: list[str] = []
    monkeypatch.setattr(Connection, "begin", lambda self: names.append(self.name))
    monkeypatch.setattr(Connection, "close", lambda self: closed.append(self.name))
    inventory = msgspec.structs.replace(LOADED.inventory, hosts=HOSTS)
    with Session(replace(LOADED, inventory=inventory), list(HOSTS), Reporter(Recorder()), rollout=rollout) as session:
        session.begin()
        assert names == begun
        with session.connect("plain") as first, session.connect("plain") as second:
            assert first is not second  # what was begun is used once
        assert closed == ["plain", "plain"]
    assert closed[2:] == begun[1:]  # and what nobody used is closed


def test_what_meets_hosts_can_be_read_by_people_and_by_programs() -> None:
    import tasks

    names = {name: {one.name for one in tasks.namespace[name].get_arguments()} for name in tasks.namespace.task_names}
    asked = {name for name, options in names.items() if {"hosts", "inventory"} <= options} - {
        "vm.console"
    }  # a terminal
    assert len(asked) > 15
    assert [name for name in sorted(asked) if not {"json", "plain"} <= names[name]] == []


def test_the_cause_is_told_before_what_it_left_undone_and_a_failure_is_more_than_a_mistake() -> None:
    said = Recorder()
    session = Session(LOADED, [], Reporter(said))
    outcomes: list[Outcome[None]] = [
        Outcome("a", None, NotStarted("not started: 1 host failed before", host="a")),
        Outcome("b", None, RunbookError("no route", host="b")),
        Outcome("c", None, UsageError("no such key", host="c")),
    ]
    assert session.tell_errors(outcomes) == 1
    told = [(event.host, event.data["state"]) for event in said.events]
    assert told == [("b", "failed"), ("c", "failed"), ("a", "left-out")]
    assert (session.tell_errors(outcomes[2:]), session.tell_errors([])) == (2, 0)
