"""The tasks and the inventory of the checkout, from whatever folder of it one stands in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from invoke.loader import FilesystemLoader

from runbooks import paths

ROOT = Path(__file__).parents[2]
INVOKE = str(Path(sys.executable).with_name("invoke"))


def folders() -> list[str]:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted({str(above) for name in tracked.stdout.split("\0") if name for above in Path(name).parents})


def test_invoke_finds_the_same_tasks_from_every_folder() -> None:
    found = folders()
    assert {".", "lab", "runbooks", "runbooks/proxmox", "bench", "tests/cli"} <= set(found)
    elsewhere = {}
    for folder in found:
        spec = FilesystemLoader(start=str(ROOT / folder)).find("tasks")
        if spec is None or spec.origin != str(ROOT / "tasks.py"):
            elsewhere[folder] = spec and spec.origin
    assert elsewhere == {}


@pytest.mark.served
@pytest.mark.parametrize("folder", [".", "lab", "runbooks", "runbooks/proxmox", "bench", "lab/engine", "tests/cli"])
@pytest.mark.parametrize("program", [[INVOKE], [sys.executable, "-m", "invoke"]], ids=["invoke", "python -m invoke"])
def test_a_command_means_the_checkouts_inventory(folder: str, program: list[str]) -> None:
    env = {name: value for name, value in os.environ.items() if name != "RUNBOOKS_INVENTORY"}
    done = subprocess.run(
        [*program, "status", "--hosts", "glm5-x"],
        cwd=ROOT / folder, env=env, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "no host or group matches 'glm5-x'; did you mean glm5-a?" in done.stderr


@pytest.mark.parametrize("folder", folders())
def test_a_path_that_nobody_named_is_the_checkouts(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / folder)
    assert Path(paths.home("inventory.yaml")).resolve() == ROOT / "inventory.yaml"


def test_elsewhere_it_is_where_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert paths.home("inventory.yaml") == "inventory.yaml"
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert paths.home("inventory.yaml") == "inventory.yaml"


@pytest.mark.served
def test_a_path_that_was_given_is_where_one_stands() -> None:
    done = subprocess.run(
        [INVOKE, "status", "--inventory", "none.yaml"],
        cwd=ROOT / "lab", capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("there is no inventory at none.yaml")
    assert "cp ../inventory.yaml my.yaml" in done.stderr
