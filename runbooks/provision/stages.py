"""The stages of a host in their order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from runbooks.engine.facts import Facts
from runbooks.engine.secret import Secret
from runbooks.engine.step import Stage
from runbooks.inventory import Loaded
from runbooks.inventory.shape import SecretRef
from runbooks.provision import base, below, driver, flash_attn, model, runtime

TAGS = (*below.TAGS, "base", "driver", "cuda", "flash-attn", "runtime", "model")


def stages(
    facts: Facts, loaded: Loaded, host: str, *, secret: Callable[[SecretRef], Secret] | None = None
) -> list[Stage]:
    """Everything between an empty system and a host that `invoke deploy` can start a server on.

    `secret` reads a secret when it is needed (default: straight from its source).
    """
    inventory = loaded.inventory
    pinned, weights = loaded.runtime_for(host), loaded.model_for(host)
    token = partial(secret or loaded.secret, weights.token) if weights.token is not None else None
    return [
        *base.stages(facts, inventory, pinned),
        *driver.stages(facts, inventory),
        *driver.cuda_stages(inventory),
        *flash_attn.stages(facts, inventory, pinned),
        *runtime.stages(facts, inventory, pinned),
        *model.stages(facts, inventory, weights, token),
    ]
