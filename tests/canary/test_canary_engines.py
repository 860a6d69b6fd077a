"""The canary on real engines on this CPU: SGLang of three versions, and GLM-5's own class by transformers."""

from __future__ import annotations

import pytest

from bench.canary.engines import healthy, runs, table
from lab.engine.prepared import FAULTS
from lab.engine.serve import ENGINES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("engine", ENGINES)
def test_every_poison_is_called_nan(engine: str) -> None:
    """Also one expert, which only some tokens reach, and NaN that the server itself replaces: there its log tells."""
    found = list(runs([engine], ["healthy", *FAULTS]))
    print(f"\n{table(found)}")
    assert [str(run) for run in found if not run.right] == []
    assert len(found) == 1 + len(FAULTS)


def test_a_hundred_healthy_runs_raise_no_alarm() -> None:
    found = list(healthy(list(ENGINES), 100))
    print(f"\n{table(found)}")
    assert [str(run) for run in found if not run.right] == []
    assert len(found) == 100
