"""From a profile to the words and the environment that SGLang is started with. Pure: nothing is read or written."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from runbooks.engine.errors import UsageError
from runbooks.inventory.shape import Inventory, Model, Profile, Runtime, Variant
from runbooks.inventory.source import near
from runbooks.sglang.flags import OtherVersion, Table, Value, canonical, table, version_key
from runbooks.sglang.rules import Setting, broken

T = TypeVar("T")

# What stands elsewhere in the inventory, so that there is one place for it.
OWNED: Mapping[str, str] = {
    "model_path": "models.NAME.path",
    "served_model_name": "models.NAME.served_name",
    "host": "server.host",
    "port": "server.port",
    "api_key": "server.api_key",
    "admin_api_key": "server.api_key",
    "config": "profiles.NAME.args",
    "node_rank": "the order of the hosts",
}
RENDEZVOUS = 20000
"""The port on the first host where the others of one server meet it, unless the profile names a dist_init_addr."""


@dataclass(frozen=True)
class Place:
    """Which host of a server that spans several this is. `address` is the first one's, where the others meet it."""

    hosts: tuple[str, ...]
    rank: int
    address: str


@dataclass(frozen=True)
class Resolved:
    """A profile with everything it inherits, under canonical names."""

    name: str
    why: str
    args: Mapping[str, Value]
    env: Mapping[str, str]
    expect: Mapping[str, Value]


@dataclass(frozen=True)
class Launch:
    """What defines a start of SGLang. `argv` are the options alone; `notes` are worth saying, but stop nothing."""

    profile: str
    version: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    args: Mapping[str, Value]
    expect: Mapping[str, Value]
    notes: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()  # of a server that spans several


def resolve(profiles: Mapping[str, Profile], name: str, version: str | None = None) -> Resolved:
    """Lay a profile over those it extends. None takes away; an expectation goes with the argument that it was about.

    `version` of SGLang: what each of them says for versions before some other comes in; None: the newest. Raises
    UsageError for a name that is no profile, and for an argument that is not a profile's to set.
    """
    if name not in profiles:
        raise UsageError(f"there is no profile {name!r}{near(name, list(profiles))}")
    chain = [name]
    while (parent := profiles[chain[-1]].extends) is not None:
        chain.append(parent)
    args: dict[str, Value | None] = {}
    env: dict[str, str | None] = {}
    expect: dict[str, Value] = {}
    why = profiles[name].why
    for one in reversed(chain):
        older = _older(profiles[one], version)
        layers: list[Profile | Variant] = [profiles[one], *older]
        for layer in layers:
            own = _canonical(layer.args, one)
            args.update(own)
            env.update(layer.env)
            expect = {key: value for key, value in expect.items() if key not in own} | _canonical(layer.expect, one)
        if one == name and older:
            why = older[-1].why
    for key in args:
        if key in OWNED:
            raise UsageError(f"profile {name}: {key} is not a profile's to set; it stands in {OWNED[key]}")
    return Resolved(name, why, _given(args), _given(env), expect)


def _older(profile: Profile, version: str | None) -> list[Variant]:
    """What holds for this version, the nearest one last."""
    bounds = sorted(profile.before, key=version_key, reverse=True) if version is not None else []
    return [profile.before[bound] for bound in bounds if version_key(version or bound) < version_key(bound)]


def origin(profiles: Mapping[str, Profile], name: str, key: str, version: str) -> tuple[str, ...]:
    """The path in the inventory of the argument that holds for a profile: its own, or one that it inherits."""
    following: str | None = name
    while following is not None:
        profile = profiles[following]
        bounds = sorted((one for one in profile.before if version_key(version) < version_key(one)), key=version_key)
        layers: list[tuple[tuple[str, ...], Profile | Variant]] = [
            (("before", one), profile.before[one]) for one in bounds
        ]
        for path, layer in [*layers, ((), profile)]:
            for written in layer.args:
                if canonical(written) == canonical(key):
                    return ("profiles", following, *path, "args", written)
        following = profile.extends
    return ("profiles", name)


def nodes(inventory: Inventory, name: str) -> int:
    """On how many hosts a profile is one server. Raises UsageError as `resolve` does."""
    count = resolve(inventory.profiles, name).args.get("nnodes", 1)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise UsageError(f"profile {name}: nnodes is the number of hosts of one server, not {count!r}")
    return count


def build(
    inventory: Inventory,
    name: str,
    *,
    model: Model,
    runtime: Runtime,
    place: Place | None = None,
    advise: bool = True,
    where: Callable[..., str] | None = None,
) -> Launch:
    """Spell a profile for a runtime's version; `place` is the host's, where the profile is one server on several.

    `where` tells FILE:LINE of a path in the inventory, for an argument that is refused.

    Raises one UsageError with everything that is wrong with it and, where `advise`, the profiles that would fit.
    """
    profile = resolve(inventory.profiles, name, runtime.sglang)
    flags = table(runtime.sglang)
    args = {**_owned(inventory, model, profile, place), **profile.args}
    problems: list[str] = []
    lines = {key: where(*origin(inventory.profiles, name, key, flags.version)) for key in profile.args} if where else {}
    argv, mistaken = _spelled(flags, args, lines, problems)
    setting = Setting(args, runtime.sglang, model, inventory.gpus, inventory.bench)
    for rule in broken(setting):
        problems += [f"{rule.id}: {rule.reason}", f"  instead: {rule.instead}", f"  source: {rule.source}"]
    env = {**runtime.env, **profile.env}
    problems += [f"env: {line}" for line in _bad_environment(env)]
    if problems:
        fit = fitting(inventory, model=model, runtime=runtime) if advise else []
        best = "final"
        advice = [f"profiles that fit: {', '.join(fit)}"] if fit else []
        other = f"invoke deploy --profile {best if best in fit else fit[0]}" if fit else None
        raise UsageError(
            f"profile {name} cannot be started with SGLang {runtime.sglang}",
            details=problems + advice,
            next=f"correct {mistaken[0]}, then the same command" if mistaken else other,
        )
    notes = (flags.note,) if flags.note else ()
    return Launch(name, runtime.sglang, tuple(argv), env, args, profile.expect, notes, place.hosts if place else ())


def fitting(inventory: Inventory, *, model: Model, runtime: Runtime) -> list[str]:
    """The profiles of the inventory that this runtime and model can be started with."""
    found = []
    for name in inventory.profiles:
        try:
            build(inventory, name, model=model, runtime=runtime, advise=False)
        except UsageError:
            continue
        found.append(name)
    return found


def _owned(inventory: Inventory, model: Model, profile: Resolved, place: Place | None) -> dict[str, Value]:
    """The arguments that follow from the rest of the inventory. On a CPU there is nothing to split the model over."""
    count = int(profile.args.get("nnodes", 1))
    owned: dict[str, Value] = {
        "model_path": model.path,
        "served_model_name": model.served_name,
        "host": inventory.server.host,
        "port": inventory.server.port,
    }
    if profile.args.get("device", "cuda") == "cuda":
        owned["tp_size"] = inventory.gpus.count * count
    if count > 1:
        address = place.address if place else "127.0.0.1"
        owned["node_rank"] = place.rank if place else 0
        owned["dist_init_addr"] = f"{f'[{address}]' if ':' in address else address}:{RENDEZVOUS}"
    return owned


def _spelled(
    flags: Table, args: Mapping[str, Value], lines: Mapping[str, str], problems: list[str]
) -> tuple[list[str], list[str]]:
    """The words, and the lines of what no version takes; what is refused goes to `problems`, with its line."""
    argv: list[str] = []
    mistaken: list[str] = []
    for key, value in args.items():
        try:
            argv += flags.spell(key, value)
        except UsageError as error:
            at = f"{lines[key]}  " if key in lines else ""
            problems += [f"{at}{error.message}", *(f"  {line}" for line in error.details)]
            if at and not isinstance(error, OtherVersion):
                mistaken.append(lines[key])
    return argv, mistaken


def _bad_environment(env: Mapping[str, str]) -> list[str]:
    bad = [f"{key!r} is no name of a variable" for key in env if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key)]
    return bad + [f"{key} holds a line break" for key, value in env.items() if "\n" in value]


def _canonical(values: Mapping[str, T], name: str) -> dict[str, T]:
    known: dict[str, T] = {}
    for key, value in values.items():
        if canonical(key) in known:
            raise UsageError(f"profile {name}: {key} and {canonical(key)} are the same argument")
        known[canonical(key)] = value
    return known


def _given(values: Mapping[str, T | None]) -> dict[str, T]:
    return {key: value for key, value in values.items() if value is not None}
