"""What is written down of a host: each group answers for itself, keys never come along, our own version is told."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runbooks import paths
from runbooks.bench import provenance
from runbooks.engine import shell
from runbooks.engine.errors import NoAnswer
from runbooks.engine.transport import Connection

SECRET = "sk-very-secret-41"


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.mark.served
def test_a_server_is_told_without_its_keys(local: Connection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process with a key in its words and in its environment, as systemd would name it; cards that answer slowly."""
    monkeypatch.setattr(paths, "CURRENT", str(tmp_path))
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    (site / "sglang-0.5.23.dist-info").mkdir(parents=True)
    (site / "torch-2.11.0.dist-info").mkdir()
    (site / "sglang-0.5.23.dist-info" / "METADATA").write_text("Name: sglang\nSummary: a fast engine\n")
    (tmp_path / "bin").mkdir()
    shutil.copy("/bin/sleep", tmp_path / "bin" / "python")
    words = [str(tmp_path / "bin" / "python"), "60"]
    environment = {
        "NCCL_P2P_DISABLE": "1",
        "SGLANG_API_KEY": SECRET,
        "HF_TOKEN": SECRET,
        "SGL_TOKEN": SECRET,
        "LANG": "C",
    }
    with subprocess.Popen(words, env=environment) as process:
        try:
            program(tmp_path, "systemctl", f"echo {process.pid}")
            program(
                tmp_path, "nvidia-smi", f"echo \"smi $*\"; echo 'api_key={SECRET}'; printf '\\033[4mGPU0\\033[0m\\n'"
            )
            monkeypatch.setattr(shell, "ENVIRONMENT", f"LC_ALL=C.UTF-8 PATH={tmp_path}:/usr/bin:/bin")
            told = provenance.gather(local)
        finally:
            process.kill()
    assert told["server"]["argv"] == " ".join(words)
    assert told["server"]["environment"] == "NCCL_P2P_DISABLE=1"
    assert told["server"]["packages"].split() == ["sglang-0.5.23.dist-info", "torch-2.11.0.dist-info"]
    assert told["server"]["package_summary"] == "a fast engine"
    assert told["gpus"]["topology"].startswith("smi topo -m\n")
    assert told["gpus"]["topology"].endswith("GPU0")  # without its colours
    assert told["gpus"]["peer_to_peer"].startswith("smi topo -p2p r")
    assert SECRET not in str(told)
    uname = subprocess.run(["uname", "-srvm"], capture_output=True, text=True, check=True).stdout.strip()
    assert told["system"]["kernel"] == uname
    assert re.fullmatch(r"[0-9a-f-]{36}", told["system"]["boot_id"])
    assert told["system"]["memory"].startswith("MemTotal")
    assert all(told["system"][name] for name in ("os", "cpu", "command_line"))


@pytest.mark.served
def test_keys_among_the_words_of_a_server_are_stars(
    local: Connection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(paths, "CURRENT", str(tmp_path))
    sleeper = "import time; time.sleep(60)"
    words = [sys.executable, "-c", sleeper, "--api-key", SECRET, f"--admin-api-key={SECRET}", "--tp-size", "8"]
    with subprocess.Popen(words) as process:
        try:
            program(tmp_path, "systemctl", f"echo {process.pid}")
            monkeypatch.setattr(shell, "ENVIRONMENT", f"LC_ALL=C.UTF-8 PATH={tmp_path}:/usr/bin:/bin")
            told = provenance.gather(local)
        finally:
            process.kill()
    assert SECRET not in str(told)
    assert re.search(r" --api-key \*+ --admin-api-key=\*+ --tp-size 8$", told["server"]["argv"])


def test_a_group_that_hangs_costs_its_own_answer_alone(local: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: str, **_: object) -> None:
        raise NoAnswer("no answer within 30 s")

    real = local.ask
    monkeypatch.setattr(local, "ask", lambda text, **more: hang(text) if "nvidia-smi" in text else real(text, **more))
    told = provenance.gather(local)
    assert told["gpus"] == {"no answer": "within 30 s"}
    assert told["system"]["kernel"].startswith("Linux")


def test_the_tool_names_itself(tmp_path: Path) -> None:
    told = provenance.tool()
    assert re.fullmatch(r"[0-9a-f]{12}", told["loadgen"])
    assert re.fullmatch(r"\d+\.\d+.*", told["version"])
    assert told == provenance.tool()
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-C", str(tmp_path)]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"], ["tag", "v1"]):
        subprocess.run([*git, *words], check=True)
    assert re.fullmatch(r"[0-9a-f]{12}", provenance._commit(tmp_path))
    (tmp_path / "a").touch()
    subprocess.run([*git, "add", "a"], check=True)
    assert provenance._commit(tmp_path).endswith("-dirty")
    assert provenance._commit(tmp_path / "absent") == ""
