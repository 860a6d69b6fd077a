"""The first screen of a report: how fast is it, can I believe the number, what bounds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from runbooks.bench.charts import number
from runbooks.bench.results import BenchResult
from runbooks.bench.words import doubts, half_of, load, plus_minus

Check = tuple[str, str, bool | None]  # of the validity strip: what, its value, whether it is well; None: nobody tells
Tone = Literal["good", "warn", "bad", ""]

BOUND = {
    "memory": "Memory bandwidth",
    "communication": "Communication",
    "compute": "Arithmetic",
    "mixed": "Several things",
    "unexplained": "Unexplained",
    "no verdict": "No verdict",
}


@dataclass(frozen=True)
class Answer:
    question: str
    short: str
    more: tuple[str, ...]
    tone: Tone = ""


def of(result: BenchResult, checks: Sequence[Check], proof: str) -> tuple[Answer, Answer, Answer]:
    return _fast(result), _believe(result, checks, proof), _bounds(result)


def _fast(result: BenchResult) -> Answer:
    top = max((p for p in result.points if p["valid"]), key=_height, default=None)
    if top is None:
        return Answer("How fast is it?", "Not known", ("No point is VALID, so there is no number to use.",), "bad")
    rate, decode, half = top["tok_s"], top["decode_tok_s"], half_of(top)
    known = f"{number(rate)} tok/s" + (f" {plus_minus(half)}" if half else "")
    at = f"at {load(top)}"
    more = [f"{at} while all of them decode; {known} with the pauses for prompts"] if decode else [f"{at}, end to end"]
    if decode and top["ttft_ms"]:
        first = number(top["ttft_ms"]["p50"])
        more.append(f"a user reads {number(top['user_tok_s'])} tok/s, and sees the first token after {first} ms (p50)")
    if result.verdict.against_reference:
        more.append(result.verdict.against_reference.rstrip("."))
    return Answer("How fast is it?", f"{number(decode or rate)} tok/s", tuple(more))


def _height(point: Mapping[str, Any]) -> float:
    return float(point["open"]["offered"] if point.get("open") else point["concurrency"])


def _believe(result: BenchResult, checks: Sequence[Check], proof: str) -> Answer:
    valid, asked = sum(point["valid"] for point in result.points), len(result.run["loadgen"]["sweep"])
    counted = f"{valid} of {asked} points VALID"
    wrong = [f"{what}: {value}" for what, value, well in checks if well is False and what != "valid points"]
    if not valid:
        return Answer("Can I believe it?", "No", (counted, *wrong), "bad")
    unsure = doubts(result.points)
    if wrong or valid < asked:
        return Answer("Can I believe it?", "In part", (counted, *wrong, *unsure, proof), "warn")
    apart = [f"{what} {value}" for what, value, _ in checks if what.startswith("passes apart")]
    if unsure:
        return Answer("Can I believe it?", "Yes, but", (*unsure, counted, *apart, proof), "warn")
    return Answer("Can I believe it?", "Yes", (counted, *apart, proof), "good")


def _bounds(result: BenchResult) -> Answer:
    verdict = result.verdict
    if not verdict.shares:
        return Answer("What bounds it?", BOUND[verdict.word], (verdict.line,), "warn")
    top = verdict.shares[-1]
    parts = [(top.memory, "reading weights and KV"), (top.compute, "arithmetic")]
    parts += [] if top.communication is None else [(top.communication, "communication, measured")]
    parts.append((top.rest, "none of these" if top.communication is not None else "none of these, or not measured"))
    said = ", ".join(f"{_percent(share)} {name}" for share, name in parts)
    more = (f"a step of {number(top.step_ms)} ms: {said}",)
    return Answer("What bounds it?", BOUND[verdict.word], more, "warn" if verdict.word == "unexplained" else "")


def _percent(share: float) -> str:
    return f"{max(0.0, share):.1%}" if share < 0.02 else f"{share:.0%}"
