"""What users of other tools complain about, and which test says that it does not happen here.

Complaints that cannot happen to us are left out: trailing another tool's core (mitogen-hq/mitogen#974, #1021, #1272),
escaping that cannot be switched off (fabric/fabric#788: a script is a script here).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.faults.causes import FAULTS

TESTS = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("data") / "complaints.tsv"
ROWS = [line.split("\t") for line in TABLE.read_text().splitlines()[1:]]


@pytest.mark.parametrize(("where", "complaint", "answer", "test"), ROWS, ids=[row[3] for row in ROWS])
def test_a_complaint_has_its_answer(where: str, complaint: str, answer: str, test: str) -> None:
    assert where
    assert complaint
    assert answer
    if test.startswith("fault:"):
        assert test.removeprefix("fault:") in FAULTS
        return
    path, _, name = test.partition("::")
    assert re.search(rf"(?m)^def {name}\(", (TESTS / path).read_text()), f"{path} has no {name}"
