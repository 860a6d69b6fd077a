"""The installed canary: metrics, a state that outlives restarts, and the units that run it."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from runbooks import paths
from runbooks.canary import install
from runbooks.canary.probe import cli, watch
from runbooks.inventory import load
from tests.canary.scripted_server import Scripted

ROOT = Path(__file__).parents[2]
FAULT = {"kind": "token-zero", "grade": "nan", "prompt": "arithmetic", "evidence": "!!!!"}
NOTE = {"kind": "no-logprobs", "grade": "note", "prompt": "capital", "evidence": ""}


def verdict(said: str, *findings: dict[str, str]) -> dict[str, object]:
    return {"verdict": said, "findings": list(findings), "seconds": 2.5, "requests": 3, "tokens": 100}


def samples(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in re.findall(r"^(runbooks_canary_\S+) (\S+)$", text, re.MULTILINE)}


def test_counts_go_on_over_restarts_and_the_last_healthy_run_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "state.json"
    watch.remember(file, verdict("healthy"), now=1000.0)
    watch.remember(file, verdict("nan", FAULT, NOTE), now=1600.0)
    state = watch.remember(file, verdict("nan", FAULT), now=2200.0)
    assert (state["since"], state["last_healthy"], state["unhealthy_runs"]) == (1600.0, 1000.0, 2)
    found = samples(watch.metrics(state))
    assert found['runbooks_canary_verdict{verdict="nan"}'] == 1
    assert found['runbooks_canary_verdict{verdict="healthy"}'] == 0
    assert found['runbooks_canary_runs_total{verdict="nan"}'] == 2
    assert found["runbooks_canary_requests_total"] == 9
    assert found["runbooks_canary_last_run_timestamp_seconds"] == 2200
    assert found['runbooks_canary_fault{prompt="arithmetic",kind="token-zero"}'] == 1
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("broken", ["", "{", "[]"])
def test_a_broken_state_begins_anew(tmp_path: Path, broken: str) -> None:
    file = tmp_path / "state.json"
    file.write_text(broken)
    assert watch.remember(file, verdict("healthy"))["runs"] == {"healthy": 1}


def test_every_family_has_its_help_and_type(tmp_path: Path) -> None:
    text = watch.metrics(watch.remember(tmp_path / "state", verdict("dead", FAULT)))
    families = re.findall(r"^# TYPE (\S+) (?:gauge|counter)$", text, re.MULTILINE)
    assert len(families) == len(set(families)) == text.count("# HELP ") == 9
    assert {re.split(r"[{ ]", line)[0] for line in text.splitlines() if line[0] != "#"} == set(families)


def test_the_probe_writes_both_files(tmp_path: Path) -> None:
    state, text = tmp_path / "state.json", tmp_path / "canary.prom"
    (tmp_path / "key").write_text("secret\n")
    with Scripted(lambda asked: "!" * 24) as server, contextlib.redirect_stdout(io.StringIO()):
        words = ["--url", server.url, "--state", str(state), "--textfile", str(text), "--key-file"]
        assert cli.main([*words, str(tmp_path / "key")]) == 3
    assert json.loads(state.read_text())["verdict"] == "nan"
    assert samples(text.read_text())['runbooks_canary_verdict{verdict="nan"}'] == 1
    assert "secret" not in state.read_text() + text.read_text()


def test_the_units() -> None:
    loaded = load(ROOT / "inventory.yaml")
    name = next(iter(loaded.inventory.hosts))
    server, model = loaded.inventory.server, loaded.model_for(name)
    files = install.units("/opt/runbooks/tools/x.pyz", server, model, every="10m", battery="quick")
    service, timer = files.values()
    assert "OnUnitInactiveSec=10m" in timer
    assert ("LoadCredential=" in service) == (server.api_key is not None)
    assert f"--textfile {install.TEXTFILE}" in service
    assert "SuccessExitStatus=1 3 4" in service  # a verdict is no failure of the canary


def test_it_leaves_out_a_turn_while_a_benchmark_runs(tmp_path: Path) -> None:
    script = install.IDLE.replace(paths.JOBS, str(tmp_path))

    def idle() -> bool:
        code = subprocess.run(["sh", "-c", script], check=False).returncode
        assert code in (0, 9)
        return code == 0

    assert idle(), "no job yet"
    for name in ("bench-1", "collectives-2", "canary-3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
    assert idle(), "all ended"
    for name, runs in (("bench-1", False), ("collectives-2", False), ("canary-3", True)):
        with (tmp_path / name / "lock").open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            assert idle() is runs, name
    assert idle()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
@pytest.mark.parametrize("key", [False, True])
def test_systemd_takes_the_units(tmp_path: Path, key: bool) -> None:
    loaded = load(ROOT / "inventory.yaml")
    shipped = loaded.inventory.server
    server = shipped if key else msgspec.structs.replace(shipped, api_key=None)
    model = loaded.model_for(next(iter(loaded.inventory.hosts)))
    files = install.units("/opt/runbooks/tools/x.pyz", server, model, every="10m", battery="quick")
    for path, text in files.items():
        (tmp_path / Path(path).name).write_text(text)
    for path in files:
        verify = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=one", str(tmp_path / Path(path).name)]
        done = subprocess.run(verify, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
