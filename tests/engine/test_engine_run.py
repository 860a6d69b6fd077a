"""The runner: facts, one look, a job a stage, and a second look that has the last word. Real scripts, a local sh."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from runbooks import paths
from runbooks.engine import lock, look
from runbooks.engine.apply import Stopped
from runbooks.engine.errors import CheckFailed, StepFailed, Unreachable
from runbooks.engine.facts import Facts
from runbooks.engine.jobs import run_job
from runbooks.engine.report import Event, Reporter
from runbooks.engine.run import HostResult, Options, converge
from runbooks.engine.step import Answers, Change, Diff, Question, Stage, Verdict, quote, shell
from runbooks.engine.transport import Connection
from tests.recorder import Recorder


@dataclass(frozen=True, kw_only=True)
class Text:
    """A file with one line of text; `script` replaces the command that would write it."""

    path: str
    text: str
    script: str = ""

    @property
    def id(self) -> str:
        return f"text {Path(self.path).name}"

    def questions(self) -> tuple[Question, ...]:
        return (shell(f"cat {quote(self.path)} 2>/dev/null || :"),)

    def plan(self, answers: Answers) -> Change | None:
        actual = answers[self.questions()[0]]["out"]
        if actual == self.text:
            return None
        script = self.script or f"printf '%s\\n' {quote(self.text)} >{quote(self.path)}"
        return Change(script=script, diff=(Diff(f"{actual!r} -> {self.text!r}"),), limit=20)


@dataclass(frozen=True, kw_only=True)
class Exists:
    path: str

    @property
    def id(self) -> str:
        return f"exists {Path(self.path).name}"

    def questions(self) -> tuple[Question, ...]:
        return (shell(f"test -e {quote(self.path)}"),)

    def plan(self, answers: Answers) -> Verdict:
        return Verdict(ok=answers[self.questions()[0]]["rc"] == 0, line="is not there")


def _run(local: Connection, *stages: Stage, recorder: Recorder | None = None, **options: object) -> HostResult:
    def build(_facts: Facts) -> Sequence[Stage]:
        return stages

    return converge(
        local, build, options=Options(**options), report=Reporter(recorder or Recorder())  # type: ignore[arg-type]
    )  # fmt: skip


def test_sixty_converged_steps_cost_one_exec_and_two_exchanges_and_no_lock(local: Connection, tmp_path: Path) -> None:
    steps = tuple(Text(path=f"{tmp_path}/{n}", text=f"line {n}") for n in range(60))
    for step in steps:
        Path(step.path).write_text(step.text + "\n")
    result = _run(local, Stage("one", steps[:30]), Stage("two", steps[30:]))
    assert (result.unchanged, result.changed, result.failed) == (60, 0, [])
    assert (local.execs, local.exchanges) == (1, 2)
    assert not Path(paths.LOCK).exists()
    assert not Path(paths.JOBS).exists()


def test_changes_are_applied_verified_audited_and_unlocked(local: Connection, tmp_path: Path) -> None:
    stages = (
        Stage("first", (Text(path=f"{tmp_path}/a", text="A"), Text(path=f"{tmp_path}/b", text="B"))),
        Stage("second", (Exists(path=f"{tmp_path}/b"), Text(path=f"{tmp_path}/c", text="C"))),
    )
    result = _run(local, *stages)
    assert (result.changed, result.unchanged, result.failed) == (3, 1, [])
    assert [(tmp_path / name).read_text() for name in "abc"] == ["A\n", "B\n", "C\n"]
    audit = [json.loads(line) for line in Path(paths.AUDIT).read_text().splitlines()]
    assert [(entry["step"], entry["changes"]) for entry in audit] == [
        ("text a", ["'' -> 'A'"]),
        ("text b", ["'' -> 'B'"]),
        ("text c", ["'' -> 'C'"]),
    ]
    assert not Path(paths.LOCK).exists()
    assert _run(local, *stages).changed == 0


def test_a_step_that_does_not_take_is_a_failure_and_later_stages_do_not_run(local: Connection, tmp_path: Path) -> None:
    stages = (
        Stage("liar", (Text(path=f"{tmp_path}/a", text="A", script="echo pretended"),)),
        Stage("later", (Text(path=f"{tmp_path}/b", text="B"),)),
    )
    result = _run(local, *stages)
    assert "second look still wants a change" in str(result.failed[0])
    assert not (tmp_path / "b").exists()
    assert not Path(paths.LOCK).exists()


def test_a_failing_step_names_itself_its_exit_code_and_its_last_lines(local: Connection, tmp_path: Path) -> None:
    broken = Text(path=f"{tmp_path}/b", text="B", script="echo 'E: no such package'\nfalse\necho unreached")
    stage = Stage("stage", (Text(path=f"{tmp_path}/a", text="A"), broken, Text(path=f"{tmp_path}/c", text="C")))
    (error,) = _run(local, stage).failed
    assert isinstance(error, StepFailed)
    assert (error.step, error.message, error.details[0]) == ("text b", "failed with exit code 1", "E: no such package")
    assert "unreached" not in str(error)
    assert (tmp_path / "a").exists()
    assert not (tmp_path / "c").exists()


def test_an_optional_stage_that_fails_is_a_warning(local: Connection, tmp_path: Path) -> None:
    bad = Stage("bad", (Text(path=f"{tmp_path}/a", text="A", script="exit 9"),), optional=True)
    result = _run(local, bad, Stage("good", (Text(path=f"{tmp_path}/b", text="B"),)))
    assert (result.failed, len(result.warnings), result.changed) == ([], 1, 1)


@pytest.mark.parametrize("left", ["held", "lost", "link", "stopped"])
def test_optional_excuses_the_stage_s_own_failure_alone(
    local: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """A lock that another run holds, or that is lost, a lost link or an interrupt ends the run at once, said once."""
    kinds = {"held": lock.Busy, "lost": lock.Busy, "link": Unreachable, "stopped": Stopped}
    if left == "held":
        lock.take(local, "another-run", "deploy final")
    elif left == "lost":
        monkeypatch.setattr(lock, "take", lambda *_args, **_options: False)
    elif left == "link":
        monkeypatch.setattr(lock, "take", lambda *_args, **_options: _raise(Unreachable("the link is gone")))
    stages = [Stage(name, (Text(path=f"{tmp_path}/{name}", text="A"),), optional=True) for name in ("a", "b")]
    recorder = Recorder()
    result = _run(local, *stages, recorder=recorder, stopping=lambda: left == "stopped")
    assert [type(error) for error in result.failed] == [kinds[left]]
    assert result.warnings == []
    assert [event.text for event in recorder.events if "optional" in event.text or event.kind == "stage"] == []
    assert not (tmp_path / "a").exists()


def _raise(error: Exception) -> NoReturn:
    raise error


def test_a_guard_above_the_changes_stops_them_and_a_check_below_judges_them(local: Connection, tmp_path: Path) -> None:
    change, check = Text(path=f"{tmp_path}/a", text="A"), Exists(path=f"{tmp_path}/a")
    (error,) = _run(local, Stage("guarded", (check, change))).failed
    assert isinstance(error, CheckFailed)
    assert not (tmp_path / "a").exists()
    assert _run(local, Stage("judged", (change, check))).failed == []


def test_check_mode_changes_nothing_and_does_not_guess(local: Connection, tmp_path: Path) -> None:
    first = Stage("first", (Text(path=f"{tmp_path}/a", text="A"),))
    second = Stage("second", (Exists(path=f"{tmp_path}/a"), Text(path=f"{tmp_path}/b", text="B")))
    recorder = Recorder()
    result = _run(local, first, second, recorder=recorder, check=True)
    assert (result.would_change, result.changed, result.undecided) == (2, 0, ["exists a"])
    assert any("decided after stage 'first'" in event.text for event in recorder.events)
    stages = [event.text for event in recorder.events if event.kind == "stage"]
    assert stages == ["first   1 of 1 would change", "second   1 of 2 would change, as it looks now"]
    assert not any((tmp_path / name).exists() for name in "ab")
    assert (local.execs, local.exchanges) == (1, 2)


@pytest.mark.parametrize(
    ("tags", "skip", "ran"),
    [({"x"}, set(), "ac"), (set(), {"x"}, "bc"), ({"second"}, set(), "bc"), (set(), set(), "abc")],
)
def test_tags_select_stages(local: Connection, tmp_path: Path, tags: set[str], skip: set[str], ran: str) -> None:
    def stage(name: str, file: str, *tags: str) -> Stage:
        return Stage(name, (Text(path=f"{tmp_path}/{file}", text=file),), frozenset(tags))

    _run(
        local, stage("first", "a", "x"), stage("second", "b", "y"), stage("third", "c", Stage.ALWAYS),
        tags=frozenset(tags), skip_tags=frozenset(skip),
    )  # fmt: skip
    assert "".join(name for name in "abc" if (tmp_path / name).exists()) == ran


@pytest.mark.served
def test_what_hangs_holds_up_its_own_stage_and_none_above(
    local: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Hung:
        id: str = "hung"

        def questions(self) -> tuple[Question, ...]:
            return (shell("sleep 60", deadline=6),)

        def plan(self, _answers: Answers) -> None:
            raise AssertionError

    monkeypatch.setattr(look, "FIRST", 1.0)
    recorder = Recorder()
    first = Stage("first", (Text(path=f"{tmp_path}/a", text="A"),))
    (error,) = _run(local, first, Stage("second", (Hung(),)), recorder=recorder, check=True).failed
    assert "hung: the host did not answer this question in time" in str(error)
    said = {event.text.split("   ")[0]: event.time for event in recorder.events}
    waits = "second: no answer yet, and waited for: shell: sleep 60"
    assert list(said) == ["text a", "first", waits]
    assert said[waits] - said["first"] < 1
    assert local.exchanges == 3


def test_a_second_run_names_the_first_and_leaves(local: Connection, tmp_path: Path) -> None:
    lock.take(local, "another-run", "deploy final")
    stage = Stage("stage", (Text(path=f"{tmp_path}/a", text="A"),))
    (error,) = _run(local, stage).failed
    assert isinstance(error, lock.Busy)
    assert "deploy final" in str(error)
    assert "invoke unlock --hosts local" in str(error)
    assert not (tmp_path / "a").exists()
    lock.release(local, "another-run")
    assert _run(local, stage).changed == 1


@pytest.mark.served
def test_a_job_of_an_earlier_run_is_told_of_as_one_of_our_own(local: Connection, tmp_path: Path) -> None:
    """Nothing of what is past, then as it goes on; and what it made true counts as changed, but not what was before."""
    script = (
        f"for i in 1 2 3 4 5; do echo \"[$i/8] Building a\"; done; echo deep in it; touch {tmp_path}/half\n"
        f"until [ -e {tmp_path}/seen ]; do sleep 0.1; done\n"
        f"for i in 6 7 8; do echo \"[$i/8] Building b\"; done; echo A >{tmp_path}/a"
    )  # fmt: skip
    ended: list[int] = []

    def earlier() -> None:
        with type(local)(local.target) as own:
            job = run_job(own, "the-build", script, limit=60, report=Reporter(Recorder()), changes=True)
            ended.append(job.rc)

    class Watcher(Recorder):
        def show(self, event: Event) -> None:
            super().show(event)
            if event.kind == "progress":
                (tmp_path / "seen").touch()

    thread = threading.Thread(target=earlier)
    thread.start()
    while not (tmp_path / "half").exists():
        time.sleep(0.05)
    (tmp_path / "c").write_text("C\n")
    build = (Text(path=f"{tmp_path}/a", text="A"), Text(path=f"{tmp_path}/c", text="C"))
    watcher = Watcher()
    result = _run(local, Stage("the build", build, optional=True), recorder=watcher)
    thread.join(30)
    assert (ended, result.changed, result.unchanged, result.warnings) == ([0], 1, 1, [])
    progress = [event for event in watcher.events if event.kind == "progress"]
    assert [event.data["done"] for event in progress] == [5, 6, 7, 8]
    assert {event.text for event in progress} == {"the-build"}
    assert all(event.data["chatter"] for event in watcher.events if event.kind == "output")
    told = [(event.text, event.data["diff"]) for event in watcher.events if event.kind == "step"]
    assert told == [("text a", ["'' -> 'A'"])]
    assert [event.text.split("   ")[1] for event in watcher.events if event.kind == "stage"] == ["1 of 2 changed"]
