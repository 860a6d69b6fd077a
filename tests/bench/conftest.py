"""A connection to this machine, as the engine's tests have it; the load generator; a server that misleads it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runbooks.engine.artefact import build_zipapp
from tests.engine.conftest import local as local

TRAPS = Path(__file__).parents[2] / "lab" / "traps.py"


@pytest.fixture(scope="session")
def traps() -> Iterator[str]:
    """The address of lab/traps.py; a trap is chosen by the first part of the path."""
    with subprocess.Popen([sys.executable, str(TRAPS)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


@pytest.fixture(scope="session")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artefact itself, as it is pushed to a host."""
    path = tmp_path_factory.mktemp("artefact") / "loadgen.pyz"
    path.write_bytes(build_zipapp("runbooks.bench.loadgen", "cli:main"))
    return path
