"""Long work and locks, as `invoke jobs`, `invoke unlock` and `invoke audit` tell of them and end them."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from runbooks import jobs, paths
from runbooks.audit import tell_changes, unlock_hosts
from runbooks.engine import follow, lock
from runbooks.engine.errors import UsageError
from runbooks.engine.follow import Job, JobResult
from runbooks.engine.jobs import run_job
from runbooks.engine.report import Reporter
from runbooks.engine.transport import Connection, Target
from runbooks.inventory import load
from runbooks.session import Session
from tests.engine.conftest import LocalConnection
from tests.recorder import Recorder

pytestmark = pytest.mark.served

LOADED = load(Path(__file__).parents[2] / "inventory.yaml")
LIKE = next(iter(LOADED.inventory.hosts.values()))


def here(tmp_path: Path) -> Connection:
    return LocalConnection(Target(name="here", address="127.0.0.1", known_hosts=tmp_path / "known_hosts"))


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorder: Recorder) -> Iterator[Session]:
    """One host, which is this machine; its state lies below tmp_path."""
    for name in ("JOBS", "LOCK", "AUDIT"):
        monkeypatch.setattr(paths, name, str(tmp_path / name.lower()))
    monkeypatch.setattr(Session, "connect", lambda self, name: here(tmp_path))
    inventory = msgspec.structs.replace(LOADED.inventory, hosts={"here": LIKE})
    with Session(replace(LOADED, inventory=inventory), ["here"], Reporter(recorder), True) as found:
        yield found


def told(recorder: Recorder) -> str:
    text = json.dumps([{"text": event.text, **event.data} for event in recorder.events], ensure_ascii=False)
    recorder.events.clear()
    return text


def test_a_job_is_listed_followed_ended_and_told_of(session: Session, recorder: Recorder, tmp_path: Path) -> None:
    ended: list[int] = []

    def work() -> None:
        script = "for i in $(seq 200); do echo line $i; sleep 0.1; done"
        with here(tmp_path) as connection:
            ended.append(run_job(connection, "long", script, limit=60, report=Reporter(Recorder())).rc)

    thread = threading.Thread(target=work)
    thread.start()
    deadline = time.monotonic() + 20
    while not re.search(r"line \d", said := told(recorder)):  # cancelled sooner, it would have said nothing yet
        assert time.monotonic() < deadline, said
        jobs.list_jobs(session)
    assert "long-" in said
    assert "at work" in said
    assert jobs.tell_result(session, "long") == 0  # no failure: it is at work
    assert jobs.cancel_job(session, "") == 0  # the one that is at work
    thread.join(20)
    assert ended == [143]
    told(recorder)
    assert jobs.tell_result(session, "long") == 1
    said = told(recorder)
    assert "cancelled" in said
    assert "line 1" in said
    assert jobs.follow_job(session, "long") == 1
    assert "line 1" in told(recorder)
    with pytest.raises(UsageError, match="there is no job 'lnog'"):
        jobs.follow_job(session, "lnog")
    with pytest.raises(UsageError, match="there is no job at work"):
        jobs.cancel_job(session, "")


def test_what_ended_elsewhere_is_not_followed_nor_cancelled_beside_what_is_at_work(
    session: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`jobs.follow base` on a fleet: the log of last week's on every other host would drown the one."""
    states = {"a": "0", "b": "running", "c": "143"}
    done: list[str] = []

    def connect(_session: Session, name: str) -> Connection:
        return LocalConnection(Target(name=name, address="127.0.0.1", known_hosts=tmp_path / "known_hosts"))

    def one(connection: Connection, *_label: str, **_options: object) -> JobResult:
        done.append(connection.name)
        return JobResult(0, (), 1.0, "/x")

    def listed(connection: Connection) -> list[Job]:
        told = {"name": "base", "who": "ann", "changes": True, "since": 0.0, "ended": 1.0, "tail": ()}
        return [Job(label="base-1", state=states[connection.name], **told)]  # type: ignore[arg-type]

    monkeypatch.setattr(Session, "connect", connect)
    monkeypatch.setattr(follow, "list_jobs", listed)
    monkeypatch.setattr(follow, "follow", one)
    monkeypatch.setattr(follow, "cancel", one)
    for command in (jobs.follow_job, jobs.cancel_job):
        session.hosts = ["a", "b", "c"]
        assert command(session, "base") == 0
    assert done == ["b", "b"]
    session.hosts, states["b"] = ["a", "b", "c"], "0"
    jobs.follow_job(session, "base")
    assert sorted(done[2:]) == ["a", "b", "c"]


def test_what_people_stopped_is_no_failure_and_what_had_ended_is_not_ended_again(
    session: Session, recorder: Recorder, tmp_path: Path
) -> None:
    for name, rc, word in (
        ("halted", 79, "stopped as asked"),
        ("bench", 130, "interrupted"),
        ("cut", 143, "cancelled"),
    ):
        with here(tmp_path) as connection:
            run_job(connection, name, f"exit {rc}", limit=20, report=Reporter(Recorder()))
        jobs.tell_result(session, name)
        (event,) = [event for event in recorder.events if event.kind == "result"]
        assert (event.text.endswith(f": {word}"), event.data) == (True, {"level": "warning", "rc": str(rc)})
        recorder.events.clear()
        jobs.list_jobs(session)
        assert "failed" not in told(recorder)
        assert jobs.cancel_job(session, name) == 0
        (event,) = [event for event in recorder.events if event.kind == "result"]
        assert event.text.endswith(f": had ended before ({word})")
        recorder.events.clear()


@pytest.mark.parametrize(("count", "said"), [(10, "jobs:"), (11, "jobs (10 of 11; `invoke jobs` lists all):")])
def test_a_name_that_no_job_has_is_told_of_how_many_there_are(
    session: Session, monkeypatch: pytest.MonkeyPatch, count: int, said: str
) -> None:
    told = {"name": "base", "who": "ann", "changes": True, "since": 0.0, "ended": 1.0, "tail": (), "state": "0"}
    many = [Job(label=f"base-{n:02}", **told) for n in range(count)]  # type: ignore[arg-type]
    monkeypatch.setattr(follow, "list_jobs", lambda _connection: many)
    with pytest.raises(UsageError) as caught:
        jobs.cancel_job(session, "nope")
    assert caught.value.details[0] == said
    assert len(caught.value.details) == 11


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ('[ ! -e "$JOB/x" ] || exit 1; exit 79', ": stopped as asked"),
        ("exit 3", "failed with exit code 3"),
        ("true", "done"),
    ],
)
def test_how_a_job_ended_is_said_in_words(
    session: Session, recorder: Recorder, tmp_path: Path, script: str, said: str
) -> None:
    with here(tmp_path) as connection:
        run_job(connection, "ends", script, limit=20, report=Reporter(Recorder()))
    jobs.tell_result(session, "ends")
    assert said in told(recorder)


@pytest.mark.parametrize(
    ("change", "life"),
    [
        ({}, "that run is alive"),
        ({"place": "elsewhere 1"}, "whether that run is alive cannot be told from here"),
        ({"place": f"{lock._place().split()[0]} 12345"}, ""),  # dead: the number lives on as another process
        ({"place": "elsewhere 1", "expired": True}, ""),
    ],
)
def test_a_run_that_may_be_alive_keeps_its_lock(
    session: Session, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    change: dict[str, object], life: str,
) -> None:  # fmt: skip
    """--yes is refused, with what to do; a person is told in the question; --force is the way around."""
    folder = Path(paths.LOCK)
    asked: list[str] = []

    def asks(_session: Session, question: str) -> bool:
        asked.append(question)
        return False

    def hold() -> None:
        with here(tmp_path) as connection:
            lock.take(connection, "theirs", "provision")
        holder = json.loads((folder / "holder").read_text())
        (folder / "holder").write_text(json.dumps(holder | change))
        if change.get("expired"):
            os.utime(folder, (0, 0))

    hold()
    session.yes = True
    assert unlock_hosts(session) == int(bool(life))
    said = told(recorder)
    assert folder.exists() is bool(life)
    if life:
        assert f"the lock stays: {life}" in said
        assert all(word in said for word in ("--wait", "Ctrl-C", "invoke unlock --hosts here --yes --force"))
        assert unlock_hosts(session, force=True) == 0
        assert not folder.exists()
    hold()
    session.yes = False
    monkeypatch.setattr(Session, "consent", asks)
    assert unlock_hosts(session) == 0
    (question,) = asked
    assert (life in question.replace("That", "that").replace("Whether", "whether"), folder.exists()) == (True, True)
    assert ("spoil" in question) is bool(life)


def test_a_lock_is_taken_away_and_its_holder_named(
    session: Session, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with here(tmp_path) as connection:
        lock.take(connection, "theirs", "provision")
        assert unlock_hosts(session, force=True) == 0
        said = told(recorder)
        assert f"(pid {os.getpid()})" in said
        assert ": provision" in said
        assert not Path(paths.LOCK).exists()
        assert unlock_hosts(session) == 0
        assert "not locked" in told(recorder)
        connection.ask(lock.audit_script("provision", "file /etc/x", ("mode 0644 -> 0600",)))
        connection.ask(lock.audit_script("deploy", "release 2", ("promoted",)))
    assert tell_changes(session, 5) == 0
    said = told(recorder)
    assert "mode 0644 -> 0600" in said
    assert "earlier" not in said
    assert tell_changes(session, 1) == 0
    said = told(recorder)
    assert "mode 0644" not in said
    assert "1 earlier: --lines 2" in said
