"""What a signature is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Where = Literal["journal", "kernel", "any"]


@dataclass(frozen=True)
class Signature:
    """`text` and `fix` are for the person on call; `{0}` in `text` is the pattern's first group."""

    name: str
    pattern: str
    text: str
    fix: str
    page: str
    source: str
    rank: int = 3
    where: Where = "journal"

    def search(self, line: str) -> re.Match[str] | None:
        return re.search(self.pattern, line, re.IGNORECASE)
