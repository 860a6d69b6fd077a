"""The parts of the depot, and what each is built from."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import runbooks.sglang
from lab.depot import apt
from lab.depot.part import SCRATCH, Part, Progress
from lab.depot.signing import Key
from lab.standins import cloud_image, flash_attn, models, sglang, torch
from lab.standins.driver.packages import HERE as DRIVER
from lab.standins.driver.packages import packages
from runbooks.engine.errors import RunbookError, UsageError

_TOOLS = {"dpkg-deb": "dpkg", "gpg": "gnupg"}  # command -> Debian package
# What flash-attn's build takes beside torch, and what `hf` takes.
BUILD_NEEDS = ("ninja==1.13.0", "packaging==26.0", "psutil==7.2.2", "setuptools==80.9.0", "wheel==0.46.3")
HUB_CLI = (
    "huggingface-hub==2.4.0", "anyio==4.16.0", "click==8.5.1", "filelock==4.3.1", "fsspec==2026.9.0", "h11==0.16.0",
    "hf-xet==1.8.0", "httpcore2==2.16.2", "httpx2==2.16.2", "idna==3.20", "pyyaml==6.0.4", "tqdm==4.70.1",
    "truststore==0.10.5", "typing-extensions==4.16.0",
)  # fmt: skip
_PLATFORM = ("--python-version", "3.11", "--platform", "manylinux2014_x86_64", "--only-binary", ":all:")
_DEPOT = Path(__file__).parent


def ensure(root: Path, progress: Progress) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for left in root.glob(f"{SCRATCH}*"):  # of a build that was killed
        shutil.rmtree(left)
    for part in parts(root):
        part.ensure(root, progress)


def parts(root: Path) -> list[Part]:
    wheel = _DEPOT / "wheel.py"
    return [
        _apt(root),
        Part("flash-attn", "simple", [_folder(flash_attn)], lambda out, _: _ignore(flash_attn.build_sdist(out))),
        Part("torch", "simple", [_folder(torch), wheel], lambda out, _: _ignore(torch.build_wheel(out))),
        _real("build needs", BUILD_NEEDS),
        _real("hugging face CLI", HUB_CLI),
        Part("sglang", "simple", [_folder(sglang), _folder(runbooks.sglang)], _sglang),
        Part("cloud image", "images", [Path(cloud_image.__file__)], lambda out, _: _ignore(cloud_image.write(out))),
        Part("models", "models", [Path(models.__file__)], lambda out, _: _ignore(models.write(out))),
    ]


def _apt(root: Path) -> Part:
    key = Key(root / ".keys")
    kernel = os.uname().release

    def build(out: Path, progress: Progress) -> None:
        _require_tools()
        key.ensure()
        apt.build(packages(kernel, key.public), key, out, progress)

    code = [_DEPOT / name for name in ("apt.py", "signing.py")]
    return Part("apt", "apt", [DRIVER, *code], build, also=kernel)


def _sglang(out: Path, progress: Progress) -> None:
    """One simulated SGLang for each version whose argument table the product knows."""
    flags = json.loads((_folder(runbooks.sglang) / "flags.json").read_text())
    for version in flags["versions"]:
        sglang.build_wheel(version, out)


def _real(name: str, packages: Sequence[str]) -> Part:
    """No stand-ins: the packages themselves, from wherever pip of this machine gets its own."""

    def download(out: Path, progress: Progress) -> None:
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *_PLATFORM, "--dest", str(out)]
        done = subprocess.run([*argv, *packages], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            details = (done.stderr or done.stdout).strip().splitlines()[-5:]
            raise RunbookError(f"depot: pip could not download the {name}", details=details)

    return Part(name, "simple", [], download, also=" ".join(packages))


def _folder(module: ModuleType) -> Path:
    assert module.__file__ is not None
    return Path(module.__file__).parent


def _ignore(_result: object) -> None:
    """A builder's return value that no part needs."""


def _require_tools() -> None:
    missing = sorted(package for command, package in _TOOLS.items() if shutil.which(command) is None)
    if missing:
        names = " ".join(missing)
        raise UsageError(f"the lab's apt repository needs packages that are not installed: {names}", next="./dev setup")
