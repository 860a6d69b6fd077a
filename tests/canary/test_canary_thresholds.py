"""Thresholds are fixed on one engine, SGLang 0.5.23, and then reported on engines that had no say in them.

`pytest -s tests/canary/test_canary_thresholds.py` prints the table: per sign the largest value of a sound answer, the
threshold, the smallest value of an answer that the sign has to catch; and what the fixed thresholds do elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pytest

from runbooks.canary.probe import shape
from runbooks.canary.probe.judge import TOKEN_ZERO_RUN, judge
from runbooks.canary.probe.reply import Reply
from tests.canary.captures import EXPECTED, expect, judged

CALIBRATED = "sglang0523-"


def _marks(reply: Reply) -> float:
    character, length = shape.longest_run(reply.text)
    return length if character == "!" else 0


def _strewn(reply: Reply) -> float:
    return shape.odd_marks(reply.text)


def _looped(reply: Reply) -> float:
    found = shape.loop(reply.text)
    return found.times if found and len(found.unit) <= 12 else 0


def _null(reply: Reply) -> float:
    return sum(entry.value is None for entry in reply.logprobs)


@dataclass(frozen=True)
class Sign:
    """`least`: the value from which on the judge calls an answer sick. `caught`: the faults that show it."""

    value: Callable[[Reply], float]
    least: float
    caught: tuple[str, ...]


SIGNS: Mapping[str, Sign] = {
    "'!' in a row": Sign(_marks, TOKEN_ZERO_RUN, ("nan-layer", "nan-one", "inf-layer")),
    "'!' out of place": Sign(_strewn, 2, ("nan-expert",)),
    "times a loop's unit": Sign(_looped, 8, ("nan-headrow",)),
    "null logprobs": Sign(_null, 1, ("nan-layer", "nan-one", "inf-layer", "nan-headrow")),
}


def replies(*, calibrated: bool, fault: str) -> Iterator[tuple[str, str, Reply]]:
    for engine in EXPECTED:
        hidden = "nandetect" in engine  # shows none of these signs: it replaces the logits
        if engine.startswith(CALIBRATED) == calibrated and engine.endswith(fault) and not hidden:
            yield from ((engine, one.prompt, one.reply) for one in judged(engine))


@pytest.mark.parametrize("name", SIGNS)
def test_the_calibrating_engine_fixes_the_threshold(name: str) -> None:
    sign = SIGNS[name]
    sound = max(sign.value(reply) for _, _, reply in replies(calibrated=True, fault="healthy"))
    broken = [max(sign.value(reply) for _, _, reply in replies(calibrated=True, fault=fault)) for fault in sign.caught]
    print(f"\n{name:22} sound up to {sound:3.0f}, threshold {sign.least:2.0f}, each fault reaches {min(broken):3.0f}")
    assert sound < sign.least <= min(broken)


def test_what_the_fixed_thresholds_do_on_other_engines() -> None:
    sound = list(replies(calibrated=False, fault="healthy"))
    alarms = [
        (engine, case, name)
        for engine, case, reply in sound
        for name, sign in SIGNS.items()
        if sign.value(reply) >= sign.least
    ]
    seen, missed = 0, []
    for fault in sorted({fault for sign in SIGNS.values() for fault in sign.caught}):
        for engine in sorted({engine for engine, _, _ in replies(calibrated=False, fault=fault)}):
            seen += 1
            caught = any(
                sign.value(reply) >= sign.least
                for of, _, reply in replies(calibrated=False, fault=fault)
                if of == engine
                for sign in SIGNS.values()
            )
            missed += [] if caught else [engine]
    print(f"\nother engines: {len(sound)} sound answers, {len(alarms)} alarms; {seen} broken servers, missed: {missed}")
    assert alarms == []
    assert [
        engine for engine in missed if "sample-cb" not in engine
    ] == []  # those answer every request with a bare 500


def test_the_judge_uses_these_thresholds() -> None:
    for calibrated in (True, False):
        for engine, case, reply in replies(calibrated=calibrated, fault="healthy"):
            assert all(one.grade == "note" for one in judge(reply, expect(engine, case))), (engine, case)
