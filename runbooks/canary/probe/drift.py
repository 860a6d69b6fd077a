"""What a server said when it was deployed, and whether it still says the like.

Only greedy answers to fixed questions are kept. Batch sizes, kernels and graphs change the last bits of a logit, so a
long greedy answer may leave the old one somewhere and go its own way: that is no drift. Drift is most answers beginning
otherwise, or tokens that are still chosen but are no longer nearly as likely.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .judge import DEGRADED, Finding, excerpt
from .reply import Reply

BEGINNING = 6
"""Words. Of a short answer, all of it."""
SHIFT = 0.5
"""Mean change of a logprob, in nats, over the tokens that both answers begin with. Other batch sizes move it by
hundredths; a tenth would already be much."""
FEWEST = 4
"""Tokens in common below which logprobs are not compared."""


def keep(path: Path, answers: Mapping[str, Reply]) -> bool:
    """Write the answers down, whole or not at all. A folder that is not there or not ours to write: False."""
    document = {name: {"text": one.text, "logprobs": _chosen(one)} for name, one in answers.items()}
    draft = path.with_name(f".{path.name}.draft")
    with suppress(OSError):
        draft.write_text(json.dumps(document, indent=1), encoding="utf-8")
        draft.replace(path)
        return True
    return False


def kept(path: Path) -> Mapping[str, Any]:
    """What was written down; empty where nothing was, or nothing that can be read."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def compare(before: Mapping[str, Any], answers: Mapping[str, Reply]) -> Finding | None:
    """One finding for the whole, or None where the answers are as they were."""
    pairs = [(name, before[name], now) for name, now in answers.items() if isinstance(before.get(name), Mapping)]
    other = [
        (name, str(old.get("text")), now.text) for name, old, now in pairs if not _alike(str(old.get("text")), now.text)
    ]
    if len(other) >= 2 and 2 * len(other) > len(pairs):
        name, was, now = other[0]
        text = f"{len(other)} of {len(pairs)} greedy answers begin otherwise than at the deploy: "
        return Finding("drift", DEGRADED, f"{text}{name} was {excerpt(was, 60)!r}, is {excerpt(now, 60)!r}")
    for name, old, reply in pairs:
        shift = _shift(old.get("logprobs") or [], _chosen(reply))
        if shift is not None and shift > SHIFT:
            text = f"the same tokens as at the deploy, with logprobs that moved by {shift:.2f} on average"
            return Finding("drift", DEGRADED, f"{text}: {name} {excerpt(reply.text, 60)!r}")
    return None


def _alike(was: str, now: str) -> bool:
    one, two = ([word.strip(".,;:!?\"'*").lower() for word in text.split()][:BEGINNING] for text in (was, now))
    return len(set(one) & set(two)) * 2 >= max(len(set(one)), len(set(two)), 1)


def _chosen(reply: Reply) -> list[list[Any]]:
    return [[entry.token, entry.value] for entry in reply.logprobs]


def _shift(was: Sequence[Any], now: Sequence[Any]) -> float | None:
    moved = []
    for (token, before), (same, after) in zip(was, now, strict=False):
        if token != same or before is None or after is None:
            break
        moved.append(abs(after - before))
    return statistics.fmean(moved) if len(moved) >= FEWEST else None
