"""CONTRIBUTING's ten lines on a kind of step are true, and its example is one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from runbooks.engine.step import Change, State, Verdict
from tests.steps.example_step import ZONES, Timezone
from tests.steps.test_steps_tables import answered

ROOT = Path(__file__).parents[2]
SECTION = re.search(r"## A kind of step.*?(?=\n## )", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
THERE: State = {"type": "file"}


@pytest.mark.parametrize(
    ("now", "zone", "said"),
    [
        ({}, THERE, "none -> Etc/UTC"),
        ({"type": "symlink", "target": f"{ZONES}/Europe/Berlin"}, THERE, "Europe/Berlin -> Etc/UTC"),
        ({"type": "symlink", "target": f"{ZONES}/Etc/UTC"}, THERE, None),
        ({}, {}, "this host has no zone Etc/UTC"),
    ],
)
def test_its_cases(now: State, zone: State, said: str | None) -> None:
    step = Timezone(zone="Etc/UTC")
    planned = step.plan(answered(step, [now, zone]))
    lines = [diff.line for diff in planned.diff] if isinstance(planned, Change) else [getattr(planned, "line", None)]
    assert lines == [said]
    assert isinstance(planned, Verdict) is (zone == {})


def test_nothing_is_left_to_change_after_the_change(host: Any, tmp_path: Path) -> None:
    """Under each shell of this machine; the name of the place is hostile."""
    path = tmp_path / 'it\'s "odd" $(id)\n-rf'
    step = Timezone(zone="Etc/UTC", path=str(path))
    host.converge(step)
    assert str(path.readlink()) == f"{ZONES}/Etc/UTC"
    assert [found.name for found in tmp_path.iterdir() if found.name != "uploads"] == [path.name]


def test_the_ten_lines_name_what_is_there() -> None:
    assert SECTION is not None
    lines = re.findall(r"(?m)^\d+\. ", SECTION[0])
    assert 5 <= len(lines) <= 10
    paths = re.findall(r"`([\w/.]+\.(?:py|sh))`", SECTION[0])
    assert "tests/steps/example_step.py" in paths
    for path in paths:
        assert (ROOT / path).exists(), path
    for name, path in re.findall(r"`([A-Z_]+)` of\s+`([\w/.]+)`", SECTION[0]):
        assert re.search(rf"(?m)^{name}\b", (ROOT / path).read_text()), f"{path} has no {name}"
