"""What a signature is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from runbooks.diagnose.about import About

Where = Literal["journal", "kernel", "any", "api"]

WARNING = 6
"""From this rank on a line is a warning, or an echo of a failure: it is blamed only where nothing better is found, and
never said to be certain."""


@dataclass(frozen=True)
class Signature:
    """`text` and `fix` are for the person on call; `{0}` in `text` is the pattern's first group that matched.

    `where`: `api` is what the API of a hypervisor says, which no host has in its own logs.
    `needs`: something that must stand anywhere in the same text, where a line alone does not tell (a missing torch is
    one thing in a build and another in a server). `when`: settings and the patterns of their values, `since` and
    `before`: versions of SGLang; a signature that asks for them holds only where the text tells them. `last`: the line
    must be the last one, where something stopped without a word.
    """

    name: str
    pattern: str
    text: str
    fix: str
    page: str
    source: str
    rank: int = 3
    where: Where = "journal"
    needs: str = ""
    when: Mapping[str, str] = field(default_factory=dict)
    since: str = ""
    before: str = ""
    last: bool = False

    @cached_property
    def _line(self) -> re.Pattern[str]:
        return re.compile(self.pattern, re.IGNORECASE)

    @cached_property
    def _needs(self) -> re.Pattern[str]:
        return re.compile(self.needs, re.IGNORECASE)

    def search(self, line: str) -> re.Match[str] | None:
        return self._line.search(line)

    def fits(self, text: str, about: About) -> bool:
        stands = not self.needs or bool(self._needs.search(text))
        return stands and about.has(self.when) and about.within(self.since, self.before)
