"""What a profile should change against the one that serves: said before anything is deployed.

Only what the what-if table knows is predicted (bench/whatif.py: published figures, and bounds from a healthy node);
for everything else the prediction is that nobody knows, which is what the experiment is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from runbooks.bench import measured
from runbooks.bench.ceiling import GLM5_KERNELS, gpu_named
from runbooks.bench.whatif import OPTIONS
from runbooks.inventory import Loaded
from runbooks.sglang.argv import Resolved, resolve

P2P_OFF = "NCCL_P2P_DISABLE"


@dataclass(frozen=True)
class Prediction:
    """`low`, `high`: times the rate at `streams`; None where nobody knows. `changes` are all that differs."""

    streams: int
    changes: tuple[str, ...]
    options: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None

    def say(self) -> str:
        if not self.changes:
            return "the same settings: x 1.00"
        if self.low is None or self.high is None:
            return "not known"
        span = f"x {self.low:.2f}" if self.high - self.low < 0.005 else f"x {self.low:.2f} to {self.high:.2f}"
        return f"{span} ({', '.join(self.options)})"


def predict(loaded: Loaded, host: str, before: str, profile: str, streams: int) -> Prediction:
    """Raises UsageError for a profile that the inventory does not have."""
    profiles = loaded.inventory.profiles
    one, other = resolve(profiles, before), resolve(profiles, profile)
    changes = tuple(_changes(one, other))
    shape, gpus = loaded.model_for(host).shape, loaded.inventory.gpus
    known = measured.best_known(shape, gpu_named(gpus.name), gpus.count)  # the tables are of this case alone
    if not known or streams not in GLM5_KERNELS:
        return Prediction(streams, changes)
    factors = {name: (factor, why) for name, factor, why in OPTIONS}
    named, low, high, unknown = [], 1.0, 1.0, False
    for change in changes:
        option = _option(change.partition(":")[0])
        if option is None:
            unknown = True
            continue
        factor, why = factors[option]
        span = (1.0, factor(streams)) if why.startswith("at most") else (factor(streams),) * 2
        if _has(one, option):  # it is taken away
            span = (1 / span[1], 1 / span[0])
        if option not in named:
            named.append(option)
            low, high = low * span[0], high * span[1]
    if unknown or not named:
        return Prediction(streams, changes, tuple(named))
    return Prediction(streams, changes, tuple(named), low, high)


def _changes(one: Resolved, other: Resolved) -> Iterator[str]:
    for before, after in ((one.args, other.args), (one.env, other.env)):
        for name in sorted({*before, *after}):
            if before.get(name) != after.get(name):
                yield f"{name}: {_said(before.get(name))} -> {_said(after.get(name))}"


def _said(value: object) -> str:
    return "not set" if value is None else str(value)


_ON: dict[str, Callable[[Resolved], bool]] = {
    "torch compile": lambda profile: bool(profile.args.get("enable_torch_compile")),
    "overlapped scheduling": lambda profile: bool(profile.args.get("enable_single_batch_overlap")),
    "two batches overlapped": lambda profile: bool(profile.args.get("enable_two_batch_overlap")),
    "schedule policy": lambda profile: False,
    "expert parallelism": lambda profile: int(str(profile.args.get("ep_size") or 1)) > 1,
    "MTP": lambda profile: bool(profile.args.get("speculative_algorithm")),
    "peer-to-peer off": lambda profile: profile.env.get(P2P_OFF) == "1",
}
_NAMED = {
    "enable_torch_compile": "torch compile",
    "torch_compile_max_bs": "torch compile",
    "enable_single_batch_overlap": "overlapped scheduling",
    "enable_two_batch_overlap": "two batches overlapped",
    "tbo_token_distribution_threshold": "two batches overlapped",
    "schedule_policy": "schedule policy",
    "ep_size": "expert parallelism",
    "moe_a2a_backend": "expert parallelism",
    P2P_OFF: "peer-to-peer off",
}


def _option(name: str) -> str | None:
    return "MTP" if name.startswith("speculative_") else _NAMED.get(name)


def _has(profile: Resolved, option: str) -> bool:
    return _ON[option](profile)
