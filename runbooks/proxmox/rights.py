"""The privileges that a plan needs on Proxmox, by major version: checked before anything is begun.

Source: the permissions of each call in PVE's API documentation. VM.Monitor is gone since 9, and naming it in a role is
an error there; the agent's own privileges came in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runbooks.inventory.shape import Vm
from runbooks.proxmox.config import Version

_CONFIG = ("CPU", "Memory", "Disk", "HWType", "Options", "Network", "CDROM", "Cloudinit")
_VM = ("VM.Allocate", *(f"VM.Config.{name}" for name in _CONFIG), "VM.PowerMgmt", "VM.Audit")
_AGENT_8 = ("VM.Monitor",)
_AGENT_9 = ("VM.GuestAgent.Audit", "VM.GuestAgent.Unrestricted")


@dataclass(frozen=True)
class Right:
    """A privilege on a path of PVE's access tree, and what it is for."""

    path: str
    privilege: str
    why: str


def needed(vm: Vm, node: str, version: Version, *, mapping_is_new: bool = False) -> list[Right]:
    agent = _AGENT_9 if version.major >= 9 else _AGENT_8
    own, image = f"/storage/{vm.storage}", f"/storage/{vm.image.storage}"
    net = f"/sdn/zones/localnetwork/{vm.bridge}" + (f"/{vm.vlan}" if vm.vlan is not None else "")
    return [
        *(Right(f"/vms/{vm.id}", name, "the VM") for name in _VM),
        *(Right(f"/vms/{vm.id}", name, "its host key, by the guest agent") for name in agent),
        Right(own, "Datastore.AllocateSpace", "its disks"),
        Right(own, "Datastore.Audit", "its disks"),
        Right(image, "Datastore.AllocateTemplate", "the image"),
        Right(image, "Datastore.AllocateSpace", "the image"),
        Right(f"/nodes/{node}", "Sys.AccessNetwork", "the image's download"),
        Right(f"/nodes/{node}", "Sys.Audit", "the node's state"),
        Right("/", "Sys.Audit", "its PCI devices, and high availability"),
        Right(f"/mapping/pci/{vm.mapping}", "Mapping.Use", "the cards"),
        Right("/mapping/pci", "Mapping.Modify", "their mapping, which is new")
        if mapping_is_new
        else Right(f"/mapping/pci/{vm.mapping}", "Mapping.Modify", "their mapping"),
        Right(net, "SDN.Use", "its network"),
    ]


def missing(rights: list[Right], granted: Mapping[str, Mapping[str, object]]) -> list[Right]:
    """`granted` as GET /access/permissions tells it: path -> privilege -> does it count below as well."""
    return [right for right in rights if not _has(right, granted)]


def _has(right: Right, granted: Mapping[str, Mapping[str, object]]) -> bool:
    """The nearest path that is named decides: PVE's answer has what is inherited worked out already."""
    path = right.path
    while True:
        if path in granted:
            found = granted[path].get(right.privilege)
            return found is not None and (path == right.path or bool(found))
        if path == "/":
            return False
        path = path.rpartition("/")[0] or "/"


_REST = ("Datastore.AllocateSpace", "Datastore.AllocateTemplate", "Datastore.Audit", "Mapping.Modify", "Mapping.Use",
         "SDN.Use", "Sys.AccessNetwork", "Sys.Audit")  # fmt: skip
EVERY: Mapping[bool, tuple[str, ...]] = {False: (*_VM, *_AGENT_8, *_REST), True: (*_VM, *_AGENT_9, *_REST)}
"""Everything that is ever needed: a role's text, before 9 (False) and from 9 on (True)."""


def role(version: Version, user: str) -> str:
    """What to type on the node for a role that suffices, given to `user`, which may be a token's whole id."""
    who = f"--tokens '{user}'" if "!" in user else f"--users {user}"
    privileges = " ".join(EVERY[version.major >= 9])
    return f"pveum role add Runbooks --privs '{privileges}'; pveum acl modify / --roles Runbooks {who}"
