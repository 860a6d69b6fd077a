"""From what should be and what was seen to what is done, in order: pure. An act says itself in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runbooks.engine.errors import CheckFailed, RunbookError, UsageError
from runbooks.inventory.source import near
from runbooks.proxmox import rights
from runbooks.proxmox.config import DISK, ROOT_ONLY, Wanted, config, creation, split_root_only
from runbooks.proxmox.diff import Difference, Setting, compare, disk_gib, merged
from runbooks.proxmox.properties import MapEntry, read_map
from runbooks.proxmox.seen import Seen


@dataclass(frozen=True)
class Act:
    """`line` for people; `details` are the settings that it writes."""

    line: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Map(Act):
    """The cluster's PCI mapping, with the entries that are there now. `new`: it does not exist yet."""

    entries: tuple[str, ...] = ()
    new: bool = False


@dataclass(frozen=True)
class Download(Act):
    """The image onto the node's storage, its checksum checked there."""


@dataclass(frozen=True)
class Create(Act):
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Configure(Act):
    """`by_shell`: with `qm set` over SSH, for keys that the login may not set."""

    settings: tuple[tuple[str, str], ...] = ()
    delete: tuple[str, ...] = ()
    by_shell: bool = False


@dataclass(frozen=True)
class Grow(Act):
    gib: int = 0


@dataclass(frozen=True)
class PowerCycle(Act):
    """Shut down and started, for what a running VM cannot take. Asked first."""


@dataclass(frozen=True)
class Start(Act):
    pass


def plan(wanted: Wanted, seen: Seen, *, is_root: bool, has_shell: bool) -> list[Act]:
    """Raises CheckFailed or UsageError for what must not be begun."""
    _refuse(wanted, seen)
    acts: list[Act] = [*_mapping(wanted, seen)]
    if seen.found is None:
        acts += _creation(wanted, seen, is_root=is_root, has_shell=has_shell)
        return [*acts, Start("start")]
    difference = compare(config(wanted), seen.found)
    acts += _configuration(difference, seen, is_root=is_root, has_shell=has_shell)
    acts += _grow(wanted, disk_gib(seen.found.next_start.get(DISK, "")))
    waiting = difference.needs_power_cycle
    if seen.running and waiting:
        acts.append(PowerCycle("power cycle", (f"only then true: {', '.join(waiting)}",)))
    if not seen.running:
        acts.append(Start("start"))
    return acts


def _refuse(wanted: Wanted, seen: Seen) -> None:
    vm = wanted.vm
    if seen.elsewhere:
        raise CheckFailed(f"VM {vm.id} is on the node {seen.elsewhere}", next="another id, or that node, for this VM")
    if seen.found is not None and seen.name != wanted.name:
        raise CheckFailed(
            f"VM {vm.id} is called {seen.name!r}, not {wanted.name!r}: it is left alone",
            next="another id for this VM in the inventory",
            page="vm-start",
        )
    if seen.in_ha:
        raise CheckFailed(
            f"VM {vm.id} is managed by high availability, which would start it where its cards are not",
            next=f"on the node: ha-manager remove vm:{vm.id}",
            page="vm-start",
        )
    if seen.lock:
        raise CheckFailed(f"VM {vm.id} is locked: {seen.lock}", next="wait for that task to end", page="proxmox-api")
    if len(seen.cards) < wanted.gpus:
        there = ", ".join(entry.path for entry in seen.cards) or "none"
        raise CheckFailed(
            f"the node shows {len(seen.cards)} cards of {wanted.gpus}",
            details=[f"seen: {there}", f"looked for: {', '.join(wanted.node.gpu_ids)}"],
            next="invoke doctor --node",
            page="gpu-lost",
        )


def _mapping(wanted: Wanted, seen: Seen) -> list[Act]:
    """Its entries compared with the hardware of this very moment: a kernel may have numbered the buses anew."""
    ours = tuple(str(entry) for entry in seen.cards[: wanted.gpus])
    if seen.mapping is None:
        close = near(wanted.vm.mapping, seen.mappings) if seen.mappings else ""
        return [Map(f"PCI mapping {wanted.vm.mapping}: new{close}", ours, entries=ours, new=True)]
    foreign = tuple(entry for entry in seen.mapping if read_map(entry).get("node") != _node(seen.cards))
    mine = [entry for entry in seen.mapping if entry not in foreign]
    if _parts(mine) == _parts(ours):
        return []
    return [Map(f"PCI mapping {wanted.vm.mapping}: entries as the hardware is now", ours, entries=(*foreign, *ours))]


def _node(cards: Sequence[MapEntry]) -> str:
    return cards[0].node if cards else ""


def _parts(entries: Sequence[str]) -> list[dict[str, str]]:
    return sorted(
        ({key: text for key, text in read_map(entry).items() if key != "description"} for entry in entries),
        key=lambda parts: parts.get("path", ""),
    )


def _creation(wanted: Wanted, seen: Seen, *, is_root: bool, has_shell: bool) -> list[Act]:
    vm = wanted.vm
    _refuse_storage(wanted, seen)
    if not is_root and seen.rights is not None:
        _refuse_rights(wanted, seen)
    acts: list[Act] = []
    if not seen.has_image:
        acts.append(Download(f"image {vm.image.file}", (f"from {vm.image.url}", f"sha256 {vm.image.sha256}")))
    settings, root = split_root_only(creation(wanted))
    if is_root:
        settings |= root
    acts.append(Create(f"VM {vm.id} {wanted.name}: new", _shown(settings), settings=tuple(settings.items())))
    if root and not is_root:
        acts.append(_by_shell(root, (), has_shell=has_shell))
    return [*acts, *_grow(wanted, 0)]


def _refuse_storage(wanted: Wanted, seen: Seen) -> None:
    vm = wanted.vm
    for storage, content in ((vm.storage, "images"), (vm.image.storage, "import")):
        if storage not in seen.storages:
            raise CheckFailed(f"the node has no storage {storage!r}{near(storage, seen.storages)}", page="proxmox-api")
        if content not in seen.storages[storage].split(","):
            raise CheckFailed(
                f"the storage {storage} does not take {content}, only {seen.storages[storage]}",
                next=f"on the node: pvesm set {storage} --content {seen.storages[storage]},{content}",
                page="proxmox-api",
            )


def _refuse_rights(wanted: Wanted, seen: Seen) -> None:
    new = seen.mapping is None
    needed = rights.needed(wanted.vm, _node(seen.cards), seen.version, mapping_is_new=new)
    lacking = rights.missing(needed, seen.rights or {})
    if lacking:
        raise CheckFailed(
            f"{wanted.node.user} may not do all that this VM needs",
            details=[f"{right.privilege} on {right.path}: {right.why}" for right in lacking],
            next=f"on the node: {rights.role(seen.version, wanted.node.user)}",
            page="proxmox-api",
        )


def _configuration(difference: Difference, seen: Seen, *, is_root: bool, has_shell: bool) -> list[Act]:
    assert seen.found is not None
    current = seen.found.next_start
    settings = {key: merged(key, value, current.get(key)) for key, value in difference.set.items()}
    easy, root = split_root_only(settings)
    root_delete = tuple(key for key in difference.delete if key in ROOT_ONLY)
    delete = tuple(key for key in difference.delete if key not in root_delete)
    if is_root:
        easy, root, delete, root_delete = settings, {}, (*delete, *root_delete), ()
    acts: list[Act] = []
    if easy or delete:
        changed = [setting for setting in difference.settings if setting.key in easy or setting.key in delete]
        lines = tuple(setting.line for setting in changed)
        acts.append(Configure("configuration", lines, settings=tuple(easy.items()), delete=delete))
    if root or root_delete:
        acts.append(_by_shell(root, root_delete, has_shell=has_shell, old=current))
    return acts


def _by_shell(
    settings: Mapping[str, str], delete: tuple[str, ...], *, has_shell: bool, old: Mapping[str, str] | None = None
) -> Configure:
    keys = ", ".join([*settings, *delete])
    if not has_shell:
        raise UsageError(
            f"PVE lets only root@pam with a password set {keys}: an API token of root is not root@pam",
            next="give the node `password` instead of `token`, or `ssh`, or do without",
            page="proxmox-api",
        )
    before = old or {}
    lines = [Setting(key, before.get(key), settings.get(key)).line for key in [*settings, *delete]]
    return Configure(
        "configuration by `qm set` over SSH (only root@pam may)", tuple(lines),
        settings=tuple(settings.items()), delete=delete, by_shell=True,
    )  # fmt: skip


def _grow(wanted: Wanted, now: float) -> list[Act]:
    want = wanted.vm.disk_gib
    if now > want:
        raise RunbookError(
            f"the disk of VM {wanted.vm.id} has {now:.0f} GiB, and disk_gib says {want}: a disk never shrinks",
            next=f"disk_gib: {now:.0f} for this VM in the inventory",
        )
    return [Grow(f"disk {DISK}: {want} GiB", gib=want)] if now < want else []


def _shown(settings: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{key}: {'(public keys)' if key == 'sshkeys' else value}" for key, value in settings.items())
