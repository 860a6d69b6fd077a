"""Text that breaks YAML's own reader is a problem with its line, not an exception."""

from __future__ import annotations

import pytest

from runbooks.inventory.source import read

LAUGHS = "".join(
    f"{name}: &{name} [{', '.join([item] * 9)}]\n"
    for name, item in zip("abcdefgh", ["x", *(f"*{c}" for c in "abcdefg")], strict=True)
)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a: 1\nb: !!bool maybe\n", 2, "'maybe'"),
        ("a: 1\nb: !!timestamp soon\n", 2, "'soon'"),
        ("a: 1\nb: !!int abc\n", 2, "'abc'"),
        ("a: 1\nb: " + "9" * 10_000 + "\n", 2, "'999"),
        ("a: 1\nb: \x07\n", 2, "#x0007"),
        (LAUGHS, 1, "aliases"),
        ("[" * 5000 + "]" * 5000, 1, "nested"),
        ("{a: " * 3000 + "1" + "}" * 3000, 1, "nested"),
    ],
    ids=["bool", "timestamp", "int", "huge number", "control", "laughs", "deep list", "deep mapping"],
)
def test_what_the_reader_chokes_on_is_said_with_its_line(text: str, line: int, said: str) -> None:
    problems = read(text).problems
    assert [problem.line for problem in problems] == [line]
    assert said in problems[0].text
    assert len(problems[0].text) < 200
