"""One look: one exchange for everything, and a hung group costs only its own answer."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from runbooks.engine import look as engine_look
from runbooks.engine.errors import StepFailed
from runbooks.engine.facts import ask_facts
from runbooks.engine.look import AT_MOST, look
from runbooks.engine.run import planned
from runbooks.engine.step import NO_ANSWER, TOO_MUCH, Answers, Kind, Question, State, shell
from runbooks.engine.transport import Connection


def _parse(output: str, keys: Sequence[str]) -> Mapping[str, State]:
    return {key: {"line": line} for key, line in zip(keys, output.splitlines(), strict=False)}


def test_questions_of_a_kind_are_asked_together_in_one_exchange(local: Connection) -> None:
    scripts: list[Sequence[str]] = []

    def script(keys: Sequence[str]) -> str:
        scripts.append(keys)
        return "\n".join(f"echo {key}" for key in keys)

    kind = Kind("echo", script, _parse)
    questions = [Question(kind, name) for name in "abc"] + [shell("echo x; exit 4"), Question(kind, "a")]
    answers = look(local, questions)
    assert scripts == [("a", "b", "c")]
    assert [answers[q] for q in questions[:3]] == [{"line": "a"}, {"line": "b"}, {"line": "c"}]
    assert answers[questions[3]] == {"rc": 4, "out": "x"}
    assert local.exchanges == 1


def test_a_hung_question_costs_only_its_own_answer(local: Connection) -> None:
    hung = shell("trap '' TERM; sleep 30 & wait; sleep 30", deadline=1)
    fine = shell("echo fine")
    answers = look(local, [hung, fine])
    assert answers[hung] is NO_ANSWER
    assert answers[fine] == {"rc": 0, "out": "fine"}


@pytest.mark.served
def test_what_is_slow_holds_nobody_back_and_is_waited_for(local: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_look, "FIRST", 1.0)
    slow, never = shell("sleep 6; echo slow", deadline=20), shell("sleep 60", deadline=7)
    fine = [shell(f"echo {number}") for number in range(10)]
    told: list[tuple[float, list[Question]]] = []
    began = time.monotonic()
    answers = look(local, [slow, *fine, never], waiting=lambda late: told.append((time.monotonic() - began, [*late])))
    ((after, late),) = told
    assert (after < 5, late) == (True, [slow, never])
    assert (answers[slow], answers[never]) == ({"rc": 0, "out": "slow"}, NO_ANSWER)
    assert [answers[question]["out"] for question in fine] == [str(number) for number in range(10)]
    assert local.exchanges == 2
    assert local.ask("ls -d $T/look.* 2>/dev/null").out == ""


def test_one_that_says_too_much_drowns_nobody(local: Connection) -> None:
    """One without an end; and then some that are too much together, which come in two answers."""
    endless, fine = shell("yes", deadline=4), [shell("echo fine"), shell("echo good")]
    answers = look(local, [endless, *fine])
    assert [answers[question]["out"] for question in fine] == ["fine", "good"]
    assert answers[endless] == TOO_MUCH
    large = [shell(f": {number}; head -c 4000000 /dev/zero | tr '\\0' x") for number in range(6)]
    answers = look(local, [*large, *fine])
    assert [answers[question]["out"] for question in fine] == ["fine", "good"]
    assert {len(str(answers[question]["out"])) for question in large} == {4_000_000}
    assert local.exchanges == 3


@pytest.mark.served
def test_a_late_answer_whose_shell_is_gone_is_asked_for_again(
    local: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_look, "FIRST", 0.5)
    slow = shell("sleep 2; echo slow", deadline=20)
    seen = engine_look.Look(local, [slow])
    assert seen.late([slow]) == [slow]
    local.close()
    monkeypatch.setattr(engine_look, "FIRST", 8.0)
    seen.wait([slow])
    assert seen.answers[slow] == {"rc": 0, "out": "slow"}


def test_what_is_too_long_is_said_so() -> None:
    @dataclass(frozen=True)
    class Asks:
        id: str = "asks"

        def questions(self) -> tuple[Question, ...]:
            return (shell("journalctl -k"),)

        def plan(self, _answers: Answers) -> None:
            raise AssertionError

    for state, said in ((TOO_MUCH, "too long"), (NO_ANSWER, "in time")):
        with pytest.raises(StepFailed, match=said) as failed:
            planned(Asks(), {shell("journalctl -k"): state})
        assert "asked by shell: journalctl -k" in str(failed.value)


def test_a_key_that_is_not_answered_has_an_empty_state(local: Connection) -> None:
    kind = Kind("nothing", lambda _keys: ":", _parse)
    assert look(local, [Question(kind, "x")]) == {Question(kind, "x"): {}}


def test_no_questions_cost_nothing(local: Connection) -> None:
    assert look(local, []) == {}
    assert local.exchanges == 0


def test_odd_bytes_in_an_answer(local: Connection) -> None:
    question = shell("printf 'a\\377b\\nrc=7\\n'")
    assert look(local, [question])[question] == {"rc": 0, "out": "a\ufffdb\nrc=7"}


def test_facts_are_one_exchange(local: Connection) -> None:
    facts = ask_facts(local)
    assert local.exchanges == 1
    assert facts.os_id
    assert facts.cores >= 1
    assert facts.memory_bytes > 2**28
    assert len(facts.boot_id) == 36


@pytest.mark.served
def test_what_cannot_be_killed_is_left_behind(local: Connection, tmp_path: Path) -> None:
    """As nvidia-smi after an Xid 79, which `timeout` itself would wait for: one that never returns stands for it."""
    answer = local.ask(f"{AT_MOST}at_most 9 sh -c 'echo x; echo y >&2; exit 3'; echo rc=$?")
    assert (answer.out, answer.err) == ("x\nrc=3\n", "y\n")
    (tmp_path / "timeout").write_text("#!/bin/sh\nexec sleep 30\n")
    (tmp_path / "timeout").chmod(0o755)
    began = time.monotonic()
    assert local.ask(f"{AT_MOST}PATH={tmp_path}:$PATH; at_most 1 echo x; echo rc=$?", deadline=20).out == "rc=124\n"
    assert time.monotonic() - began < 15
