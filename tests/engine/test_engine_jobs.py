"""Durable jobs: followed, attached to, ended by their limit; truth is in files."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from runbooks import paths
from runbooks.engine import follow, jobs
from runbooks.engine.errors import StepFailed
from runbooks.engine.follow import list_jobs
from runbooks.engine.jobs import run_job
from runbooks.engine.lock import Busy, held
from runbooks.engine.report import Reporter
from runbooks.engine.secret import Secret
from runbooks.engine.transport import Connection
from tests.recorder import Recorder

pytestmark = pytest.mark.served


def _folders() -> list[Path]:
    return sorted(Path(paths.JOBS).glob("*-*"))


def test_a_job_is_followed_to_its_exit_code(local: Connection) -> None:
    lines: list[str] = []
    result = run_job(
        local, "talk", "echo one; echo two >&2; printf three; exit 5", limit=20, report=Reporter(Recorder()),
        on_line=lines.append,
    )  # fmt: skip
    assert (result.rc, lines) == (5, ["one", "two", "three"])
    folder = Path(result.folder)
    assert (folder / "rc").read_text().strip() == "5"
    assert (folder / "log").read_text() == "one\ntwo\nthree"
    assert not (folder / "script").exists()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_the_script_stops_at_the_first_failure(local: Connection) -> None:
    result = run_job(local, "stop", "echo a\nfalse\necho b", limit=20, report=Reporter(Recorder()))
    assert (result.rc, result.tail) == (1, ("a",))


def test_a_secret_reaches_the_job_as_a_private_file_and_goes_with_it(local: Connection) -> None:
    lines: list[str] = []
    script = 'stat -c %a "$UPLOADS/key"; wc -c <"$UPLOADS/key"'
    result = run_job(
        local, "secret", script, limit=20, report=Reporter(Recorder()), uploads={"key": Secret("s3cret-value")},
        on_line=lines.append,
    )  # fmt: skip
    assert (result.rc, lines) == (0, ["600", "12"])
    assert not any(b"s3cret-value" in file.read_bytes() for file in Path(result.folder).rglob("*") if file.is_file())


def test_the_same_job_attaches_and_runs_once(local: Connection, tmp_path: Path) -> None:
    script = f"echo ran >>{tmp_path}/count; sleep 1; echo done"
    second = type(local)(local.target)
    found: dict[str, int] = {}
    first = threading.Thread(
        target=lambda: found.update(a=run_job(local, "once", script, limit=20, report=Reporter(Recorder())).rc)
    )
    first.start()
    while not (tmp_path / "count").exists():
        time.sleep(0.05)
    recorder = Recorder()
    found["b"] = run_job(second, "once", script, limit=20, report=Reporter(recorder)).rc
    first.join()
    second.close()
    assert found == {"a": 0, "b": 0}
    assert (tmp_path / "count").read_text() == "ran\n"
    assert any("attached" in event.text for event in recorder.events)


def test_a_launch_that_comes_late_starts_nothing_twice(
    local: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its controller died in the middle of it, and the next one was faster than the launcher."""
    script = f"mkdir {tmp_path}/alone && echo ran >>{tmp_path}/count && sleep 1 && rmdir {tmp_path}/alone"
    dead = type(local)(local.target)
    launch = jobs._LAUNCH
    for late in ("0.3", "1.0"):  # while the other is at work, and when it has ended
        monkeypatch.setattr(jobs, "_LAUNCH", launch.replace("setsid sh", f"sleep {late} && setsid sh"))
        label = f"late-{jobs._content_hash(script, {})}"
        assert jobs._create(dead, label, script, {"name": "late", "changes": True}) == "created"
        jobs._launch(dead, "late", label, 20, changes=True, run="")
        assert [job.state for job in list_jobs(local)] == ["running"]
        monkeypatch.setattr(jobs, "_LAUNCH", launch)
        assert run_job(local, "late", script, limit=20, report=Reporter(Recorder())).rc == 0
        time.sleep(1)
        assert (tmp_path / "count").read_text() == "ran\n"
        (tmp_path / "count").unlink()
    dead.close()


def test_a_launch_whose_lock_is_gone_starts_nothing(local: Connection, tmp_path: Path) -> None:
    """What a dead controller sent arrives after another run took its lock over."""
    with held(local, "theirs", "test"), pytest.raises(Busy, match="holds the host no more") as failed:
        run_job(local, "mine", f"touch {tmp_path}/ran", limit=20, report=Reporter(Recorder()), changes=True, run="mine")
    assert "the lock of this run is gone" in str(failed.value)
    time.sleep(0.3)
    assert not (tmp_path / "ran").exists()


def test_a_job_that_ended_is_not_taken_for_a_new_one(local: Connection, tmp_path: Path) -> None:
    script = f"echo ran >>{tmp_path}/count"
    for _ in range(2):
        assert run_job(local, "again", script, limit=20, report=Reporter(Recorder())).rc == 0
    assert (tmp_path / "count").read_text() == "ran\nran\n"


def test_a_job_past_its_limit_is_killed_with_its_children(local: Connection, tmp_path: Path) -> None:
    script = f"(sleep 40; echo late >{tmp_path}/late) & echo $! >{tmp_path}/pid; wait"
    result = run_job(local, "slow", script, limit=1, report=Reporter(Recorder()))
    assert result.rc == 124
    assert "1 s are over" in result.tail[-1]
    status = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/status")
    assert not status.exists() or "State:\tZ" in status.read_text()  # gone, or dead and not yet collected


def test_a_job_outlives_the_controller(local: Connection, tmp_path: Path) -> None:
    """The connection goes away in the middle; the follower comes back and reads on from its offset."""
    lines: list[str] = []

    def cut(line: str) -> None:
        lines.append(line)
        if line == "first":
            local.close()

    result = run_job(
        local, "cut", "echo first; sleep 0.5; echo last", limit=20, report=Reporter(Recorder()), on_line=cut
    )
    assert (result.rc, lines) == (0, ["first", "last"])


def test_a_killed_supervisor_is_noticed(local: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "IDLE_LIMIT", 0.5)

    def kill(line: str) -> None:
        if line.startswith("here"):
            local.ask("kill -9 " + line.split()[1])

    with pytest.raises(StepFailed, match="killed before it ended"):
        run_job(
            local, "killed", "echo here $(ps -o ppid= -p $PPID)\nsleep 3", limit=20, report=Reporter(Recorder()),
            on_line=kill,
        )  # fmt: skip


def _alive(pid_file: Path) -> bool:
    status = Path(f"/proc/{pid_file.read_text().strip()}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


def test_a_limit_ends_what_left_the_session_too(local: Connection, tmp_path: Path) -> None:
    script = f"setsid sh -c 'trap \"\" TERM; echo $$ >{tmp_path}/pid; sleep 60; :' & sleep 60"
    result = run_job(local, "escape", script, limit=1, report=Reporter(Recorder()))
    assert result.rc == 124
    assert not _alive(tmp_path / "pid")


def test_a_daemon_outlives_a_job_that_ended_well(local: Connection, tmp_path: Path) -> None:
    script = f"setsid sleep 60 >/dev/null 2>&1 & echo $! >{tmp_path}/pid"
    assert run_job(local, "daemon", script, limit=20, report=Reporter(Recorder())).rc == 0
    assert _alive(tmp_path / "pid")
    local.ask(f"kill $(cat {tmp_path}/pid)")


def test_a_kill_from_outside_is_not_called_a_limit(local: Connection) -> None:
    """As the kernel does when memory runs out."""
    result = run_job(local, "oom", "kill -9 $$", limit=20, report=Reporter(Recorder()))
    assert result.rc == 137
    assert not any("s are over" in line for line in result.tail)


def test_a_cancelled_job_ends_with_all_it_started(local: Connection, tmp_path: Path) -> None:
    second = type(local)(local.target)

    def cancel(line: str) -> None:
        if line == "here":
            label = follow.list_jobs(second)[-1].label
            assert follow.cancel(second, label) == "cancelled"
            assert follow.cancel(second, label) == "ended"

    script = f"setsid sleep 60 & echo $! >{tmp_path}/pid; echo here; sleep 60"
    result = run_job(local, "long", script, limit=60, report=Reporter(Recorder()), on_line=cancel)
    second.close()
    assert (result.rc, result.tail[-1]) == (143, "cancelled")
    assert not _alive(tmp_path / "pid")


def test_a_job_can_be_asked_to_stop_between_two_steps(local: Connection) -> None:
    lines: list[str] = []
    script = 'for i in 1 2 3 4 5 6 7 8 9; do [ ! -e "$JOB/stop" ] || exit 79; echo $i; sleep 0.5; done'
    result = run_job(
        local, "gentle", script, limit=20, report=Reporter(Recorder()), on_line=lines.append,
        stopping=lambda: "2" in lines,
    )  # fmt: skip
    assert result.rc == 79
    assert 2 <= len(lines) < 9


def test_the_list_tells_how_each_job_stands(local: Connection) -> None:
    assert follow.list_jobs(local) == []
    run_job(local, "good", "echo fine", limit=20, report=Reporter(Recorder()))
    run_job(local, "bad", "echo 'é \"x\"'; exit 3", limit=20, report=Reporter(Recorder()), changes=True)
    good, bad = sorted(follow.list_jobs(local), key=lambda job: job.name, reverse=True)
    assert (good.state, good.tail, good.changes) == ("0", ("fine",), False)
    assert (bad.state, bad.tail, bad.changes) == ("3", ('é "x"',), True)


LOCKED = 'flock -n "$job/lock" true'
BETWEEN = {
    "it comes up": (f"{{{{ {LOCKED} && sleep 1; }}}}", "sleep 0.4 && setsid sh", "sleep 3", "running"),
    "it ends": (f"{{{{ sleep 4; {LOCKED}; }}}}", "setsid sh", "sleep 0.5", "0"),
}


@pytest.mark.parametrize(("look", "launch", "script", "state"), BETWEEN.values(), ids=BETWEEN)
def test_a_job_that_comes_up_or_ends_between_two_looks_is_not_called_killed(
    local: Connection, monkeypatch: pytest.MonkeyPatch, look: str, launch: str, script: str, state: str
) -> None:
    assert LOCKED in follow._LIST
    monkeypatch.setattr(follow, "_LIST", follow._LIST.replace(LOCKED, look))
    monkeypatch.setattr(jobs, "_LAUNCH", jobs._LAUNCH.replace("setsid sh", launch))
    label = f"between-{jobs._content_hash(script, {})}"
    assert jobs._create(local, label, script, {"name": "between", "changes": True}) == "created"
    assert [job.state for job in list_jobs(local)] == ["running"]  # made, and about to be launched
    jobs._launch(local, "between", label, 20, changes=True, run="")
    if state == "0":  # a look before it has come up at all would rightly say that it runs
        local.ask(f"until [ -e {paths.JOBS}/{label}/pid ]; do sleep 0.02; done", deadline=20)
    assert [job.state for job in list_jobs(local)] == [state]
    local.ask(f"flock {paths.JOBS}/{label}/lock true", deadline=20)


def test_a_job_that_was_made_and_never_launched_is_dead_after_a_while(local: Connection) -> None:
    label = f"never-{jobs._content_hash(':', {})}"
    assert jobs._create(local, label, ":", {"name": "never", "changes": True}) == "created"
    local.ask(f"touch -d '1 minute ago' {paths.JOBS}/{label}/boot_id")
    assert [job.state for job in list_jobs(local)] == ["killed"]


def test_a_jobs_times_are_the_hosts_own(local: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller whose clock is a year behind does not make a job of seconds one of a year."""
    with monkeypatch.context() as behind:
        behind.setattr(time, "time", lambda: 1_700_000_000.0)
        run_job(local, "skewed", "sleep 0.1", limit=20, report=Reporter(Recorder()))
    (job,) = follow.list_jobs(local)
    assert 0 <= job.ended - job.since < 20
    assert abs(job.ended - time.time()) < 20


def test_the_log_is_bounded_and_the_follower_sees_the_end(local: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "LOG_LIMIT", 2_000_000)
    lines: list[str] = []
    script = "i=0; while [ $i -lt 8 ]; do head -c 1000000 /dev/zero | tr '\\0' 'x'; echo; i=$((i + 1)); sleep 0.4; done"
    result = run_job(local, "loud", f"{script}; echo end", limit=30, report=Reporter(Recorder()), on_line=lines.append)
    assert (result.rc, lines[-1]) == (0, "end")
    assert (Path(result.folder) / "log").stat().st_size < 5_000_000
