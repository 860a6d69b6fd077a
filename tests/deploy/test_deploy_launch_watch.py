"""A server whose worker was killed and that goes on without it answers nobody: the launcher ends it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab import engine
from lab.engine.flags import source
from lab.lab import quiet
from tests.deploy.test_deploy_launch import KEY, _environment, _release, _status
from tests.lab.sglang_standin import free_port

# As SGLang 0.5.9: its worker has a title, and the server does not look after it.
_SERVER = """
import subprocess, sys, time
worker = subprocess.Popen(["sglang::scheduler", "60"], executable="/bin/sleep")
other = subprocess.Popen(["nvcc", "1"], executable="/bin/sleep")
print("serves", worker.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def server(tmp_path: Path) -> subprocess.Popen[str]:
    package = tmp_path / "packages/sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text(_SERVER)
    release = _release(tmp_path / "release", [])
    environment = _environment(release, package.parent, RUNBOOKS_WORKER_PATIENCE="1")
    return subprocess.Popen([sys.executable, str(release)], env=environment, stdout=subprocess.PIPE, text=True)


def _pid_of_worker(server: subprocess.Popen[str]) -> int:
    assert server.stdout
    return int(server.stdout.readline().split()[1])


@pytest.mark.served
def test_a_server_without_its_worker_is_ended(server: subprocess.Popen[str]) -> None:
    worker = _pid_of_worker(server)
    time.sleep(1)  # it has been seen
    subprocess.run(["kill", "-KILL", str(worker)], check=True)
    out, _ = server.communicate(timeout=20)
    assert server.returncode == -9
    assert "a worker of SGLang is gone, and it did not end within 1 s: ending it" in out


@pytest.mark.served
def test_a_server_with_its_worker_goes_on_though_a_compiler_ended(server: subprocess.Popen[str]) -> None:
    worker = _pid_of_worker(server)
    time.sleep(4)
    assert server.poll() is None
    server.kill()
    subprocess.run(["kill", "-KILL", str(worker)], check=False)
    server.communicate(timeout=20)


@pytest.mark.slow
def test_the_real_0_5_9_is_ended_when_its_scheduler_was_killed(tmp_path: Path) -> None:
    made, port = engine.prepare(quiet), free_port()
    words = [f"--model-path={made.models / 'tiny-glm-healthy'}", "--served-model-name=glm-5", f"--port={port}"]
    words += ["--device=cpu", "--attention-backend=torch_native", "--mem-fraction-static=0.05"]
    release = _release(tmp_path / "release", [*words, "--max-total-tokens=65536"])
    environment = _environment(release, source("0.5.9"), **engine.ENVIRONMENT, RUNBOOKS_WORKER_PATIENCE="8")
    log = tmp_path / "log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [str(made.python), str(release)], env=environment, stdout=out, stderr=out, start_new_session=True
        )
        try:
            until = time.monotonic() + 150
            while _status(port, KEY) != 200 and time.monotonic() < until and server.poll() is None:
                time.sleep(1)
            assert _status(port, KEY) == 200, log.read_text(errors="replace")[-1500:]
            time.sleep(3)
            found = subprocess.run(
                ["pgrep", "-P", str(server.pid), "-f", "^sglang::sched"], capture_output=True, text=True
            )
            subprocess.run(["kill", "-KILL", *found.stdout.split()[:1]], check=True)
            assert server.wait(40) == -9
        finally:
            if server.poll() is None:
                os.killpg(server.pid, 9)
    assert "a worker of SGLang is gone" in log.read_text(errors="replace")
