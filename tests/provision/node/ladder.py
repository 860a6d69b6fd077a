#!/usr/bin/python3
# In the place of a runtime's python, whose torch would need cards: the real artefact, with the ladder's outcome from
# /etc/lab-ladder. Its JSON, its verdict and its exit code are its own.
import importlib
import sys
from pathlib import Path
from typing import Any

sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0])
cli: Any = importlib.import_module("collectives.cli")


def measure(_options: object, _folder: object) -> dict[str, object]:
    word = Path("/etc/lab-ladder").read_text().strip()
    why = ["a stand-in of the lab climbed no ladder"]
    parts: dict[str, object] = {"format": 1, "errors": [], "ranks": 8, "cards": [], "granted": [], "environment": {}}
    return parts | {"collectives": [], "token_bytes": 12288, "ladder": {"word": word, "why": why}}


cli.measure = measure
cli.main()
