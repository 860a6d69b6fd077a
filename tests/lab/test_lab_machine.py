"""What the lab reads of the machine it runs on, and how it keeps hold of processes. No root, no guests."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from lab import demo
from lab.lab import EXAMPLES, Lab
from lab.machine import Mirror, mirror
from lab.process import Process
from lab.show import inventories
from lab.sweep import main as sweep
from runbooks.engine.errors import UsageError
from runbooks.inventory import load

DEBIAN = 'ID=debian\nVERSION_CODENAME=bookworm\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n'
DEB822 = """Types: deb
# a comment between the fields
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
"""
OLD = """# deb http://old.example/debian bookworm main
deb-src http://source.example/debian bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg] http://mirror.example/debian bookworm main contrib
deb http://mirror.example/debian-security bookworm-security main
"""
FOREIGN = "deb https://packages.example/apt nodistro main\n"


@pytest.mark.parametrize(
    ("release", "files", "found"),
    [
        (
            DEBIAN,
            {"sources.list.d/debian.sources": DEB822, "sources.list.d/a.list": FOREIGN},
            Mirror("http://mirror.example/debian", "http://mirror.example/debian-security"),
        ),
        (
            DEBIAN,
            {"sources.list": OLD},
            Mirror("http://mirror.example/debian", "http://mirror.example/debian-security"),
        ),
        (
            DEBIAN,
            {"sources.list.d/off.sources": f"Enabled: no\n{DEB822}"},
            Mirror(None, "http://mirror.example/debian-security"),
        ),
        (DEBIAN, {"sources.list.d/a.list": FOREIGN}, Mirror(None, None)),
        ("ID=ubuntu\nVERSION_CODENAME=noble\n", {"sources.list": OLD}, Mirror(None, None)),
    ],
)
def test_the_mirror_is_the_machine_s_own(tmp_path: Path, release: str, files: dict[str, str], found: Mirror) -> None:
    (tmp_path / "os-release").write_text(release)
    for name, text in files.items():
        path = tmp_path / "apt" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert mirror(tmp_path) == found


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_lab_s_inventories_are_valid_examples(path: Path) -> None:
    inventory = load(path).inventory
    assert inventory.hosts["glm5-a"].address == "10.77.0.11"


def test_a_process_is_known_by_pid_and_start_time(tmp_path: Path) -> None:
    process = Process.start(["sleep", "60"], log=tmp_path / "log")
    assert process.alive()
    assert not Process(process.pid, process.started + 1).alive()  # somebody else's pid since
    begun = time.monotonic()
    process.end()
    assert not process.alive()
    assert time.monotonic() - begun < 5


def test_a_process_that_is_gone_is_no_error(tmp_path: Path) -> None:
    process = Process.start(["sleep", "60"], log=tmp_path / "log")
    process.end()
    process.end()


def test_a_lab_that_is_not_up_says_what_to_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RUNBOOKS_LAB_CACHE", str(tmp_path))
    lab = Lab.open("mine")
    with pytest.raises(UsageError, match="mine is not up") as failure:
        _ = lab.guests
    assert failure.value.next == "invoke lab.up --name mine"
    assert Lab.all() == []
    assert sweep("mine") == 0


def test_without_root_the_demo_says_what_runs_anyway(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "why_no_guests", lambda: "lab guests need root")
    assert demo.main([]) == 2
    said = capsys.readouterr().err
    assert said == "demo: lab guests need root; what runs without it: ./dev demo --report-only\n"


VM_OF_A_NODE = "hosts:\n  # the first\n  glm5-a:\n    address: 10.77.0.11\n\nknown_hosts: k\n"


@pytest.mark.parametrize(
    ("files", "shown"),
    [
        ({"inventory.yaml": "hosts:\n\nknown_hosts: k\n", "pve-inventory.yaml": VM_OF_A_NODE}, ["pve-inventory.yaml"]),
        (
            {"inventory.yaml": "hosts:\n\nknown_hosts: k\n", "pve-inventory-sglang.yaml": VM_OF_A_NODE},
            ["pve-inventory-sglang.yaml"],
        ),
        ({"inventory.yaml": VM_OF_A_NODE}, ["inventory.yaml"]),
        (
            {"inventory.yaml": VM_OF_A_NODE, "pve-inventory.yaml": VM_OF_A_NODE},
            ["inventory.yaml", "pve-inventory.yaml"],
        ),
        ({"inventory.yaml": "hosts:\n\nknown_hosts: k\n"}, []),
    ],
)
def test_the_inventories_that_are_shown_are_those_with_hosts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], shown: list[str]
) -> None:
    monkeypatch.setenv("RUNBOOKS_LAB_CACHE", str(tmp_path))
    lab = Lab.open("mine")
    lab.folder.mkdir(parents=True)
    for name, text in files.items():
        (lab.folder / name).write_text(text)
    assert [path.name for path in inventories(lab)] == shown


@pytest.mark.parametrize("on_path", [True, False])
def test_the_demo_says_how_invoke_is_found_before_it_says_what_to_type(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, on_path: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "INVOKE", tmp_path / ".venv/bin/invoke")
    monkeypatch.setenv("PATH", str(tmp_path))
    if on_path:
        (tmp_path / "invoke").write_text("#!/bin/sh\n")
        (tmp_path / "invoke").chmod(0o755)
    demo._say_what_next(Lab.open("mine"), tmp_path / "pve-inventory.yaml", True, 1.0)
    lines = capsys.readouterr().out.splitlines()
    first = lines[lines.index("what to try next:") + 1]
    assert (first == "  source .venv/bin/activate") is not on_path
    assert first.startswith("  invoke provision") is on_path
