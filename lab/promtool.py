"""Prometheus' own checker of rules: taken out of Debian's package into the lab's cache, so nothing has to be installed.

`apt-get install prometheus` would start a server on whoever runs the tests.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from lab.machine import cache
from lab.network import locked
from runbooks.engine.errors import RunbookError

PACKAGE = "prometheus"


def promtool() -> Path:
    """The program; fetched once with this machine's apt. Raises RunbookError where that does not work."""
    installed = shutil.which("promtool")
    if installed:
        return Path(installed)
    kept = cache() / "promtool"
    with locked("promtool"):
        if not kept.exists():
            _fetch(kept)
    return kept


def _fetch(to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="promtool-") as folder:
        done = subprocess.run(
            ["apt-get", "-q", "download", PACKAGE], cwd=folder, capture_output=True, text=True, check=False
        )
        found = list(Path(folder).glob("*.deb"))
        if done.returncode or not found:
            raise RunbookError(f"apt does not give the package {PACKAGE}", details=done.stderr.splitlines()[-3:])
        subprocess.run(["dpkg-deb", "-x", str(found[0]), folder], check=True)
        part = to.with_name(f".{to.name}.part")
        shutil.copy2(Path(folder) / "usr/bin/promtool", part)
        part.replace(to)
