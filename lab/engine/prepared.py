"""Fills the lab's cache for the real SGLang: wheels, an environment, tiny models. Each is made once and kept."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.depot.part import Part
from lab.depot.wheel import write_wheel
from lab.machine import cache
from runbooks.engine.errors import RunbookError, UsageError

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements.txt"
STUBS = HERE / "stubs" / "sglang_cpu_stubs.py"
INVENTORY = HERE.parent / "inventory-sglang.yaml"

VERSION = "0.5.10.post1"
"""0.5.23 runs too and is 39 MB instead of 5; this one dies at once when it dies, which makes shorter demos."""

PYTHON = (3, 11)  # of a Debian 12 guest; the wheels must fit it
BINDS_AT = "/srv/lab-wheels"  # where guests see the wheels
FAULTS = tuple(f"{what}-{where}" for what in ("nan", "inf") for where in ("layer", "one", "expert", "headrow"))
MODELS = ("healthy", *FAULTS)
PREFIX = "tiny-glm-"  # of the names in the depot of the models that SGLang serves; GLM-5's own class: tiny-glm5-

ENVIRONMENT = {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}
"""What SGLang needs on a CPU; lab/inventory-sglang.yaml has the same in its runtime."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Engine:
    """What was prepared: a folder of wheels, and the Python that has them installed."""

    wheels: Path
    python: Path
    models: Path  # the depot's folder; PREFIX + name below it

    @property
    def binds(self) -> list[tuple[Path, str]]:
        """For Lab.up: read-only folders of the guests."""
        return [(self.wheels, BINDS_AT)]


def prepare(progress: Progress, *, version: str = VERSION) -> Engine:
    """Make what is missing. Raises UsageError where this machine cannot have it, in one sentence."""
    root = cache() / "engine"
    root.mkdir(parents=True, exist_ok=True)
    sources = [REQUIREMENTS, STUBS]
    wheels = Part("wheels", f"wheels-{version}", sources, lambda out, say: _wheels(out, version, say), also=version)
    wheels.ensure(root, progress)
    folder = root / wheels.folder
    python = _environment(root, folder, version, progress)
    depot = cache() / "depot"
    depot.mkdir(parents=True, exist_ok=True)
    models = Part("engine models", "models", [HERE / "tiny.py"], lambda out, say: _models(out, python, say))
    models.ensure(depot, progress)
    return Engine(folder, python, depot / "models")


def _wheels(out: Path, version: str, progress: Progress) -> None:
    progress(f"engine: wheels of SGLang {version} for the CPU (about 290 MB)")
    target = [f"--python-version={_dotted()}", "--only-binary=:all:"]
    # Where this machine's pip does not know a CPU build of torch, a folder or an index that has one can be named.
    extra = os.environ.get("RUNBOOKS_LAB_TORCH")
    links = [f"--find-links={extra}"] if extra else []
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *target, *links, "--dest", str(out)]
    done = _run([*command, "-r", str(REQUIREMENTS), f"sglang=={version}"])
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        if any("torch==" in line for line in lines):
            raise UsageError(
                "engine: this machine's pip has no CPU build of torch (2.13.0+cpu), which the real SGLang needs here",
                details=lines[-2:],
                next="RUNBOOKS_LAB_TORCH=<folder with its wheel> ./dev demo --engine sglang",
            )
        raise RunbookError("engine: the wheels could not be downloaded", details=lines[-4:])
    # A .pth file is read at every start of this environment: the stubs are there before SGLang looks for triton.
    files = {STUBS.name: STUBS.read_bytes(), "sglang_cpu_stubs.pth": b"import sglang_cpu_stubs\n"}
    write_wheel(out, "sglang_cpu_stubs", "1.0", "lab stand-in for what SGLang imports and a CPU has not", files)


def requirements(version: str = VERSION) -> list[str]:
    """Every pin of the runtime, as an inventory's `packages`."""
    pins = [line for line in REQUIREMENTS.read_text().splitlines() if line and not line.startswith("#")]
    return [*pins, "sglang-cpu-stubs==1.0", f"sglang=={version}"]


def _environment(root: Path, wheels: Path, version: str, progress: Progress) -> Path:
    """A virtual environment of this machine with the same wheels: it makes the models, and serves in the slow tests."""
    key = hashlib.sha256("\n".join([*requirements(version), STUBS.read_text(), sys.version]).encode()).hexdigest()[:12]
    folder = root / f"venv-{version}"
    python, stamp = folder / "bin" / "python", folder / "built"
    if stamp.exists() and stamp.read_text() == key:
        return python
    if sys.version_info[:2] != PYTHON:
        raise UsageError(f"engine: this is Python {sys.version.split()[0]}; guests and their wheels need {_dotted()}")
    progress("engine: an environment with them (1.4 GB)")
    shutil.rmtree(folder, ignore_errors=True)
    _must([sys.executable, "-m", "venv", str(folder)])
    install = ["-m", "pip", "install", "--quiet", "--no-compile", "--no-deps", "--no-index", f"--find-links={wheels}"]
    _must([str(python), *install, *requirements(version)])
    stamp.write_text(key)
    return python


def _models(out: Path, python: Path, progress: Progress) -> None:
    progress("engine: two tiny GLM-family models, healthy and poisoned")
    _must([str(python), str(HERE / "tiny.py"), str(out)])
    for folder in sorted(out.iterdir()):
        files = [path for path in sorted(folder.iterdir()) if path.is_file()]
        listed = [{"path": one.name, "size": one.stat().st_size, "sha256": _sha256(one)} for one in files]
        (folder / "manifest.json").write_text(json.dumps({"files": listed}, indent=2) + "\n")


def _dotted() -> str:
    return ".".join(map(str, PYTHON))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **ENVIRONMENT}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=1800, env=env, stdin=subprocess.DEVNULL
    )


def _must(command: Sequence[str]) -> None:
    done = _run(command)
    if done.returncode != 0:
        words = done.stderr.strip().splitlines()[-4:]
        raise RunbookError(
            f"engine: {Path(command[0]).name} ended with {done.returncode}", details=[*command[1:4], *words]
        )
