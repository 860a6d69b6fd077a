"""The memory plan against a published start, and what it says where nothing fits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from runbooks.engine.step import Verdict
from runbooks.inventory import Loaded, load
from runbooks.inventory.memory import arguments, plan, would_fit
from runbooks.provision.model import MemoryPlan

BF16: dict[str, str | int | float] = {"mem_fraction_static": 0.92, "kv_cache_dtype": "bf16"}


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load(Path(__file__).parents[2] / "inventory.yaml")


def test_a_published_start(loaded: Loaded) -> None:
    """57.06 GiB of weights, 314,304 tokens in BF16 at 0.92, 7.43 to 7.53 GiB left (GLM5 deployment guide)."""
    told = plan(loaded.inventory, loaded.model_for("glm5-a"), dict(BF16))
    assert told.weights == pytest.approx(57.06, rel=0.01)
    assert told.tokens == pytest.approx(314_304, rel=0.02)
    assert told.rest == pytest.approx(7.5, abs=0.6)
    assert told.fits


def test_fp8_holds_more(loaded: Loaded) -> None:
    model = loaded.model_for("glm5-a")
    wide, narrow = (plan(loaded.inventory, model, {**BF16, "kv_cache_dtype": kind}) for kind in ("bf16", "fp8_e4m3"))
    assert 1.7 < narrow.tokens / wide.tokens < 1.9


def test_inherited_arguments(loaded: Loaded) -> None:
    final = arguments(loaded.inventory, "final")
    assert final["quantization"] == "modelopt_fp4"
    assert final["kv_cache_dtype"] == "fp8_e4m3"


@dataclass
class Cards:
    count: int
    mib: int
    says: str


@pytest.mark.parametrize(
    "cards",
    [
        Cards(8, 81559, "kv_cache_dtype: fp8_e4m3 would|mem_fraction_static: 0.9"),
        Cards(4, 97887, "nothing on these cards would"),
    ],
)
def test_what_would_fit_is_said(loaded: Loaded, cards: Cards) -> None:
    few = msgspec.structs.replace(loaded.inventory.gpus, count=cards.count, memory_mib=cards.mib)
    inventory = msgspec.structs.replace(loaded.inventory, gpus=few)
    told = would_fit(inventory, loaded.model_for("glm5-a"), {"mem_fraction_static": 0.7})
    assert any(part in told for part in cards.says.split("|")), told


def test_the_check_stops_before_a_download_that_cannot_serve(loaded: Loaded) -> None:
    few = msgspec.structs.replace(loaded.inventory.gpus, count=4)
    inventory = msgspec.structs.replace(loaded.inventory, gpus=few)
    verdict = MemoryPlan(inventory=inventory, model=loaded.model_for("glm5-a")).plan({})
    assert isinstance(verdict, Verdict)
    assert not verdict.ok
    good = MemoryPlan(inventory=loaded.inventory, model=loaded.model_for("glm5-a")).plan({})
    assert good.ok, good
    assert good.line.startswith("final: 57.")
