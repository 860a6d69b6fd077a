"""Which SGLang this is: version and argument table stand in table.json, which the wheel's builder puts beside this
file."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

LABEL = "lab stand-in for SGLang"


@cache
def table() -> dict[str, Any]:
    """{"version": "0.5.23", "arguments": [{"options", "dest", "kind", "type", "choices", ...}]}, one line of
    runbooks/sglang/flags.json each."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / "table.json").read_text())
    return found


def version() -> str:
    return str(table()["version"])


def at_least(wanted: str, *, this: str | None = None) -> bool:
    """Whether this release is `wanted` or newer."""
    return _key(this or version()) >= _key(wanted)


def _key(text: str) -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)\.(\d+)(?:\.post(\d+))?", text)
    if not found:
        raise ValueError(f"no SGLang version: {text!r}")
    return tuple(int(part or 0) for part in found.groups())
