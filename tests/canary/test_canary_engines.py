"""The canary on real engines on this CPU: SGLang of three versions, and GLM-5's own class by transformers."""

from __future__ import annotations

import pytest

from bench.canary.engines import ask, healthy, table
from lab.engine.prepared import FAULTS
from lab.engine.serve import ENGINES, serving

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_poison_is_called_nan(engine: str, fault: str) -> None:
    """Also one expert, which only some tokens reach, and NaN that the server itself replaces: there its log tells."""
    with serving(engine, fault) as at:
        run = ask(at, engine, fault)
    assert run.verdict == "nan", run


def test_a_hundred_healthy_runs_raise_no_alarm() -> None:
    found = list(healthy(list(ENGINES), 100))
    print(table(found))
    assert len(found) == 100
    assert [run for run in found if not run.right] == []
