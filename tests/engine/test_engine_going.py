"""What a person who leaves with Ctrl-C is told: jobs that really go on, and no others."""

from __future__ import annotations

import subprocess
import sys

import pytest

from runbooks.engine import going
from runbooks.engine.errors import RunbookError

NONE = "interrupted; no job of this run goes on"


def test_what_ended_or_failed_goes_on_no_more_and_what_was_left_does() -> None:
    assert going.interrupted() == NONE
    with going.followed("glm5-a", "base-1", again=True):
        assert going.interrupted() == (
            "interrupted; base-1 on glm5-a goes on: `invoke jobs` lists it, the same command attaches to it"
        )
    with pytest.raises(RunbookError), going.followed("glm5-a", "base-1", again=True):
        raise RunbookError("it failed")
    assert going.interrupted() == NONE
    try:
        with pytest.raises(KeyboardInterrupt), going.followed("glm5-a", "canary-2", again=False):
            raise KeyboardInterrupt
        assert going.interrupted() == "interrupted; canary-2 on glm5-a goes on: `invoke jobs` lists it"
    finally:
        going._FOLLOWED.clear()


LEAVES = """
import sys
from invoke import Context
from runbooks.engine.going import followed
from runbooks.surface import command

@command({options})
def leaves(context):
    if {job}:
        with followed("a", "base-1", again=True):
            raise KeyboardInterrupt
    raise KeyboardInterrupt

leaves(Context())
"""


@pytest.mark.parametrize(
    ("options", "job", "said"),
    [
        ("", False, NONE),
        ("", True, "interrupted; base-1 on a goes on: `invoke jobs` lists it, the same command attaches to it"),
        ("looks=True", False, "interrupted; nothing goes on"),
        ("interrupted=lambda told: 'interrupted; mine'", True, "interrupted; mine"),
    ],
)
def test_a_command_ends_with_what_is_true_of_it(options: str, job: bool, said: str) -> None:
    script = LEAVES.format(options=options, job=job)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr, ended.stdout) == (130, f"{said}\n", "")


EARLY = """
import os, signal, sys
sys.argv = [{name!r}]
import runbooks.surface
from invoke import Context
{begins}
os.kill(os.getpid(), signal.SIGINT)
"""
BEGINS = "runbooks.surface.command()(lambda context: os.kill(os.getpid(), signal.SIGINT))(Context())"


@pytest.mark.parametrize(
    ("name", "begins", "said"),
    [("/x/bin/invoke", "", "interrupted; nothing was touched"), ("/x/bin/invoke", BEGINS, NONE)],
)
def test_before_a_command_begins_nothing_was_touched(name: str, begins: str, said: str) -> None:
    script = EARLY.format(name=name, begins=begins)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr, ended.stdout) == (130, f"{said}\n", "")


def test_programs_that_are_not_invoke_keep_their_own() -> None:
    script = EARLY.format(name="/x/bin/pytest", begins="")
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == -2
