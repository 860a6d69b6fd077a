"""The stages of a host in their order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from runbooks import paths
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
    read = secret or loaded.secret
    access = model.Access(
        token=partial(read, weights.token) if weights.token is not None else None,
        ssh_key=partial(read, weights.ssh_key) if weights.ssh_key is not None else None,
        known_hosts=(loaded.folder / paths.expand(inventory.known_hosts)).read_bytes,
    )
    return [
        *base.stages(facts, inventory, pinned),
        *driver.stages(facts, inventory),
        *driver.cuda_stages(inventory),
        *flash_attn.stages(facts, inventory, pinned),
        *runtime.stages(facts, inventory, pinned),
        *model.stages(inventory, weights, access),
    ]
