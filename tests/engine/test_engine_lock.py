"""The lock: taken over from a dead holder of this machine, never from a living one; waited for when asked."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from runbooks import paths
from runbooks.engine import lock
from runbooks.engine.errors import Unreachable
from runbooks.engine.transport import Connection


def _hold(change: dict[str, object]) -> None:
    folder = Path(paths.LOCK)
    holder = {"who": "ann@desk", "pid": os.getpid(), "what": "provision", "since": 0, "run": "theirs"}
    folder.mkdir()
    (folder / "run").write_text("theirs")
    (folder / "holder").write_text(json.dumps({**holder, "place": lock._place(), **change}))


def _dead() -> int:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    return gone.pid


@pytest.mark.parametrize(
    ("change", "taken"),
    [
        ({}, False),  # alive, here
        ({"pid": -1}, True),  # dead, here (the test puts a dead process's number in)
        ({"place": f"{lock._place().split()[0]} 12345"}, True),  # the number lives on as another process
        ({"pid": -1, "place": "elsewhere 1"}, False),  # on another machine, nobody can tell
        ({"pid": -1, "place": ""}, False),
    ],
)
def test_a_dead_holder_of_this_machine_loses_the_lock(
    local: Connection, change: dict[str, object], taken: bool
) -> None:
    _hold({**change, "pid": _dead()} if change.get("pid") == -1 else change)
    if taken:
        assert lock.take(local, "mine", "provision") is True
        assert (Path(paths.LOCK) / "run").read_text() == "mine"
    else:
        with pytest.raises(lock.Busy, match="another run is changing") as caught:
            lock.take(local, "mine", "provision")
        assert "ann@desk" in str(caught.value)
        assert (Path(paths.LOCK) / "run").read_text() == "theirs"


def test_an_expired_lock_is_taken(local: Connection) -> None:
    _hold({"place": "elsewhere 1"})
    os.utime(paths.LOCK, (0, 0))
    assert lock.take(local, "mine", "provision") is False


def test_a_run_that_waits_gets_the_lock_when_it_is_free(local: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "WAIT_STEP", 0.01)
    _hold({})
    asked: list[str] = []

    def waiting(busy: lock.Busy) -> bool:
        asked.append(busy.details[0])
        if len(asked) == 3:
            lock.force_release(local)
        return True

    assert lock.take(local, "mine", "provision", waiting=waiting) is True
    assert len(asked) == 3
    assert "ann@desk" in asked[0]


def test_a_free_lock_is_one_exchange_and_ours_stays_ours(local: Connection) -> None:
    before = local.exchanges
    assert lock.take(local, "mine", "provision") is False
    assert local.exchanges == before + 1
    assert lock.take(local, "mine", "provision") is False
    lock.release(local, "another")
    assert Path(paths.LOCK).exists()
    lock.release(local, "mine")
    assert not Path(paths.LOCK).exists()


def test_a_holder_in_any_alphabet(local: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kamal's lock broke on a committer's Cyrillic name."""
    monkeypatch.setattr(lock, "who", lambda: 'Ольга O\'Hara "x"@хост')
    lock.take(local, "theirs", "provision")
    with pytest.raises(lock.Busy, match="Ольга O'Hara"):
        lock.take(local, "mine", "provision")


def test_a_lock_that_could_not_be_given_back_is_taken_over_by_the_same_process(local: Connection) -> None:
    """`invoke tune` runs for hours; a link that breaks at the end of one trial must not stop the next."""
    assert lock.take(local, "first", "tune") is False
    gone = Connection(dataclasses.replace(local.target, port=1))
    with pytest.raises(Unreachable):
        lock.release(gone, "first")
    assert lock.take(local, "second", "tune") is True
    with pytest.raises(lock.Busy):
        lock.take(local, "third", "tune")


def test_a_lock_whose_answer_was_lost_is_taken_over_by_the_same_process(
    local: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(script: str, *, deadline: float) -> NoReturn:
        type(local).ask(local, script, deadline=deadline)
        raise Unreachable("the connection was lost")

    with monkeypatch.context() as patch:
        patch.setattr(local, "ask", ask)
        with pytest.raises(Unreachable):
            lock.take(local, "first", "provision")
    assert (Path(paths.LOCK) / "run").read_text() == "first"
    assert lock.take(local, "second", "provision") is True
