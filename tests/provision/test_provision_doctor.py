"""The doctor inside a host: the steps of provisioning, looked at; each with its cure, and the cause before the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from runbooks.engine.errors import StepFailed
from runbooks.engine.step import NO_ANSWER, Answers, Change, Diff, Question, Stage, Verdict, shell
from runbooks.provision import doctor

ASKED = shell("true")


@dataclass(frozen=True)
class Told:
    """A step that plans what it was told."""

    id: str
    says: Change | Verdict | None = None

    def questions(self) -> tuple[Question, ...]:
        return (ASKED,)

    def plan(self, _answers: Answers) -> Change | Verdict | None:
        return self.says


MISSING = Change(script="x", diff=(Diff("curl absent -> installed"), Diff("kmod absent -> installed")), page="p")
DEAD = Verdict(ok=False, line="7 of 8 cards", details=("a", "b"), next="nvidia-smi -q", page="gpu-lost")
STAGES = [
    Stage("system", (Told("os", Verdict(ok=True, line="debian 12")), Told("cloud-init")), frozenset({"base"})),
    Stage("wheel", (Told("built", MISSING),), frozenset({"flash-attn"}), optional=True),
    Stage("base", (Told("packages", MISSING),), frozenset({"base"})),
    Stage("driver", (Told("GPUs", DEAD),), frozenset({"driver"})),
]


class Host:
    name = "glm5-a"


def checks(monkeypatch: pytest.MonkeyPatch, stages: list[Stage], answers: Any = None) -> dict[str, Any]:
    monkeypatch.setattr(doctor, "ask_facts", lambda _connection: None)
    monkeypatch.setattr(doctor, "ask", lambda _connection, _questions: answers or {ASKED: {"rc": 0}})
    found = doctor.host_checks(Host(), lambda _facts: stages)  # type: ignore[arg-type]
    return {check.name: (check.ok, check.advice, check.detail, check.fix, check.page) for check in found}


def test_every_step_is_a_check_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = "curl absent -> installed; kmod absent -> installed"
    assert checks(monkeypatch, STAGES[:3]) == {
        "system: os": (True, False, "debian 12", "", ""),
        "system: cloud-init": (True, False, "as it should be", "", ""),
        "wheel: built": (False, True, missing, "invoke provision --hosts glm5-a --tags flash-attn", "p"),
        "base: packages": (False, False, missing, "invoke provision --hosts glm5-a --tags base", "p"),
    }


def test_a_fault_has_its_own_cure_unless_something_above_it_is_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks(monkeypatch, STAGES[3:])["driver: GPUs"] == (
        *(False, False, "7 of 8 cards; a; b", "nvidia-smi -q", "gpu-lost"),
    )
    later = checks(monkeypatch, STAGES[2:])["driver: GPUs"]
    assert later[3] == "first stage 'base': invoke provision --hosts glm5-a"


def test_what_does_not_answer_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = checks(monkeypatch, STAGES[3:], {ASKED: NO_ANSWER}).values()
    assert found[0] is False
    assert found[2].startswith("the host did not answer this question in time; asked by shell")


def test_a_host_that_is_not_reached_is_one_fault() -> None:
    error = StepFailed("no route", next="ping it")
    check = doctor._unreached(error)
    assert (check.ok, check.detail, check.fix, check.page) == (False, "no route", "ping it", "host-unreachable")
