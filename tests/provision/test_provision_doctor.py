"""The doctor inside a host: the steps of provisioning, looked at; each with its cure, and the cause before the rest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runbooks.engine.errors import StepFailed
from runbooks.engine.step import NO_ANSWER, Answers, Change, Diff, Question, Stage, Verdict, shell
from runbooks.inventory import load
from runbooks.provision import doctor, stages
from tests.provision.test_provision_stages import UBUNTU

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
    monkeypatch.setattr(doctor, "ask", lambda _connection, _questions, **_how: answers or {ASKED: {"rc": 0}})
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


def test_what_is_not_there_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ("new, mode 0644, root:root", "new, home /var/lib/x, groups -", "mode 0600 -> 0644", "new")
    steps = tuple(Told(f"file {at}", Change(script="x", diff=(Diff(line),))) for at, line in enumerate(lines))
    found = checks(monkeypatch, [Stage("base", steps, frozenset({"base"}))])
    assert [detail for _, _, detail, *_ in found.values()] == [
        "is missing (wanted: mode 0644, root:root)",
        "is missing (wanted: home /var/lib/x, groups -)",
        "mode 0600 -> 0644",
        "is missing",
    ]


def test_what_does_not_answer_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = checks(monkeypatch, STAGES[3:], {ASKED: NO_ANSWER}).values()
    assert found[0] is False
    assert found[2].startswith("the host did not answer this question in time; asked by shell")


def test_a_host_that_is_not_reached_is_one_fault() -> None:
    error = StepFailed("no route", next="ping it")
    check = doctor._unreached(error)
    assert (check.ok, check.detail, check.fix, check.page) == (False, "no route", "ping it", "host-unreachable")


EVERY = {  # what a host that was built must be asked, and the check that asks it
    "system": (
        "operating system", "disk space for packages", "disk space for jobs and their logs",
        "disk space for releases and runtimes", "disk space for the audit log", "cloud-init",
    ),
    "base": (
        "file /etc/apt/apt.conf.d/52runbooks", "apt's timers", "packages ca-certificates curl kmod pciutils and 7 more",
        "file /etc/security/limits.d/60-runbooks.conf", "time synchronisation", "sysctl runbooks",
    ),
    "driver sources": (
        "secure boot", "one origin of the driver", "apt key nvidia", "file /etc/apt/sources.list.d/nvidia.sources",
        "file /etc/apt/preferences.d/nvidia", "file /etc/modprobe.d/blacklist-nouveau.conf",
        "file /etc/modprobe.d/nvidia-uvm.conf",
    ),
    "driver packages": (
        "packages linux-headers-6.8.0-63-generic linux-headers-generic", "initramfs 6.8.0-63-generic",
        "packages nvidia-open nvidia-persistenced", "hold nvidia-open nvidia-persistenced",
        "without nvidia-fabricmanager", "module of every kernel that runs",
    ),
    "driver loaded": (
        "driver loaded", "open kernel modules", "GPUs", "unit nvidia-persistenced.service", "state of the GPUs",
        "options of the modules", "peer-to-peer", "faults of the GPUs (Xid)",
    ),
    "cuda": ("packages cuda-toolkit-13-0", "CUDA for sm_120"),
    "flash-attn": ("flash-attn 2.8.3.post2 wheel",),
    "runtime": ("runtime sglang 0.5.23", "flag table", "DeepGEMM"),
    "toolkit": ("CUDA of torch",),
    "model": ("memory of the cards", "download /srv/models/GLM-5-NVFP4", "config.json"),
}  # fmt: skip


def test_a_built_host_is_asked_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a blank one each that fails says what it found, and the command that mends it."""
    loaded = load(Path(__file__).parents[2] / "inventory.yaml")
    found = stages(UBUNTU, loaded, "glm5-a")
    blank: Answers = {question: {} for stage in found for step in stage.steps for question in step.questions()}
    told = checks(monkeypatch, found, blank)
    assert {f"{stage}: {name}" for stage, names in EVERY.items() for name in names} <= told.keys()
    failing = {name: check for name, check in told.items() if not check[0]}
    assert len(failing) > 20
    assert [name for name, (_, _, detail, fix, _) in failing.items() if not detail or not fix] == []
