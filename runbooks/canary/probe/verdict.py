"""From the findings of all prompts to one verdict: what no single reply can tell. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .judge import DEAD, DEGRADED, NAN, Finding, sound
from .reply import Reply
from .shape import loop


@dataclass(frozen=True)
class Judged:
    """A reply, the prompt that it answers, and what the judge says."""

    prompt: str
    reply: Reply
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Named:
    """A finding with the prompt that failed; `after` where it is about the server and not about a reply."""

    prompt: str
    finding: Finding


def settle(judged: Sequence[Judged], *, sends_done: bool = False) -> list[Named]:
    """All findings. `sends_done`: this engine always ends a stream with [DONE], so that a missing one is a fault."""
    named = [Named(one.prompt, finding) for one in judged for finding in one.findings]
    if sends_done or any(one.reply.done_seen for one in judged):
        named = [_strict(entry) for entry in named]
    constant = _constant_token(judged)
    return [*named, constant] if constant else named


def _strict(entry: Named) -> Named:
    if entry.finding.kind != "no-done":
        return entry
    return replace(entry, finding=Finding("no-done", DEGRADED, "the stream ended without [DONE]"))


def _constant_token(judged: Sequence[Judged]) -> Named | None:
    """One token from the first position on, the same one whatever the question: argmax over NaN always picks the same
    place.

    Logprobs that are finite and differ prove the opposite: numbers that are sound, and a kernel that is wrong.
    """
    stuck = [one for one in judged if any(finding.kind == "one-token" for finding in one.findings)]
    if any(sound(one.reply) for one in stuck):
        return None
    units = Counter(found.unit.strip() for one in stuck if (found := loop(one.reply.text)))
    if not units or units.most_common(1)[0][1] < 2:
        return None
    unit, times = units.most_common(1)[0]
    evidence = f"{times} different questions were answered with nothing but {unit!r}: argmax over NaN"
    return Named(stuck[-1].prompt, Finding("constant-token", NAN, evidence))


def verdict(findings: Sequence[Finding], *, answered: bool) -> str:
    """`answered`: at least one prompt got an answer."""
    grades = {finding.grade for finding in findings}
    if NAN in grades:
        return "nan"
    if DEAD in grades or not answered:
        return "dead"
    return "degraded" if DEGRADED in grades else "healthy"
