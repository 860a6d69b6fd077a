"""The rules that hold the house up: arrows point down, one module knows SSH, files stay readable."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Each part may import from itself and from parts with a lower number.
LEVELS = {
    "paths": 0,
    "engine": 1,
    "mistakes": 2,
    "surface": 5,
    "inventory": 2,
    "session": 3,
    "oncall": 3,
    "options": 4,
    "audit": 4,
    "incident": 4,
    "jobs": 4,
    "steps": 4,
    "sglang": 4,
    "proxmox": 4,
    "diagnose": 5,
    "canary": 6,
    "health": 6,
    "deploy": 7,
    "bench": 7,
    "provision": 7,
    "monitor": 7,
    "watch": 7,
    "status": 8,
    "adopt": 8,
    "peers": 8,
    "completion": 4,
    "tune": 8,
    "commands": 9,
}


def _sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def _imports(path: Path) -> Iterator[str]:
    """Absolute names of imported modules; `from runbooks import paths` counts as runbooks.paths."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            base = ".".join(part for part in (above, node.module or "") if part)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _part(module: str) -> str | None:
    match = re.match(r"runbooks\.(\w+)", module)
    return match[1] if match else None


@pytest.mark.parametrize("path", _sources("runbooks"), ids=lambda path: str(path.relative_to(ROOT)))
def test_arrows_point_down(path: Path) -> None:
    here = _part(".".join(path.relative_to(ROOT).with_suffix("").parts))
    if here in (None, "__init__"):
        return
    assert here in LEVELS, f"{here} has no place in the house: add it to LEVELS, and say where it stands"
    for module in _imports(path):
        assert module.split(".")[0] not in ("lab", "tests", "tasks"), f"{path} imports {module}"
        part = _part(module)
        if part in LEVELS and part != here:
            assert LEVELS[part] < LEVELS[here], f"{here} must not import {part} ({module})"


def test_the_arrow_test_can_fail() -> None:
    assert _part("runbooks.deploy.gate") == "deploy"
    assert LEVELS["deploy"] > LEVELS["canary"] > LEVELS["steps"] > LEVELS["engine"]
    assert "runbooks.paths" in set(_imports(ROOT / "runbooks/engine/jobs.py"))


def test_only_the_transport_knows_ssh() -> None:
    knowing = {
        path.relative_to(ROOT).as_posix()
        for path in _sources("runbooks")
        for module in _imports(path)
        if module.split(".")[0] in ("fabric", "paramiko")
    }
    # shell.py names a channel's type, under TYPE_CHECKING.
    assert knowing == {"runbooks/engine/transport.py", "runbooks/engine/shell.py"}


@pytest.mark.parametrize("path", [*_sources("runbooks", "lab", "tests", "bench"), ROOT / "tasks.py"], ids=str)
def test_no_file_needs_a_map(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


def test_the_repository_names_no_registry_host() -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    hosts = re.compile(r"https?://(py" r"pi|files|deb|registry|security)\.")
    for name in filter(None, tracked.stdout.split("\0")):
        path = ROOT / name
        if path.is_file() and (text := path.read_bytes()).isascii():
            assert not hosts.search(text.decode()), name


def test_only_our_own_kinds_of_text_stay_unfinished_nowhere() -> None:
    marks = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b|raise NotImplemented" r"Error")
    for path in _sources("runbooks", "lab", "bench"):
        assert not marks.search(path.read_text()), path
