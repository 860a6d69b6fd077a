"""The lab's real engine: its inventory says what its code prepares, and its stubs stand in for what is absent only."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lab import engine
from lab.engine import prepared
from runbooks.inventory import load
from runbooks.sglang.argv import build


def test_the_inventory_names_what_is_prepared() -> None:
    inventory = load(engine.INVENTORY).inventory
    runtime = inventory.runtimes[inventory.runtime]
    assert list(runtime.packages) == prepared.requirements()
    assert dict(runtime.env) == engine.ENVIRONMENT
    assert runtime.index.find_links == (engine.BINDS_AT,)
    assert (runtime.index.only, runtime.dependencies) == (True, False)
    for name, model in inventory.models.items():
        assert name in prepared.MODELS
        assert model.source.endswith(f"/models/{engine.PREFIX}{name}/")


@pytest.mark.parametrize("profile", ["baseline", "final"])
def test_its_profiles_are_accepted(profile: str) -> None:
    inventory = load(engine.INVENTORY).inventory
    for model in inventory.models.values():
        launch = build(inventory, profile, model=model, runtime=inventory.runtimes[inventory.runtime])
        assert "--device" in launch.argv
        assert "--tp-size" not in launch.argv


def test_stubs_take_whatever_is_done_to_them() -> None:
    program = """
import sglang_cpu_stubs, triton, triton.language as tl
from sgl_kernel.ops import fused

@triton.jit
def kernel(x: tl.constexpr): ...

class Sub(triton.runtime.Thing): ...

assert kernel.__name__ == "kernel" and Sub() and not triton.x < 3 and list(triton.many) == []
assert (triton.a | triton.b).dtype is not None
with Sub(): fused(1, two=2)
import json  # a real package stays real
assert json.dumps({}) == "{}"
try: import no_such_package
except ModuleNotFoundError: print("fine")
"""
    env = {"PYTHONPATH": str(prepared.STUBS.parent), "PATH": ""}
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, check=False, env=env)
    assert done.stdout == "fine\n", done.stderr
