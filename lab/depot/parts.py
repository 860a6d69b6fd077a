"""The parts of the depot, and what each is built from."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from lab.depot import apt
from lab.depot.part import Part, Progress
from lab.depot.signing import Key
from lab.standins.driver.packages import HERE as DRIVER
from lab.standins.driver.packages import packages
from runbooks.engine.errors import UsageError

_TOOLS = {"dpkg-deb": "dpkg", "gpg": "gnupg"}  # command -> Debian package
_DEPOT = Path(__file__).parent


def prepare(root: Path, progress: Progress) -> None:
    """Build what is missing below `root`, or was built from other sources. A second call only looks."""
    root.mkdir(parents=True, exist_ok=True)
    for part in parts(root):
        part.ensure(root, progress)


def parts(root: Path) -> list[Part]:
    return [_apt(root)]


def _apt(root: Path) -> Part:
    key = Key(root / ".keys")
    kernel = os.uname().release

    def build(out: Path, progress: Progress) -> None:
        _require_tools()
        key.ensure()
        apt.build(packages(kernel, key.public), key, out, progress)

    code = [_DEPOT / name for name in ("apt.py", "signing.py")]
    return Part("apt", "apt", [DRIVER, *code], build, also=kernel)


def _require_tools() -> None:
    missing = sorted(package for command, package in _TOOLS.items() if shutil.which(command) is None)
    if missing:
        names = " ".join(missing)
        raise UsageError(f"the lab's apt repository needs packages that are not installed: {names}", next="./dev setup")
