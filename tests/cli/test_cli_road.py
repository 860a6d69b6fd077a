"""The whole road on a fresh host, as people type it; what can be wrong on it, and that a rerun mends it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.guest import Guest
from lab.lab import Lab

pytestmark = pytest.mark.lab

ROOT = Path(__file__).parents[2]
INVOKE = str(Path(sys.executable).with_name("invoke"))

Invoke = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def invoke(lab: Lab, guest: Guest) -> Invoke:
    """Run a task against the module's guest. Whatever it says, it must not be a traceback."""

    def run(*words: str, inventory: Path = lab.inventory, timeout: float = 400) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [INVOKE, *words, "--inventory", str(inventory), "--hosts", guest.name],
            cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL,
            env=os.environ | {"COLUMNS": "200"},
        )  # fmt: skip
        assert "Traceback" not in done.stdout + done.stderr
        assert "a bug in runbooks" not in done.stderr, done.stderr
        return done

    return run


@pytest.fixture
def edited(lab: Lab) -> Iterator[Callable[[str, str], Path]]:
    """The lab's inventory with one change, beside the real one so that its relative paths hold."""
    path = lab.inventory.with_name("edited.yaml")

    def edit(pattern: str, replacement: str) -> Path:
        text, count = re.subn(pattern, replacement, lab.inventory.read_text(), count=1, flags=re.MULTILINE)
        assert count == 1, f"{pattern} is not in the lab's inventory"
        path.write_text(text)
        return path

    yield edit
    path.unlink(missing_ok=True)


def ok(done: subprocess.CompletedProcess[str], code: int = 0) -> str:
    assert done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def test_01_what_is_not_debian_or_ubuntu_is_refused(invoke: Invoke, guest: Guest) -> None:
    guest.run("cp /etc/os-release /root/os-release; sed 's/^ID=.*/ID=fedora/' /root/os-release >/etc/os-release.new")
    guest.run("mv /etc/os-release.new /etc/os-release")
    text = ok(invoke("provision", "--yes"), 1)
    assert "fedora" in text
    assert not guest.run("ls /opt/runbooks", check=False).stdout
    guest.run("mv /root/os-release /etc/os-release")


def test_02_check_tells_what_a_blank_host_lacks_and_touches_nothing(invoke: Invoke, guest: Guest) -> None:
    text = ok(invoke("provision", "--check", "--diff"), 3)
    assert "decided after stage" in text
    assert not guest.run("ls /opt/runbooks /etc/apt/sources.list.d/nvidia.sources", check=False).stdout


def test_03_a_missing_gpu_stops_the_run_and_names_the_page(invoke: Invoke, guest: Guest) -> None:
    guest.write("/etc/lab-gpus.json", json.dumps({"count": 7}))
    text = ok(invoke("provision", "--yes", "--tags", "base", "--tags", "driver"), 1)
    assert re.search(r"7 .*8|8 .*7", text)
    assert "invoke runbook gpu-lost" in text
    guest.run("rm /etc/lab-gpus.json")


def test_04_a_model_that_does_not_fit_is_refused_before_it_is_downloaded(
    invoke: Invoke, guest: Guest, edited: Callable[[str, str], Path]
) -> None:
    huge = edited(r"^(\s+size_gb:).*$", r"\1 440")
    text = ok(invoke("provision", "--yes", "--tags", "model", inventory=huge), 1)
    assert "GB" in text
    assert not guest.run("ls /srv/models/GLM-5-NVFP4", check=False).stdout


def test_05_provision_ends_converged_and_a_second_run_changes_nothing(invoke: Invoke) -> None:
    ok(invoke("provision", "--yes"))
    events = [json.loads(line) for line in ok(invoke("provision", "--json")).splitlines()]
    stages = [event for event in events if event["event"] == "stage"]
    assert stages
    assert {event["state"] for event in stages} == {"ok"}
    assert sum(event["changed"] for event in stages) == 0


def test_06_health_of_a_host_without_a_server_is_an_error(invoke: Invoke) -> None:
    assert "invoke deploy" in ok(invoke("health"), 1)


def test_07_an_unknown_flag_is_refused_with_the_nearest_one(invoke: Invoke, edited: Callable[[str, str], Path]) -> None:
    wrong = edited(r"^( +)mem_fraction_static:.*$", r"\1mem_fraction_statik: 0.9")
    text = ok(invoke("deploy", "--profile", "final", "--yes", inventory=wrong), 2)
    assert "mem_fraction_static" in text


def test_08_a_server_that_dies_at_start_is_told_with_its_last_lines(invoke: Invoke, guest: Guest) -> None:
    guest.write("/etc/lab-sglang.json", json.dumps({"fail": "die_at_start", "detail": "memory"}))
    done = invoke("deploy", "--profile", "final", "--yes", "--quick")
    guest.run("rm /etc/lab-sglang.json")
    assert "Not enough memory" in ok(done, 1)


def test_09_deploy_health_canary(invoke: Invoke) -> None:
    assert "promoted" in ok(invoke("deploy", "--profile", "final", "--yes", "--quick"))
    ok(invoke("health"))
    assert "healthy" in ok(invoke("canary"))


def test_10_a_server_that_never_gets_healthy_is_rolled_back(
    invoke: Invoke, guest: Guest, edited: Callable[[str, str], Path]
) -> None:
    # Only as `baseline` starts it, which leaves this at its default: the way back needs a server that starts.
    only_that = {"disable_custom_all_reduce": [False, None]}
    guest.write("/etc/lab-sglang.json", json.dumps({"fail": "never_ready", "fail_when": only_that}))
    short = edited(r"^(\s+ready_budget:).*$", r"\1 6")
    text = ok(invoke("deploy", "--profile", "baseline", "--yes", inventory=short), 1)
    guest.run("rm /etc/lab-sglang.json")
    assert "back" in text
    assert "release 2" in text
    assert "healthy" in ok(invoke("canary"))


def test_11_bench_measures_and_writes_its_report(invoke: Invoke, tmp_path: Path) -> None:
    done = invoke("bench", "--concurrency", "1", "--concurrency", "8", "--window", "2", "--out", str(tmp_path))
    text = ok(done)
    assert "INVALID" not in text
    (report,) = tmp_path.glob("**/report.html")
    assert str(report) in text
    points = json.loads(next(tmp_path.glob("**/points.json")).read_text())
    assert len(points) == 2 or len(points["points"]) == 2


def test_12_one_line_a_change_is_in_the_audit_log(invoke: Invoke) -> None:
    assert "nvidia" in ok(invoke("audit", "--lines", "400"))
