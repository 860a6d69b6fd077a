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
from runbooks.steps.downloads import Ssh

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

    def later(ref: SecretRef | None) -> Callable[[], Secret] | None:
        return partial(read, ref) if ref is not None else None

    def ssh(key: SecretRef | None) -> Ssh:
        return Ssh(key=later(key), known_hosts=(loaded.folder / paths.expand(inventory.known_hosts)).read_bytes)

    return [
        *base.stages(facts, inventory, pinned),
        *driver.stages(facts, inventory),
        *driver.cuda_stages(inventory),
        *flash_attn.stages(facts, inventory, pinned, ssh(inventory.flash_attn.ssh_key)),
        *runtime.stages(facts, inventory, pinned),
        *model.stages(inventory, pinned, weights, later(weights.token), ssh(weights.ssh_key)),
    ]
