"""The weights."""

from __future__ import annotations

from collections.abc import Callable

from runbooks.engine.secret import Secret
from runbooks.engine.step import Stage
from runbooks.inventory.shape import Inventory, Model
from runbooks.steps.downloads import Download


def stages(inventory: Inventory, model: Model, token: Callable[[], Secret] | None) -> list[Stage]:
    """Room for it first, then every file by size and digest; once whole, a later run costs one stat."""
    download = Download(
        source=model.source,
        revision=model.revision or "main",
        path=model.path,
        size=model.size_gb * 1e9,
        token=token,
        proxy=inventory.proxy,
    )
    return [Stage("model", (download,), frozenset({"model"}))]
