"""The flash-attn stand-in is built on this machine, by the real pip and ninja, from a depot of its own folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lab.depot import apt, prepare
from lab.depot.signing import Key
from lab.lab import quiet
from lab.machine import cache
from lab.network import locked
from lab.standins.driver.packages import packages
from lab.standins.flash_attn import VERSION

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def simple() -> Path:
    with locked("depot"):
        prepare(cache() / "depot", quiet)
    return cache() / "depot" / "simple"


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toolkit package, unpacked."""
    folder = tmp_path_factory.mktemp("cuda")
    key = Key(folder / "keys")
    key.ensure()
    table = [package for package in packages("6.1.0-test", key.public) if package.name == "cuda-nvcc-13-0"]
    (folder / "apt").mkdir()
    apt.build(table, key, folder / "apt", quiet)
    subprocess.run(["dpkg-deb", "-x", str(next((folder / "apt").glob("*.deb"))), str(folder)], check=True)
    return folder / "usr/local/cuda-13.0"


@pytest.fixture(scope="module")
def bare(simple: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with what the build needs, and no torch yet."""
    folder = tmp_path_factory.mktemp("venv") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    install(folder, simple, "ninja", "packaging", "psutil", "setuptools", "wheel")
    return folder


@pytest.fixture(scope="module")
def venv(bare: Path, simple: Path) -> Path:
    install(bare, simple, "torch==2.13.0")
    return bare


def install(venv: Path, simple: Path, *what: str) -> None:
    argv = [str(venv / "bin/pip"), "install", "-q", "--no-index", "--find-links", str(simple), "--no-deps", *what]
    subprocess.run(argv, check=True, env=environment(venv))


def build(venv: Path, simple: Path, out: Path, **knobs: str) -> subprocess.CompletedProcess[str]:
    argv = [str(venv / "bin/pip"), "wheel", "-v", "--no-cache-dir", "--no-build-isolation", "--no-deps", "--no-index"]
    argv += ["--find-links", str(simple), "--wheel-dir", str(out), f"flash-attn=={VERSION}"]
    return subprocess.run(argv, capture_output=True, text=True, check=False, env={**environment(venv), **knobs})


def environment(venv: Path) -> dict[str, str]:
    """Without this machine's own pip settings: they may name folders with the real torch."""
    clean = {name: value for name, value in os.environ.items() if not re.match(r"PIP_|MAX_JOBS|CUDA|FLASH", name)}
    return {**clean, "PATH": f"{venv / 'bin'}:{os.environ['PATH']}", "PIP_CONFIG_FILE": os.devnull}


def test_without_torch_it_fails_as_the_real_one(bare: Path, simple: Path, tmp_path: Path) -> None:
    """First in this file: the tests below put torch into the same environment."""
    done = build(bare, simple, tmp_path)
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named 'torch'" in done.stdout + done.stderr


def test_it_builds_and_imports(venv: Path, simple: Path, cuda: Path, tmp_path: Path) -> None:
    knobs = {"CUDA_HOME": str(cuda), "MAX_JOBS": "2", "NVCC_THREADS": "3", "FLASH_ATTN_CUDA_ARCHS": "120"}
    done = build(venv, simple, tmp_path, **knobs)
    assert done.returncode == 0, done.stderr[-2000:]
    log = done.stdout + done.stderr
    assert "Precompiled wheel not found. Building from source..." in log
    assert "Using envvar MAX_JOBS (2) as the number of workers..." in log
    assert sorted(int(n) for n in re.findall(r"\[(\d+)/73\] ", log)) == list(range(1, 74))
    assert len(re.findall(r"-gencode arch=compute_120f,code=sm_120 .*--threads 3", log)) >= 72
    install(venv, simple, str(next(tmp_path.glob("*.whl"))))
    code = "import flash_attn, flash_attn_2_cuda; print(flash_attn.__version__, flash_attn_2_cuda.kernels())"
    said = subprocess.run([str(venv / "bin/python"), "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split() == [VERSION, "72"]


def test_a_forced_build_guesses_no_wheel(venv: Path, simple: Path, cuda: Path, tmp_path: Path) -> None:
    """Stopped at once by an architecture that this nvcc does not know."""
    forced = {"FLASH_ATTENTION_FORCE_BUILD": "TRUE", "FLASH_ATTN_CUDA_ARCHS": "999"}
    done = build(venv, simple, tmp_path, CUDA_HOME=str(cuda), **forced)
    log = done.stdout + done.stderr
    assert done.returncode == 1
    assert "Guessing wheel URL" not in log
    assert re.search(r"Auto set MAX_JOBS to `\d+`, NVCC_THREADS to `4`", log)
    assert "nvcc fatal   : Unsupported gpu architecture 'compute_999'" in log
    assert "RuntimeError: Error compiling objects for extension" in log
