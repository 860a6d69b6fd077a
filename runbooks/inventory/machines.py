"""What must hold between hosts that are virtual machines and the nodes that they stand on."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

from runbooks.inventory.shape import Inventory, Node, Vm
from runbooks.inventory.source import Document, Path, near

ROOT = "root@pam"
IMPORTABLE = (".qcow2", ".raw", ".vmdk", ".ova")  # PVE::Storage: the extensions of content `import`
_ID = re.compile(r"[0-9a-f]{4}:[0-9a-f]{4}")
_FINGERPRINT = re.compile(r"(?:[0-9a-fA-F]{2}:?){31}[0-9a-fA-F]{2}")
_CPUS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
_DNS_NAME = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?(\.[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?)*")


def check_machines(inventory: Inventory, document: Document) -> None:
    for name, node in inventory.nodes.items():
        _node(("nodes", name), node, document)
    ids: dict[tuple[str, int], str] = {}
    for name, host in inventory.hosts.items():
        if host.vm is None:
            continue
        path: Path = ("hosts", name, "vm")
        _vm(path, name, host.vm, inventory.nodes, document)
        first = ids.setdefault((host.vm.node, host.vm.id), name)
        if first != name:
            document.problem((*path, "id"), f"{host.vm.id} is the VM of {first} as well")


def _node(path: Path, node: Node, document: Document) -> None:
    if not re.fullmatch(r"https://[^/]+/?", node.api):
        document.problem((*path, "api"), f"should be https://ADDRESS:8006, found {node.api!r}")
    if (node.token is None) == (node.password is None):
        document.problem(path, "exactly one of token and password says how to log in")
    if node.token is not None and "!" not in node.user:
        document.problem((*path, "user"), f"should be the token's whole id, USER@REALM!NAME, found {node.user!r}")
    if "@" not in node.user:
        document.problem((*path, "user"), f"should name its realm, as root@pam does, found {node.user!r}")
    if node.ca is not None and node.fingerprint is not None:
        document.problem((*path, "fingerprint"), "either ca or fingerprint, not both")
    if node.fingerprint is not None and not _FINGERPRINT.fullmatch(node.fingerprint):
        document.problem((*path, "fingerprint"), "should be SHA-256: 32 pairs of hex digits with colons")
    for key in ("gpu_ids", "audio_ids"):
        for index, found in enumerate(getattr(node, key)):
            if not _ID.fullmatch(found):
                document.problem((*path, key, index), f"should be like 10de:2bb5, in lower case, found {found!r}")


def _vm(path: Path, name: str, vm: Vm, nodes: Mapping[str, Node], document: Document) -> None:
    if vm.node not in nodes:
        document.problem((*path, "node"), f"there is no node named {vm.node!r}{near(vm.node, nodes)}")
    if not _DNS_NAME.fullmatch(name):
        document.problem(path[:-1], f"{name!r} becomes the VM's name, which PVE wants to be a DNS name")
    if not 100 <= vm.id <= 999_999_999:
        document.problem((*path, "id"), f"should be between 100 and 999999999, found {vm.id}")
    _shares(path, vm, document)
    _addresses(path, vm, document)
    if not re.fullmatch(r"[0-9a-f]{64}", vm.image.sha256):
        document.problem((*path, "image", "sha256"), "should be 64 hex digits in lower case")
    if not vm.image.file.endswith(IMPORTABLE) or "/" in vm.image.file:
        document.problem((*path, "image", "file"), f"should end in {', '.join(IMPORTABLE)}, found {vm.image.file!r}")
    if vm.affinity is not None and not _CPUS.fullmatch(vm.affinity):
        document.problem((*path, "affinity"), f"should be like 0-63,128-191, found {vm.affinity!r}")
    if vm.phys_bits is not None and not 32 <= vm.phys_bits <= 64:
        document.problem((*path, "phys_bits"), f"should be between 32 and 64, found {vm.phys_bits}")
    if not re.fullmatch(r"q35|pc-q35-\d+(\.\d+)+(\+pve\d+)?", vm.machine):
        document.problem((*path, "machine"), f"should be q35 or like pc-q35-10.1, found {vm.machine!r}")
    node = nodes.get(vm.node)
    if vm.hugepages and node is not None and node.ssh is not None and node.hugepages_gib < vm.memory_gib:
        document.problem(
            (*path, "hugepages"), f"needs {vm.memory_gib} pages of 1 GiB, and the node reserves {node.hugepages_gib}"
        )


def _shares(path: Path, vm: Vm, document: Document) -> None:
    """`sum(numaN.memory) must be the VM's memory`, and each socket of PVE has as many cores as the others."""
    count = len(vm.numa_nodes)
    for key in ("cores", "memory_gib", "disk_gib"):
        if getattr(vm, key) <= 0:
            document.problem((*path, key), f"should be above 0, found {getattr(vm, key)}")
    if count == 0 or len(set(vm.numa_nodes)) != count:
        document.problem((*path, "numa_nodes"), "should name each NUMA node once, and at least one")
        return
    for key in ("cores", "memory_gib"):
        if getattr(vm, key) % count:
            document.problem((*path, key), f"{getattr(vm, key)} cannot be shared out evenly among {count} NUMA nodes")


def _addresses(path: Path, vm: Vm, document: Document) -> None:
    try:
        own = ipaddress.ip_interface(vm.address)
        if "/" not in vm.address:
            raise ValueError
    except ValueError:
        document.problem((*path, "address"), f"should be like 192.0.2.10/24, found {vm.address!r}")
        return
    words = [("gateway", vm.gateway)] if vm.gateway else []
    for key, text in [*words, *(("nameservers", server) for server in vm.nameservers)]:
        try:
            found = ipaddress.ip_address(text)
        except ValueError:
            document.problem((*path, key), f"should be an IP address, found {text!r}")
            continue
        if key == "gateway" and found not in own.network:
            document.problem((*path, key), f"{found} is not in {own.network}")
