"""The named code blocks of a page: what can be run, whether it changes something, where it belongs, and when.

The line that opens one, as CONTRIBUTING.md has it; what stands in brackets may be left out:

    ```sh name=NAME read-only|changes [host] [wait=MINUTESm] [when="..."]

`host`: it is typed on the host, not here. `wait`: how long its effect may take to show, such as a start. `when`: only
then; a person is shown it and decides, and nothing runs it unasked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PART = re.compile(
    r"^## (?P<heading>[^\n]+)$"
    r"|^(?P<fence>```sh name=(?P<name>[a-z-]+) (?P<kind>read-only|changes)(?P<host> host)?"
    r'(?: wait=(?P<wait>\d+)m)?(?: when="(?P<when>[^"\n]+)")?\n)(?P<script>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)
FIRST = "How bad is it?"  # its blocks tell whether anything is wrong
LAST = "How to know that it worked"  # its blocks tell whether the page has helped
_ELSEWHERE = re.compile(
    r"^(?!invoke )|^invoke (?:vm\.|doctor --node|provision(?: --(?:yes|check|diff))*$"
    r"|provision .*--tags \S*\b(?:node|vm)\b)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """`section` is the heading above it. `on_host`: it is typed on the host, not on the controller. `wait`: seconds."""

    name: str
    section: str
    script: str
    changes: bool
    on_host: bool
    wait: float = 0.0
    when: str = ""
    fence: str = ""

    @property
    def elsewhere(self) -> bool:
        """It works without the host: here alone, on the node, or it makes the VM."""
        return not self.on_host and bool(_ELSEWHERE.search(self.script))

    @property
    def mark(self) -> str:
        """`back: changes something, typed here; only when it began with a deploy`."""
        kind = "changes something" if self.changes else "looks only"
        where = "on the host" if self.on_host else "here"
        return f"{self.name}: {kind}, typed {where}" + (f"; only when {self.when}" if self.when else "")


def blocks(text: str) -> list[Block]:
    """In the order of the page."""
    found, section = [], ""
    for match in _PART.finditer(text):
        if match["heading"]:
            section = match["heading"]
        else:
            found.append(
                Block(
                    name=match["name"],
                    section=section,
                    script=match["script"].strip(),
                    changes=match["kind"] == "changes",
                    on_host=bool(match["host"]),
                    wait=60.0 * int(match["wait"] or 0),
                    when=match["when"] or "",
                    fence=match["fence"],
                )
            )
    return found


def attributed(text: str) -> str:
    """Readers of Markdown are shown nothing of `name=back changes host`; a line above the block says it."""
    for block in blocks(text):
        text = text.replace(block.fence, f"*{block.mark}*\n\n```sh\n", 1)
    return text
