"""One look: one exchange for everything, and a hung group costs only its own answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runbooks.engine.facts import ask_facts
from runbooks.engine.look import look
from runbooks.engine.step import NO_ANSWER, Kind, Question, State, shell
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
