"""The launcher with the real SGLang of three versions: it wants the key, and neither log nor command line shows it."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from lab import engine
from lab.engine.flags import source
from lab.lab import quiet
from tests.deploy.test_deploy_launch import KEY, _release, _status
from tests.lab.sglang_standin import free_port


def _command_lines(group: int) -> str:
    """Of every process in a process group."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(folder.name)) == group:
                found.append((folder / "cmdline").read_bytes().decode(errors="replace"))
        except (OSError, ValueError):  # it ended while we looked
            continue
    return "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.9", "0.5.10.post1", "0.5.23"])
def test_the_real_server_wants_the_key_and_shows_it_nowhere(version: str, tmp_path: Path) -> None:
    made, port = engine.prepare(quiet), free_port()
    words = [f"--model-path={made.models / 'tiny-glm-healthy'}", "--served-model-name=glm-5", f"--port={port}"]
    words += ["--device=cpu", "--attention-backend=torch_native", "--mem-fraction-static=0.05"]
    release = _release(tmp_path / "release", [*words, "--max-total-tokens=65536"])
    environment = {**os.environ, **engine.ENVIRONMENT, "PYTHONPATH": str(source(version))}
    environment["CREDENTIALS_DIRECTORY"] = str(release.parent / "credentials")
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(made.python), str(release)],
            env=environment,
            stdout=out,
            stderr=out,
            start_new_session=True,
            cwd=tmp_path,
        )
        try:
            until = time.monotonic() + 150
            while _status(port, KEY) != 200 and time.monotonic() < until and process.poll() is None:
                time.sleep(1)
            said = log.read_text(errors="replace")
            assert (_status(port, KEY), _status(port, None)) == (200, 401), said[-1500:]
            lines = _command_lines(process.pid)
        finally:
            os.killpg(process.pid, 9)
            process.wait(20)
    said = log.read_text(errors="replace")
    assert "server_args=" in said
    assert "***" in said
    assert KEY not in said
    assert lines
    assert KEY not in lines
