"""No kind of step without a sample: the lab compares preview and run, and hands hostile names, over all of them."""

from __future__ import annotations

from pathlib import Path

from tests.steps.every_kind import BY_NAME, ELSEWHERE, NAMELESS, SAMPLES, kinds

TESTS = Path(__file__).parents[1]


def test_every_kind_has_a_sample_or_a_test_of_its_own() -> None:
    found = set(kinds())
    assert len(found) > 25
    assert found == {type(sample).__name__ for sample in SAMPLES} | set(ELSEWHERE)
    for path in ELSEWHERE.values():
        assert (TESTS / path).exists()


def test_every_kind_is_tried_with_hostile_names() -> None:
    assert set(kinds()) == set(BY_NAME) | NAMELESS | set(ELSEWHERE)
