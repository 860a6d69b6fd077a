"""Which weights were served: one figure for all of their files, from what was checked when they came."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from runbooks.bench import provenance
from runbooks.engine import shell
from runbooks.engine.transport import Connection

pytestmark = pytest.mark.served


def test_the_weights_are_told_by_their_digests(
    local: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "weights" / ".runbooks"
    notes.mkdir(parents=True)
    (notes / "identity").write_text("hf:owner/name main\n")
    (notes / "verified.json").write_text(json.dumps({"b": "5 17 d2", "a": "4 18 d1"}))
    words = [sys.executable, "-c", "import time; time.sleep(60)", "--model-path", str(notes.parent), "--port", "1"]
    with subprocess.Popen(words) as process:
        try:
            (tmp_path / "systemctl").write_text(f"#!/bin/sh\necho {process.pid}\n")
            (tmp_path / "systemctl").chmod(0o755)
            monkeypatch.setattr(shell, "ENVIRONMENT", f"LC_ALL=C.UTF-8 PATH={tmp_path}:/usr/bin:/bin")
            told = provenance.gather(local)["server"]["checkpoint"]
            (notes / "verified.json").unlink()
            assert provenance.gather(local)["server"]["checkpoint"] == ""
        finally:
            process.kill()
    digest = hashlib.sha256(b"a d1\nb d2\n").hexdigest()
    assert told == f"hf:owner/name main: 2 files, SHA-256 of their names and digests {digest}"
