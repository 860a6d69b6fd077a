"""`--json`: the table of its events in report.py is the whole truth about every event that is emitted anywhere."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from runbooks.engine import report
from runbooks.options import WHERE

ROOT = Path(__file__).parents[2]
EMITS = re.compile(r"\b_?report\.emit$|^report\.py:self\.emit$|^run\.py:self\._say$")
ROW = re.compile(r"^\|\s*(\w*)\s*\|(.*)\|$")


def documented() -> dict[str, str]:
    """Kind -> what the table says of its data."""
    told: dict[str, str] = defaultdict(str)
    kind = ""
    for line in (report.__doc__ or "").splitlines():
        if (row := ROW.match(line)) and row[1] not in ("event",):
            kind = row[1] or kind
            told[kind] += f" {row[2]}"
    return {kind: text for kind, text in told.items() if kind}


def emitted() -> Iterator[tuple[str, str, str]]:
    """Where, which kind, which field, for every event that any part emits; a kind that is a variable is not seen."""
    for path in sorted((ROOT / "runbooks").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not EMITS.search(f"{path.name}:{ast.unparse(node.func)}"):
                continue
            if node.args and isinstance(first := node.args[0], ast.Constant) and isinstance(first.value, str):
                for keyword in node.keywords:
                    if keyword.arg not in (None, "host", "text"):
                        yield path.name, first.value, str(keyword.arg)


def test_every_field_of_every_event_is_in_the_table() -> None:
    table = documented()
    assert set(table) == {"heading", "note", "progress", "output", "stage", "step", "table", "result"}
    found = list(emitted())
    assert {kind for _, kind, _ in found} == set(table) - {"heading"}
    missing = [row for row in found if not re.search(rf"\b{row[2]}\b", table.get(row[1], ""))]
    assert missing == []


def test_people_are_told_where_the_table_is() -> None:
    path = re.search(r"[\w/]+\.py", WHERE["json"])
    assert path is not None
    assert (ROOT / path[0]) == Path(report.__file__)
