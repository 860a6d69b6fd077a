"""Events of one answer are alike: they differ in their text and two counts, which need no parser of JSON.

The first event is parsed; of a later one it is enough to see that it is the same bytes but for these. What differs in
anything else, or has an escape in its text, is parsed like the first: the result is the same, only later.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TOTALS = re.compile(rb'("(?:completion|total)_tokens": ?)\d+')
_NUMBER = rb"(0|[1-9]\d*)"


class Alike(NamedTuple):
    """The bytes before the text, and what comes behind it, from its closing quote on."""

    head: bytes
    tail: re.Pattern[bytes]
    counts: bool

    def read(self, data: bytes) -> tuple[str, int | None] | None:
        """Text and completion_tokens (None: no usage in it); None where it is not sure that all else is the same."""
        if not data.startswith(self.head):
            return None
        at = len(self.head)
        end = data.find(b'"', at)
        found = self.tail.fullmatch(data, end) if end > at else None
        if found is None:
            return None
        try:
            text = data[at:end].decode()
        except UnicodeDecodeError:
            return None
        if "\\" in text or not text.isprintable():
            return None
        return text, int(found[1]) if self.counts else None


def alike(data: bytes, text: str) -> Alike | None:
    """What is like this event, whose text was parsed; None where the text does not stand in it once and plainly."""
    literal = b'"%s"' % text.encode(errors="surrogatepass")
    at = data.find(literal)
    if not text or data[:at].rstrip()[-1:] != b":" or data.find(literal, at + 1) >= 0:
        return None
    behind = data[at + len(literal) - 1 :]
    pieces = _TOTALS.split(behind)  # the constant parts, and between them the names of the counts
    names = [name for name in pieces[1::2] if name.startswith(b'"completion')]
    pattern = re.escape(pieces[0])
    for name, constant in zip(pieces[1::2], pieces[2::2], strict=True):
        number = _NUMBER if name.startswith(b'"completion') else rb"(?:0|[1-9]\d*)"
        pattern += re.escape(name) + number + re.escape(constant)
    if len(names) > 1:
        return None
    return Alike(data[: at + 1], re.compile(pattern), bool(names))
