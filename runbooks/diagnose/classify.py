"""The first cause of a failure, from the unit's journal, the kernel log and systemd's own fields."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from runbooks.diagnose.signature import Signature
from runbooks.diagnose.signatures import HARMLESS, SIGNATURES

_PREFIX = re.compile(r"^\w{3} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)? \S+ [^:\[]+(?:\[\d+\])?: |^\[[\d\- :]+\] ")
_ATTEMPT = re.compile(r"systemd\[\d+\]: Starting |: Starting sglang|^Starting sglang")
_HARMLESS = re.compile("|".join(HARMLESS))
_TELLING = re.compile(r"error|exception|fail|killed|abort|fatal|cannot|denied|refused", re.IGNORECASE)
LONGEST = 240  # characters of a line that are looked at for display


@dataclass(frozen=True)
class Cause:
    """`certain` is False where only an echo of the failure was found, or nothing at all; `evidence` are the lines
    that say so."""

    name: str
    text: str
    next: str
    page: str
    source: str
    evidence: tuple[str, ...]
    certain: bool = True


def classify(journal: str, kernel: str = "", unit: Mapping[str, str] | None = None) -> Cause:
    """The cause that stands nearest to the beginning of the crash chain. `unit` are fields of `systemctl show`.

    The last attempt to start is looked at first: an older failure that was mended must not be blamed.
    """
    unit = unit or {}
    attempts = _attempts(journal)
    for text in (attempts[-1], journal) if len(attempts) > 1 else (journal,):
        found = _best(text, kernel)
        if found is not None:
            signature, line, match = found
            return _cause(signature, line, match, text)
    return _unknown(journal, unit)


def _attempts(journal: str) -> list[str]:
    starts = [match.start() for match in _ATTEMPT.finditer(journal)]
    if not starts:
        return [journal]
    edges = [0, *starts[1:], len(journal)]
    return [journal[begin:end] for begin, end in pairwise(edges)]


def _best(journal: str, kernel: str) -> tuple[Signature, str, re.Match[str]] | None:
    best: tuple[Signature, str, re.Match[str]] | None = None
    for where, text in (("kernel", kernel), ("journal", journal)):
        for line in _lines(text):
            for signature in SIGNATURES:
                if best is not None and signature.rank >= best[0].rank:
                    continue
                if signature.where not in ("any", where):
                    continue
                match = signature.search(line)
                if match:
                    best = (signature, line, match)
    return best


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.strip() and not _HARMLESS.search(line):
            yield _PREFIX.sub("", _PREFIX.sub("", line)).strip()[:4000]


def _cause(signature: Signature, line: str, match: re.Match[str], journal: str) -> Cause:
    detail = next((group for group in match.groups() if group), match[0])
    evidence = [line[:LONGEST]]
    if signature.rank >= 7:
        evidence += [other for other in telling(journal, 4) if other != line[:LONGEST]]
    text = signature.text.format(detail[:LONGEST])
    return Cause(
        signature.name, text, signature.fix, signature.page, signature.source, tuple(evidence), signature.rank < 7
    )


def _unknown(journal: str, unit: Mapping[str, str]) -> Cause:
    if unit.get("ActiveState") in ("active", "activating") and unit.get("Result", "success") == "success":
        lines = tuple(list(_lines(journal))[-3:])
        text = "it runs and has not said anything wrong yet: still starting, or slow"
        return Cause("starting", text, "invoke health", "start-slow", "", lines, certain=False)
    how = " ".join(f"{field}={unit[field]}" for field in ("Result", "ExecMainCode", "ExecMainStatus") if field in unit)
    text = f"no known signature ({how or 'systemd says nothing'}); these lines tell most"
    fix = "journalctl -u sglang -e, and journalctl -k -e for the kernel's side"
    return Cause("unknown", text, fix, "server-down", "", tuple(telling(journal, 6)), certain=False)


def telling(journal: str, most: int) -> list[str]:
    """The last lines that speak of an error; where there are none, the last lines."""
    lines = list(_lines(journal))
    found = [line[:LONGEST] for line in lines if _TELLING.search(line)]
    return (found or [line[:LONGEST] for line in lines])[-most:]
