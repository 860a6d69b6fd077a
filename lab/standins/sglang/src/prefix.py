"""The prefix cache: which pages of a prompt were seen before.

Page by page like SGLang's radix tree, with pages found by a running hash.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence


class PrefixCache:
    """Least recently used pages go first. `page` and `capacity` in tokens."""

    def __init__(self, *, page: int, capacity: int, enabled: bool = True) -> None:
        self._page = page
        self._room = max(capacity // page, 1)
        self._enabled = enabled
        self._pages: OrderedDict[int, None] = OrderedDict()

    def match(self, tokens: Sequence[int]) -> int:
        """Tokens at the start that are cached. At least one token is always left to compute."""
        found = 0
        for key in self._keys(tokens[:-1]):
            if key not in self._pages:
                break
            self._pages.move_to_end(key)
            found += self._page
        return found

    def insert(self, tokens: Sequence[int]) -> None:
        if not self._enabled:
            return
        for key in self._keys(tokens):
            self._pages[key] = None
            self._pages.move_to_end(key)
        while len(self._pages) > self._room:
            self._pages.popitem(last=False)

    def clear(self) -> None:
        self._pages.clear()

    @property
    def tokens(self) -> int:
        return len(self._pages) * self._page

    def _keys(self, tokens: Sequence[int]) -> Iterator[int]:
        key = 0
        for start in range(0, len(tokens) - self._page + 1, self._page):
            key = hash((key, *tokens[start : start + self._page]))
            yield key
