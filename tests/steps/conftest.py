"""Runs the scripts of steps for real: a look and a change, under every shell that this machine has."""

from __future__ import annotations

import getpass
import grp
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from runbooks.engine.secret import Secret
from runbooks.engine.step import NO_ANSWER, Change, Question, State, Step

SHELLS = [
    name for name, argv in {"dash": ["dash"], "bash": ["bash"], "busybox": ["busybox"]}.items() if shutil.which(argv[0])
]
ME = f"{getpass.getuser()}:{grp.getgrgid(os.getgid()).gr_name}"


class Host:
    """This machine, spoken to by one shell."""

    def __init__(self, shell: str, uploads: Path) -> None:
        self._argv = ["busybox", "sh"] if shell == "busybox" else [shell]
        self._uploads = uploads

    def sh(self, script: str, *options: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "LC_ALL": "C.UTF-8", "UPLOADS": str(self._uploads), "JOB": str(self._uploads)}
        argv = [*self._argv, *options, "-s"]
        return subprocess.run(argv, input=script, capture_output=True, text=True, check=False, env=env, timeout=60)

    def ask(self, questions: Iterable[Question]) -> dict[Question, State]:
        groups: dict[object, list[Question]] = {}
        for question in dict.fromkeys(questions):
            groups.setdefault(question.kind if question.kind.together else question, []).append(question)
        answers: dict[Question, State] = {}
        for group in groups.values():
            keys, kind = [question.key for question in group], group[0].kind
            states = kind.parse(self.sh(kind.script(keys)).stdout, keys)
            answers |= {question: states.get(question.key, {}) for question in group}
        assert NO_ANSWER not in answers.values()
        return answers

    def plan(self, step: Step) -> Change | None:
        planned = step.plan(self.ask(step.questions()))
        assert planned is None or isinstance(planned, Change), planned
        return planned

    def apply(self, change: Change) -> None:
        self._uploads.mkdir(exist_ok=True)
        for name, data in change.uploads.items():
            (self._uploads / name).write_bytes(data.reveal().encode() if isinstance(data, Secret) else data)
        done = self.sh(change.script, "-e")
        assert done.returncode == 0, f"{done.stderr}\n{done.stdout}\n{change.script}"

    def converge(self, step: Step) -> Change:
        """Apply once; afterwards nothing may be left to change."""
        change = self.plan(step)
        assert change is not None, f"{step.id}: nothing to change"
        self.apply(change)
        left = self.plan(step)
        assert left is None, f"{step.id}: still wants {[diff.line for diff in left.diff]}"
        return change


@pytest.fixture(params=SHELLS)
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    return Host(request.param, tmp_path / "uploads")


@pytest.fixture
def me() -> str:
    return ME
