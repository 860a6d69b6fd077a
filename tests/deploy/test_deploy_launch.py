"""The launcher: SGLang gets its key, and no log line, command line or spawned worker shows it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.standins import models
from lab.standins.sglang.build import stage
from runbooks.deploy import launch

KEY = "sk-launch-0123456789"

# Logs as SGLang does, here and in a spawned worker, through every road that a record can take.
_SERVER = """
import logging, multiprocessing, sys
from sglang import worker
if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    logging.getLogger("sglang").info(f"server_args=ServerArgs(api_key='{sys.argv[-1].partition('=')[2]}')")
    logging.getLogger("uvicorn").info("%s and %r", sys.argv, {"key": sys.argv[-1]})
    process = multiprocessing.get_context("spawn").Process(target=worker.run, args=(sys.argv[-1],))
    process.start(); process.join()
    print("argv", sys.argv[:-1], process.exitcode)
"""
_WORKER = """
import logging, sys
def run(word):
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    logging.info("worker got %s", word)
    logging.info("broken %d", word)
"""


def _release(folder: Path, argv: list[str]) -> Path:
    folder.mkdir()
    shutil.copy(launch.__file__, folder / "launch.py")
    (folder / "argv.json").write_text(json.dumps(argv))
    credentials = folder / "credentials"
    credentials.mkdir()
    (credentials / "api-key").write_text(KEY + "\n")
    return folder / "launch.py"


def _environment(release: Path, packages: Path, **more: str) -> dict[str, str]:
    credentials = str(release.parent / "credentials")
    return {**os.environ, "PYTHONPATH": str(packages), "CREDENTIALS_DIRECTORY": credentials, **more}


def test_no_record_shows_the_key_in_any_process(tmp_path: Path) -> None:
    package = tmp_path / "packages" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "launch_server.py").write_text(_SERVER)
    (package / "worker.py").write_text(_WORKER)
    release = _release(tmp_path / "release", ["--model-path", "/m"])
    done = subprocess.run(
        [sys.executable, str(release)],
        env=_environment(release, package.parent),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "server_args=ServerArgs(api_key='***')" in done.stdout
    assert "worker got --api-key=***" in done.stdout
    assert "argv ['launch_server.py', '--model-path', '/m'] 0" in done.stdout
    assert KEY not in done.stdout
    assert "'broken %d' could not be formatted with ('--api-key=***',)" in done.stdout
    assert KEY not in done.stderr


def test_without_a_key_nothing_is_added(tmp_path: Path) -> None:
    package = tmp_path / "packages" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "launch_server.py").write_text("import sys; print(sys.argv)")
    release = _release(tmp_path / "release", ["--model-path", "/m"])
    environment = _environment(release, package.parent)
    del environment["CREDENTIALS_DIRECTORY"]
    done = subprocess.run([sys.executable, str(release)], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['launch_server.py', '--model-path', '/m']"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int, Path]]:
    """The simulated SGLang under the launcher, with a key."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    knobs = tmp_path / "knobs.json"
    knobs.write_text('{"start_delay": 0, "warmup": 0}')
    model = models.write(tmp_path / "model")
    release = _release(tmp_path / "release", ["--model-path", str(model), "--port", str(port), "--tp-size", "8"])
    environment = _environment(release, stage("0.5.23", tmp_path / "packages"), LAB_SGLANG_KNOBS=str(knobs))
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, str(release)], env=environment, stdout=out, stderr=out)
        try:
            yield process, port, log
        finally:
            process.kill()
            process.wait(10)


def _status(port: int, key: str | None) -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/models")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def test_the_server_wants_the_key_and_shows_it_nowhere(server: tuple[subprocess.Popen[bytes], int, Path]) -> None:
    process, port, log = server
    until = time.monotonic() + 20
    while _status(port, KEY) != 200 and time.monotonic() < until and process.poll() is None:
        time.sleep(0.1)
    assert (_status(port, KEY), _status(port, None), _status(port, "wrong")) == (200, 401, 401), log.read_text()[-800:]
    assert KEY not in Path(f"/proc/{process.pid}/cmdline").read_text()
    text = log.read_text()
    assert "api_key" in text
    assert KEY not in text
