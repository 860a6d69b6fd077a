"""The wheels of SGLang's own gateway, downloaded once into the lab's cache; guests take it from there, offline."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from lab.depot.part import Part
from lab.machine import cache
from runbooks.engine.errors import RunbookError

PACKAGE = "sglang-router==0.3.2"
PYTHON = "3.11"  # of a Debian 12 guest
BINDS_AT = "/srv/lab-router"  # where guests see the wheels


def prepare(progress: Callable[[str], None]) -> Path:
    """The folder of wheels; about 25 MB the first time."""
    root = cache() / "router"
    root.mkdir(parents=True, exist_ok=True)
    part = Part("router wheels", "wheels", [Path(__file__)], _download, also=PACKAGE)
    part.ensure(root, progress)
    return root / part.folder


def _download(out: Path, progress: Callable[[str], None]) -> None:
    progress(f"router: wheels of {PACKAGE}")
    target = [f"--python-version={PYTHON}", "--only-binary=:all:", "--dest", str(out)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *target, PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise RunbookError("router: the wheels could not be downloaded", details=lines[-4:])
