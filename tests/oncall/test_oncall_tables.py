"""The tables of bench/oncall: every page has its fault, every case its cause, every block runs against its fault."""

from __future__ import annotations

import pytest

from bench import tables
from bench.oncall import diagnosis, pages
from bench.oncall.faults import FAULTS
from bench.oncall.world import world
from runbooks import oncall
from runbooks.oncall.blocks import blocks


def test_every_page_has_a_fault() -> None:
    assert set(FAULTS) == set(oncall.names())


def test_the_diagnosis_is_right_in_every_case() -> None:
    told = diagnosis.table()
    assert [one for one in told if not one.right] == []
    assert len(told) > 300


def test_a_page_that_is_not_there_is_refused_before_a_lab_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        tables.main(["pages", "--lab", "never-made", "nan-output", "nan-outptu"])
    assert "no such page: nan-outptu" in capsys.readouterr().err


@pytest.mark.lab
@pytest.mark.slow
def test_every_block_of_every_page_runs_against_its_fault(capsys: pytest.CaptureFixture[str]) -> None:
    with world() as made, capsys.disabled():
        ran = list(pages.told(made))
    assert [(one.page, one.block) for one in ran if not one.ran] == []
    assert len(ran) == sum(len(blocks(oncall.load(name).text)) for name in oncall.names())
