"""What the API tells of a VM and its node, in as few reads as can be: six where everything is there already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runbooks.engine.errors import RunbookError
from runbooks.inventory.shape import Node, Vm
from runbooks.proxmox.client import ApiError, Client
from runbooks.proxmox.config import Version
from runbooks.proxmox.diff import Found
from runbooks.proxmox.properties import MapEntry


@dataclass(frozen=True, kw_only=True)
class Seen:
    """`found` None: there is no such VM. `cards` in the order of their addresses, NUMA neighbours together."""

    version: Version
    found: Found | None
    name: str
    running: bool
    lock: str
    cards: tuple[MapEntry, ...]
    mapping: tuple[str, ...] | None
    mappings: tuple[str, ...] = ()
    mapping_faults: tuple[str, ...] = ()
    in_ha: bool = False
    has_image: bool = True
    storages: Mapping[str, str] = field(default_factory=dict)  # name -> content types; read for a new VM only
    rights: Mapping[str, Mapping[str, object]] | None = None  # the same
    elsewhere: str = ""  # another node of the cluster that has the VM


def look(client: Client, vm: Vm, node: Node, name: str) -> Seen:
    """Read it all. `name` is the node's own. Raises ApiError, or RunbookError for a version that is too old."""
    version = Version.parse(client.get("/version")["version"])
    if not version.supported:
        raise RunbookError(
            f"Proxmox VE {version} is too old: the import of images by the API came with 8.4",
            next="upgrade the node",
            page="proxmox-api",
        )
    status = _status(client, vm, name)
    mapping, names, faults = _mapping(client, vm, name)
    seen = Seen(
        version=version,
        found=Found.read(client.get(f"/nodes/{name}/qemu/{vm.id}/pending")) if status is not None else None,
        name=str((status or {}).get("name") or ""),
        running=(status or {}).get("status") == "running",
        lock=str((status or {}).get("lock") or ""),
        cards=_cards(client.get(f"/nodes/{name}/hardware/pci"), node, name),
        mapping=mapping,
        mappings=names,
        mapping_faults=faults,
        in_ha=_in_ha(client, vm),
    )
    return seen if status is not None else _for_a_new_one(client, vm, name, seen)


def _status(client: Client, vm: Vm, name: str) -> Mapping[str, Any] | None:
    try:
        status: Mapping[str, Any] = client.get(f"/nodes/{name}/qemu/{vm.id}/status/current")
    except ApiError as error:
        if "does not exist" in error.reason:
            return None
        raise
    return status


def _cards(rows: Sequence[Mapping[str, Any]], node: Node, name: str) -> tuple[MapEntry, ...]:
    """By vendor and device, never by address: a new kernel may number the buses anew (strongtz #328)."""
    found = []
    for row in rows:
        kind = f"{_hex(row['vendor'])}:{_hex(row['device'])}"
        if kind in node.gpu_ids:
            subsystem = f"{_hex(row.get('subsystem_vendor', '0'))}:{_hex(row.get('subsystem_device', '0'))}"
            found.append(MapEntry(name, _with_domain(str(row["id"])), kind, int(row.get("iommugroup", -1)), subsystem))
    return tuple(sorted(found, key=lambda entry: entry.path))


def _with_domain(address: str) -> str:
    return address if address.count(":") == 2 else f"0000:{address}"


def _hex(text: object) -> str:
    return str(text).removeprefix("0x").lower().zfill(4)


def _mapping(client: Client, vm: Vm, name: str) -> tuple[tuple[str, ...] | None, tuple[str, ...], tuple[str, ...]]:
    rows = client.get("/cluster/mapping/pci", **{"check-node": name}) or []
    names = tuple(str(row["id"]) for row in rows)
    for row in rows:
        if row["id"] == vm.mapping:
            faults = tuple(str(check.get("message", "")) for check in row.get("checks") or [])
            return tuple(row.get("map") or ()), names, faults
    return None, names, ()


def _in_ha(client: Client, vm: Vm) -> bool:
    """Without the right to look we cannot know; the start of a VM in HA would go through the manager and say so."""
    try:
        return any(str(row["sid"]) == f"vm:{vm.id}" for row in client.get("/cluster/ha/resources") or [])
    except ApiError as error:
        if error.status == 403:
            return False
        raise


def _for_a_new_one(client: Client, vm: Vm, name: str, seen: Seen) -> Seen:
    others = client.get("/cluster/resources", type="vm") or []
    elsewhere = next((str(row.get("node")) for row in others if row.get("vmid") == vm.id), "")
    storages = {str(row["storage"]): str(row.get("content", "")) for row in client.get(f"/nodes/{name}/storage")}
    has_image = False
    if "import" in storages.get(vm.image.storage, "").split(","):
        rows = client.get(f"/nodes/{name}/storage/{vm.image.storage}/content", content="import") or []
        has_image = any(row.get("volid") == f"{vm.image.storage}:import/{vm.image.file}" for row in rows)
    return Seen(
        **{
            **{key: getattr(seen, key) for key in seen.__dataclass_fields__},
            "elsewhere": elsewhere if elsewhere != name else "",
            "storages": storages,
            "has_image": has_image,
            "rights": client.get("/access/permissions"),
        }
    )
