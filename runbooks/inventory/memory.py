"""What a server will need of each card's memory: weights, cache, and what is left. Arithmetic on the inventory only.

SGLang gives the cache what `mem_fraction_static` of the free memory leaves beside the weights. The latent cache of MLA
is not shared out by tensor parallelism: every card holds all of it. The sums are held against a published start of
GLM-5-NVFP4 on eight of these cards: 57.06 GiB of weights and 29.32 GiB of cache, 314,304 tokens, at 0.92 in BF16
(local-inference-lab/rtx6kpro, GLM5_NVFP4_Blackwell_deployment_guide).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runbooks.inventory.shape import Inventory, Model, Profile, Scalar

GIB = 1024**3
CONTEXT_GIB = 1.6  # CUDA context, driver and NCCL on each card, before the weights
DEFAULT_FRACTION = 0.88  # about what SGLang chooses by itself on cards of this size
FP8_SHARE = (576 + 132) / (576 * 2 + 132)  # the latent in FP8 (one byte), the index keys as they are
ROOM_GIB = 4.0  # graphs, activations and workspace beside both


@dataclass(frozen=True)
class Plan:
    """GiB a card. `tokens` fit in its cache; `longest` is the most that one request may have."""

    total: float
    weights: float
    fraction: float
    tokens: int
    longest: int

    @property
    def cache(self) -> float:
        return max(0.0, (self.total - CONTEXT_GIB) * self.fraction - self.weights)

    @property
    def rest(self) -> float:
        return self.total - CONTEXT_GIB - self.weights - self.cache

    @property
    def starts(self) -> bool:
        """The weights leave room for a cache at all; without it SGLang ends with 'Not enough memory'."""
        return self.tokens > 0

    @property
    def fits(self) -> bool:
        """The model starts, and one request of the whole context finds room."""
        return self.tokens >= self.longest and self.rest >= ROOM_GIB

    def say(self) -> str:
        parts = f"{self.weights:.1f} GiB of weights and {self.cache:.1f} of cache on each card of {self.total:.1f}"
        return f"{parts}: {self.tokens:,} tokens, {self.rest:.1f} GiB left"


def plan(inventory: Inventory, model: Model, profile: Mapping[str, Scalar]) -> Plan:
    """`profile`: its arguments with everything inherited, under canonical names."""
    ranks = int(profile.get("tp_size") or inventory.gpus.count) * int(profile.get("pp_size") or 1)
    total = inventory.gpus.memory_mib / 1024
    shared = model.size_gb * 1e9 - model.shape.replicated_bytes
    weights = (shared / ranks + model.shape.replicated_bytes) / GIB
    fraction = float(profile.get("mem_fraction_static") or DEFAULT_FRACTION)
    a_token = model.shape.kv_bytes_per_token * (FP8_SHARE if is_fp8(profile) else 1.0)
    cache = max(0.0, (total - CONTEXT_GIB) * fraction - weights) * GIB
    longest = int(profile.get("context_length") or model.context_length)
    return Plan(total, weights, fraction, int(cache / a_token), longest)


def is_fp8(profile: Mapping[str, Scalar]) -> bool:
    return str(profile.get("kv_cache_dtype") or "").startswith("fp8")


def arguments(inventory: Inventory, name: str) -> dict[str, Scalar]:
    """A profile's arguments with those it extends; one that is None was taken away."""
    chain: list[Profile] = []
    following: str | None = name
    while following is not None:
        chain.append(inventory.profiles[following])
        following = chain[-1].extends
    found: dict[str, Scalar] = {}
    for profile in reversed(chain):
        for key, value in profile.args.items():
            found.pop(key, None)
            if value is not None:
                found[key] = value
    return found


def would_fit(inventory: Inventory, model: Model, profile: Mapping[str, Scalar]) -> str:
    """What to change in a profile that does not fit: the first of these that does, in words."""
    base = plan(inventory, model, profile)
    for fraction in (0.85, 0.88, 0.9, 0.92, 0.94):
        tried = plan(inventory, model, {**profile, "mem_fraction_static": fraction})
        if tried.fits:
            return f"mem_fraction_static: {fraction} would ({tried.tokens:,} tokens, {tried.rest:.1f} GiB left)"
    if not is_fp8(profile):
        tried = plan(inventory, model, {**profile, "kv_cache_dtype": "fp8_e4m3"})
        if tried.fits:
            return f"kv_cache_dtype: fp8_e4m3 would ({tried.tokens:,} tokens)"
    for fraction in (0.9, 0.92):
        tried = plan(inventory, model, {**profile, "mem_fraction_static": fraction})
        if 0 < tried.tokens < base.longest and tried.rest >= ROOM_GIB:
            return f"context_length: {tried.tokens // 1024 * 1024} would, at mem_fraction_static: {fraction}"
    return "nothing on these cards would: a smaller checkpoint, or more cards"
