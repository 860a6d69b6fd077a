"""The load generator as it is pushed to a host, run as a program against a server of this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

SHORT = ("--input-len", "40", "--output-len", "32", "--warmup", "0", "--window", "0.4", "--drain", "2")
ONCE = ("--again", "0")  # also where this machine is too busy for the client: what is counted here is no time


def words(pyz: Path, url: str, out: Path, *more: str, python: str = sys.executable) -> list[str]:
    return [python, "-I", str(pyz), "--json", "--url", url, "--out", str(out), *SHORT, *ONCE, *more]


def measured(pyz: Path, url: str, out: Path, *more: str, **env: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit code, and the events that it told."""
    done = subprocess.run(
        words(pyz, url, out, *more), capture_output=True, text=True, timeout=240, check=False, env=env or None
    )
    assert done.stderr == ""
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def truth(url: str) -> dict[str, int]:
    """What a server of lab/traps.py saw of the measured requests."""
    with urllib.request.urlopen(f"{url}/truth", timeout=10) as answer:
        told: dict[str, int] = json.load(answer)
    return told


def error_of(events: list[dict[str, Any]]) -> str:
    return str(next(event["text"] for event in events if event["event"] == "error"))
