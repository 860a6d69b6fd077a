"""The build of a host as lists of steps, read from top to bottom; one file a stage.

base        known system, quiet apt, tools, accounts
driver      NVIDIA's open modules, pinned and held, loaded, every card present
cuda        the toolkit for kernels compiled on the host
flash-attn  a wheel, compiled once (optional)
runtime     SGLang and what it needs, immutable
model       the weights
"""

from __future__ import annotations

from functools import partial

from runbooks.engine.facts import Facts
from runbooks.engine.step import Stage
from runbooks.inventory import Loaded
from runbooks.provision import base, driver, flash_attn, model, runtime

TAGS = ("base", "driver", "cuda", "flash-attn", "runtime", "model")


def stages(facts: Facts, loaded: Loaded, host: str) -> list[Stage]:
    """Everything between an empty system and a host that `invoke deploy` can start a server on."""
    inventory = loaded.inventory
    pinned, weights = loaded.runtime_for(host), loaded.model_for(host)
    token = partial(loaded.secret, weights.token) if weights.token is not None else None
    return [
        *base.stages(facts, inventory),
        *driver.stages(facts, inventory),
        *driver.cuda_stages(inventory),
        *flash_attn.stages(facts, inventory, pinned),
        *runtime.stages(facts, inventory, pinned),
        *model.stages(inventory, weights, token),
    ]
