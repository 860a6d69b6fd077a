"""The rendered files of a release: golden for each shipped profile, taken by systemd, and never shutting CUDA out.

To accept a change of the templates: RUNBOOKS_WRITE_GOLDEN=1 pytest tests/deploy, then read the diff.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from runbooks.deploy.unit import DEVICES_UNIT, Plan, environment_value, plan, render, stamp
from runbooks.inventory import load
from runbooks.inventory.shape import Profile, SecretRef
from runbooks.sglang.argv import Place, build, fitting

GOLDEN = Path(__file__).parent / "golden"
SHIPPED = load(Path(__file__).parents[2] / "inventory.yaml").inventory
MODEL = SHIPPED.models[SHIPPED.model]
RUNTIME = SHIPPED.runtimes[SHIPPED.runtime]
FITTING = fitting(SHIPPED, model=MODEL, runtime=RUNTIME)
FOLDER = "/opt/runbooks/runtimes/0123456789ab"
EXPOSURE = 2.2  # of 10, by `systemd-analyze security` of systemd 252; what is left is network and devices

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")


def _plan(profile: str = "final", *, runtime: str = FOLDER, key: bool = False) -> Plan:
    server = msgspec.structs.replace(SHIPPED.server, api_key=SecretRef(env="KEY") if key else None)
    inventory = msgspec.structs.replace(SHIPPED, server=server)
    launch = build(inventory, profile, model=MODEL, runtime=RUNTIME)
    return plan(inventory, launch, model=MODEL, runtime=runtime)


def _golden(files: Mapping[str, str], golden: Path) -> None:
    words = "\n".join(json.loads(files["argv.json"]))
    text = f"# argv\n{words}\n\n# env\n{files['env']}\n# sglang.service\n{files['sglang.service']}"
    text = re.sub(r"(?<=RUNBOOKS_RELEASE=1:)\w+", "CONTENT", text)
    if os.environ.get("RUNBOOKS_WRITE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("profile", FITTING)
def test_golden(profile: str) -> None:
    """As shipped: with a key."""
    _golden(render(_plan(profile, key=True), 1), GOLDEN / f"{profile}.txt")


@pytest.mark.parametrize("rank", [0, 1])
def test_golden_of_one_server_on_two_hosts(rank: int) -> None:
    """One unit a host, alike but for the rank."""
    two = Profile(why="", extends="final", args={"nnodes": 2})
    inventory = msgspec.structs.replace(SHIPPED, profiles={**SHIPPED.profiles, "two": two})
    place = Place(("a", "b"), rank, "192.0.2.10")
    launch = build(inventory, "two", model=MODEL, runtime=RUNTIME, place=place)
    files = render(plan(inventory, launch, model=MODEL, runtime=FOLDER), 1)
    _golden(files, GOLDEN.parent / "data" / f"two-hosts-rank-{rank}.txt")


def test_no_golden_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(FITTING)


def _on_disk(folder: Path, *, key: bool) -> Path:
    """The units with paths that exist, for systemd to look at."""
    python = folder / "runtime" / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    for name, text in render(_plan(runtime=str(folder / "runtime"), key=key), 1).items():
        (folder / name).write_text(text.replace("ExecStart=/usr/bin/nvidia-modprobe", f"ExecStart={python}"))
    return folder / "sglang.service"


@needs_systemd
@pytest.mark.parametrize("key", [False, True])
def test_systemd_takes_the_units(tmp_path: Path, key: bool) -> None:
    unit = _on_disk(tmp_path, key=key)
    verify = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=one"]
    for path in (unit, unit.parent / DEVICES_UNIT):
        done = subprocess.run([*verify, str(path)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "Unknown" not in done.stderr


@needs_systemd
def test_verify_would_have_seen_a_key_in_the_wrong_section(tmp_path: Path) -> None:
    unit = _on_disk(tmp_path, key=False)
    unit.write_text(unit.read_text().replace("[Service]\n", "[Service]\nStartLimitBurst=5\nMemoryMagic=1\n"))
    verify = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=one", str(unit)]
    assert subprocess.run(verify, capture_output=True, check=False).returncode == 1


@needs_systemd
def test_the_exposure_is_what_we_agreed_on(tmp_path: Path) -> None:
    unit = _on_disk(tmp_path, key=False)
    security = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)]
    said = subprocess.run(security, capture_output=True, text=True, check=True).stdout
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", said)
    assert found, said
    assert float(found[1]) <= EXPOSURE


def test_nothing_shuts_cuda_out() -> None:
    unit = render(_plan(), 1)["sglang.service"]
    lines = [line for line in unit.splitlines() if line and not line.startswith("#")]
    keys = {line.partition("=")[0] for line in lines}
    assert not keys & {"PrivateDevices", "MemoryDenyWriteExecute", "ProcSubset", "PrivateUsers"}
    assert "DeviceAllow=char-nvidia* rw" in lines
    assert "LimitMEMLOCK=infinity" in lines
    assert "SystemCallErrorNumber=EPERM" in lines, "a call outside the filter must not kill the server"


def test_restarts_are_bounded_and_come_after_exit_0_too() -> None:
    unit = render(_plan(), 1)["sglang.service"]
    head, _, service = unit.partition("[Service]")
    assert "StartLimitBurst=5" in head
    assert "StartLimit" not in service
    assert "\nRestart=always\n" in service
    assert "\nKillMode=control-group\n" in service
    assert "SuccessExitStatus" not in unit, "it would make a NaN crash look like a clean stop"


def test_every_path_of_a_unit_names_its_own_release() -> None:
    unit = render(_plan(key=True), 7)["sglang.service"]
    assert set(re.findall(r"/opt/runbooks/releases/(\d+)/", unit)) == {"7"}
    assert "/opt/runbooks/current" not in unit


def test_the_key_is_in_no_file() -> None:
    files = render(_plan(key=True), 1)
    assert "LoadCredential=api-key:/opt/runbooks/releases/1/api-key" in files["sglang.service"]
    assert "api-key" not in files["argv.json"]
    assert "LoadCredential" not in render(_plan(), 1)["sglang.service"]


def test_content_names_what_runs_and_not_its_number() -> None:
    one, same, other = _plan(), _plan(), _plan("graphs-128")
    assert one.content == same.content != other.content
    assert one.content != _plan(runtime=FOLDER + "x").content
    assert stamp(one, 3) == f"3:{one.content}"


def test_environment_values_are_read_back_by_systemd_as_they_are() -> None:
    assert environment_value('a b$c`d"e\\f') == '"a b\\$c\\`d\\"e\\\\f"'


def test_homes_are_hidden_unless_the_weights_are_in_one() -> None:
    assert "\nProtectHome=yes\n" in render(_plan(), 1)["sglang.service"]
    model = msgspec.structs.replace(MODEL, path="/home/models/GLM-5")
    launch = build(SHIPPED, "final", model=model, runtime=RUNTIME)
    files = render(plan(SHIPPED, launch, model=model, runtime=FOLDER), 1)
    assert "\nProtectHome=read-only\n" in files["sglang.service"]
