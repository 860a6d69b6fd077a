"""Where a runtime of the inventory stands on a host: a folder named by everything that decides what is in it."""

from __future__ import annotations

import hashlib
import json

import msgspec

from runbooks import paths
from runbooks.inventory.shape import FlashAttn, Runtime

NO_PART_OF_IT = ("why", "index", "state", "evidence")
"""What says something about a runtime, and decides no byte of it."""

LATER = ("overrides", "sources", "patches", "python_archive")
"""Empty ones are left out of the hash: what was built before they existed keeps its name."""


def runtime_path(runtime: Runtime, flash_attn: FlashAttn | None) -> str:
    """The folder of a runtime with flash-attn, or, with None (or a flash-attn that is not enabled), without it."""
    pinned = {name: value for name, value in msgspec.to_builtins(runtime).items() if name not in NO_PART_OF_IT}
    for name in LATER:
        if not pinned[name]:
            del pinned[name]
    if flash_attn is not None and flash_attn.enabled:
        pinned["flash-attn"] = [flash_attn.version, flash_attn.archs]
    digest = hashlib.sha256(json.dumps(pinned, sort_keys=True).encode()).hexdigest()
    return f"{paths.RUNTIMES}/{digest[:12]}"


def runtime_paths(runtime: Runtime, flash_attn: FlashAttn) -> tuple[str, ...]:
    """Where the runtime may be, best first: a host on which an optional flash-attn failed has the one without.

    A folder counts only with its mark `built` in it.
    """
    with_it, without = runtime_path(runtime, flash_attn), runtime_path(runtime, None)
    return (with_it,) if with_it == without or flash_attn.required else (with_it, without)
