"""A model copied from another host: what ssh is asked, and what becomes of its answers. Real sshd: tests/provision."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runbooks.engine.artefact import build_zipapp
from runbooks.engine.secret import Secret
from runbooks.engine.step import Change
from runbooks.steps.downloads import FETCH, Download, Ssh

FILES = {"config.json": b"{}\n", "sub folder/it's.json": b"[1]", "model.safetensors.index.json": b'{"weight_map": {}}'}


@pytest.fixture(scope="module")
def zipapp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fetch") / "fetch.pyz"
    path.write_bytes(build_zipapp(FETCH, "main:main"))
    return path


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The folder of the other host, as its own download left it."""
    folder = tmp_path / "other"
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    notes = folder / ".runbooks"
    notes.mkdir()
    known = {name: f"{len(data)} 1 {hashlib.sha256(data).hexdigest()}" for name, data in FILES.items()}
    (notes / "verified.json").write_text(json.dumps(known))
    return folder


def fetch(zipapp: Path, tmp_path: Path, source: str) -> subprocess.CompletedProcess[str]:
    """`ssh` writes down what it was asked and runs the command here."""
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/asked\nfor last; do :; done\nexec sh -c "$last"\n')
    ssh.chmod(0o755)
    argv = [sys.executable, str(zipapp), "--source", source, "--into", str(tmp_path / "here"), "--identity", "x"]
    env = {**os.environ, "FETCH_SSH": f"{ssh} -o BatchMode=yes"}
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=env, timeout=60)


def whole(folder: Path) -> bool:
    return all((folder / name).read_bytes() == data for name, data in FILES.items())


def test_every_file_comes_and_an_interrupted_one_is_continued(zipapp: Path, tmp_path: Path, other: Path) -> None:
    part = tmp_path / "here" / ".runbooks" / "part"
    part.mkdir(parents=True)
    (part / "config.json").write_bytes(b"{")
    done = fetch(zipapp, tmp_path, f"ssh://ops@glm5-a:2222{other}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert whole(tmp_path / "here")
    asked = (tmp_path / "asked").read_text()
    assert "-o BatchMode=yes -p 2222 -- ops@glm5-a" in asked
    assert f"tail -c +2 -- {other}/config.json" in asked


def test_a_file_that_changed_there_since_it_was_verified_is_refused(zipapp: Path, tmp_path: Path, other: Path) -> None:
    """It is held against the digest of what that host downloaded, so a disk that lies is found at the copy."""
    (other / "config.json").write_bytes(b"[]\n")
    done = fetch(zipapp, tmp_path, f"ssh://glm5-a{other}")
    assert done.returncode == 1
    assert "config.json: its digest is wrong" in done.stdout
    assert not (tmp_path / "here" / ".runbooks" / "identity").exists()


def test_what_ssh_says_is_what_people_read(zipapp: Path, tmp_path: Path) -> None:
    done = fetch(zipapp, tmp_path, f"ssh://glm5-a{tmp_path}/nowhere")
    assert done.returncode == 1
    assert "nowhere" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_the_key_is_an_upload_and_the_host_has_to_be_known() -> None:
    step = Download(
        source="ssh://ops@glm5-a/srv/m",
        path="/srv/m",
        size=1,
        ssh=Ssh(key=lambda: Secret("s3ntinel"), known_hosts=lambda: b"glm5-a ssh-ed25519 AAAA\n"),
    )
    looked, free = step.questions()
    change = step.plan({looked: {}, free: {"out": "/d 1 1 999 1% /"}})
    assert isinstance(change, Change)
    assert "s3ntinel" not in change.script + repr(change)
    assert set(change.uploads) == {"fetch.pyz", "ssh-key", "known_hosts"}
    assert "-o StrictHostKeyChecking=yes" in change.script
    assert subprocess.run(["sh", "-n"], input=change.script, text=True, check=False).returncode == 0
