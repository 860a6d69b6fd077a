"""Texts in the world's scripts: what belongs together is left alone, word salad is told in any of them."""

from __future__ import annotations

import csv

import pytest

from runbooks.canary.probe.judge import Expect, judge
from runbooks.canary.probe.reply import Reply
from tests.canary.captures import DATA

EXPECTED = {"salad": {"word-salad"}, "words": {"no-sentences"}, "sober": set[str]()}


def texts() -> list[tuple[str, str, str]]:
    with (DATA / "texts.tsv").open(encoding="utf-8", newline="") as file:
        return [(row["kind"], row["name"], row["text"]) for row in csv.DictReader(file, delimiter="\t")]


@pytest.mark.parametrize(("kind", "name", "text"), texts(), ids=lambda value: value[:30])
def test_what_is_found_in_a_story(kind: str, name: str, text: str) -> None:
    reply = Reply(status=200, content=text, finish_reason="stop", done_seen=True, streamed=True)
    found = {finding.kind for finding in judge(reply, Expect(prose=True)) if finding.grade != "note"}
    assert found == EXPECTED[kind], name


def test_a_model_that_is_not_expected_to_tell_stories_is_not_asked_for_sentences() -> None:
    words = next(text for kind, _, text in texts() if kind == "words")
    reply = Reply(status=200, content=words, finish_reason="stop", done_seen=True)
    assert [finding for finding in judge(reply, Expect()) if finding.grade != "note"] == []
