"""The judge against every captured answer of real engines: no false alarm, and only the known miss."""

from __future__ import annotations

import pytest

from runbooks.canary.probe.host import NAN_LINES
from tests.canary.captures import DATA, EXPECTED, judged, verdict_of

BROKEN = [engine for engine in EXPECTED if "nan-" in engine or "inf-" in engine or engine == "hf-random"]
HIDDEN = "sglang059-nandetect-glm4moe-nan-headrow"


def test_every_capture_has_an_expectation() -> None:
    assert {path.name for path in DATA.iterdir() if path.is_dir()} == set(EXPECTED)


@pytest.mark.parametrize("engine", EXPECTED)
def test_the_verdict_on_an_engine(engine: str) -> None:
    assert verdict_of(engine) == EXPECTED[engine]


def test_precision_and_recall_over_engines() -> None:
    called = {engine for engine in EXPECTED if verdict_of(engine) != "healthy"}
    right = called & set(BROKEN)
    print(f"\nengines: {len(right)} of {len(BROKEN)} broken ones caught, {len(called - right)} false alarms")
    assert called - right == set()
    assert set(BROKEN) - called == {HIDDEN}


def test_the_hidden_one_is_told_by_its_journal() -> None:
    assert NAN_LINES.search("[2026-11-29 15:06:12] Detected errors during sampling! NaN in the logits.")


def test_no_reply_of_a_healthy_engine_is_called_wrong() -> None:
    healthy = [engine for engine in EXPECTED if engine not in BROKEN]
    replies = [one for engine in healthy for one in judged(engine)]
    wrong = [(one.prompt, finding) for one in replies for finding in one.findings if finding.grade != "note"]
    print(f"\nreplies of healthy engines: {len(replies)}, called wrong: {len(wrong)}")
    assert len(replies) >= 50
    assert wrong == []


def test_single_replies_of_engines_with_one_broken_layer_are_all_caught() -> None:
    engines = [engine for engine in BROKEN if engine.endswith(("nan-layer", "nan-one", "inf-layer"))]
    replies = [one for engine in engines for one in judged(engine)]
    missed = [one.prompt for one in replies if not any(finding.grade != "note" for finding in one.findings)]
    assert len(replies) >= 60
    assert missed == []
