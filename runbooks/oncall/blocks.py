"""The named code blocks of a page: what can be run, whether it changes something, and where it belongs."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PART = re.compile(
    r"^## (?P<heading>[^\n]+)$"
    r"|^```sh name=(?P<name>[a-z-]+) (?P<kind>read-only|changes)(?P<host> host)?\n(?P<script>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
FIRST = "How bad is it?"  # its blocks tell whether anything is wrong
LAST = "How to know that it worked"  # its blocks tell whether the page has helped


@dataclass(frozen=True)
class Block:
    """`section` is the heading above it. `on_host`: it is typed on the host, not on the controller."""

    name: str
    section: str
    script: str
    changes: bool
    on_host: bool


def blocks(text: str) -> list[Block]:
    """In the order of the page."""
    found, section = [], ""
    for match in _PART.finditer(text):
        if match["heading"]:
            section = match["heading"]
        else:
            changes, on_host = match["kind"] == "changes", bool(match["host"])
            found.append(Block(match["name"], section, match["script"].strip(), changes, on_host))
    return found
