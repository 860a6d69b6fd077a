"""The VM for eight cards as PVE's configuration: pure, from the inventory to keys and values.

Each setting has its reason here. Sources: proxmox/qemu-server (API2/Qemu.pm, QemuServer/Memory.pm, PCI.pm), pve-docs
qm.adoc, and the public reports that are named.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from runbooks.engine.errors import UsageError
from runbooks.inventory.shape import Node, Vm
from runbooks.proxmox.properties import numbered, write

ROOT_ONLY = ("args", "affinity", "hugepages", "keephugepages")
"""Keys that PVE takes from root@pam with a password alone: a token of root is `root@pam!name`, not root@pam."""

CLIQUE = "x-nv-gpudirect-clique"
DISK, EFI_DISK, CLOUD_INIT = "scsi0", "efidisk0", "ide2"


@dataclass(frozen=True)
class Version:
    """Of PVE: `9.2.11` is Version(9, 2)."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> Version:
        words = text.split(".")
        return cls(int(words[0]), int(words[1]) if len(words) > 1 and words[1].isdigit() else 0)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @property
    def supported(self) -> bool:
        """8.4 brought the import of images by the API; before it there is no way in."""
        return (self.major, self.minor) >= (8, 4)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the configuration is made from. `keys`: public SSH keys, one a line; `clique`: grant peer-to-peer."""

    name: str
    vm: Vm
    node: Node
    gpus: int
    keys: tuple[str, ...]
    version: Version
    clique: bool = False


def config(wanted: Wanted) -> dict[str, str]:
    """Every key of the VM that is ours, except the disks' volumes, which PVE names when it makes them."""
    vm = wanted.vm
    return {
        **_machine(wanted),
        **_memory(vm),
        **numbered("hostpci", [_card(vm)] * wanted.gpus),
        "net0": write("virtio", bridge=vm.bridge, tag=vm.vlan),
        **_cloud_init(wanted),
        **_root_only(wanted),
        "onboot": str(int(vm.onboot)),
        "protection": str(int(vm.protection)),
    }


def _machine(wanted: Wanted) -> dict[str, str]:
    """q35 for PCIe; OVMF for 128 GiB BARs; the host's CPU for its address bits: kvm64's 40 leave no card any room.

    No NIC or CPU option that hides the hypervisor: the driver asks it for the peer clique. No memory or CPU hot-plug:
    its address range collides with the cards' (fabriziosalmi/proxmox-vm-autoscale #6).
    """
    vm = wanted.vm
    return {
        "name": wanted.name,
        "machine": vm.machine,
        "bios": "ovmf",
        "cpu": _cpu(wanted),
        "sockets": str(len(vm.numa_nodes)),
        "cores": str(vm.cores // len(vm.numa_nodes)),
        "ostype": "l26",
        "scsihw": "virtio-scsi-single",
        "vga": "none",
        "serial0": "socket",  # `qm terminal`, and the only place that tells of a guest without network
        "agent": write(enabled=True),
        "hotplug": "disk,network,usb",
        "boot": write(order=DISK),
    }


def _cpu(wanted: Wanted) -> str:
    bits = wanted.vm.phys_bits
    if bits is not None and (wanted.version.major, wanted.version.minor) < (9, 2):
        raise UsageError(
            f"phys_bits needs PVE 9.2 (guest-phys-bits), and the node runs {wanted.version}",
            next="take phys_bits out of this VM, or upgrade the node",
        )
    return write("host", guest_phys_bits=bits)


def _memory(vm: Vm) -> dict[str, str]:
    """Sums that fit, each share on its host node. VFIO pins all of it, so a balloon could only mislead."""
    count = len(vm.numa_nodes)
    cores, memory = vm.cores // count, vm.memory_gib * 1024 // count
    nodes = [
        write(
            cpus=f"{number * cores}-{(number + 1) * cores - 1}" if cores > 1 else str(number),
            hostnodes=node,
            memory=memory,
            policy="bind",
        )
        for number, node in enumerate(vm.numa_nodes)
    ]
    return {"memory": str(vm.memory_gib * 1024), "balloon": "0", "numa": "1", **numbered("numa", nodes)}


def _card(vm: Vm) -> str:
    """By mapping, so that a token may use it and a renumbered bus is noticed."""
    return write(mapping=vm.mapping, pcie=True, rombar=None if vm.rombar else False)


def _cloud_init(wanted: Wanted) -> dict[str, str]:
    vm = wanted.vm
    ip = ipaddress.ip_interface(vm.address)
    address = {"ip": vm.address, "gw": vm.gateway} if ip.version == 4 else {"ip6": vm.address, "gw6": vm.gateway}
    return {
        "ciuser": vm.user,
        "sshkeys": encode_keys(wanted.keys),
        "ipconfig0": write(**address),
        **({"nameserver": " ".join(vm.nameservers)} if vm.nameservers else {}),
        **({"searchdomain": vm.search_domain} if vm.search_domain else {}),
    }


def encode_keys(keys: tuple[str, ...]) -> str:
    """PVE keeps sshkeys percent-encoded, and its form decoding takes another layer off: here is the inner one.

    No character is safe: `%20`, not `+`, and `/` as well.
    """
    return quote("\n".join(keys), safe="")


def _root_only(wanted: Wanted) -> dict[str, str]:
    vm = wanted.vm
    keys: dict[str, str] = {}
    if vm.hugepages:
        keys |= {"hugepages": "1024", "keephugepages": "1"}
    if vm.affinity is not None:
        keys["affinity"] = vm.affinity
    if wanted.clique:
        keys["args"] = clique_args(wanted.gpus)
    return keys


def clique_args(gpus: int) -> str:
    """QEMU's property that grants peer-to-peer: same number, same clique (hw/vfio/pci-quirks.c)."""
    return " ".join(f"-set device.hostpci{number}.{CLIQUE}=0" for number in range(gpus))


def has_clique(settings: Mapping[str, str]) -> bool:
    return CLIQUE in settings.get("args", "")


def creation(wanted: Wanted) -> dict[str, str]:
    """What a new VM gets on top: its disks. The data disk stays out of backups, which would start the VM for one."""
    vm = wanted.vm
    source = f"{vm.image.storage}:import/{vm.image.file}"
    return {
        "vmid": str(vm.id),
        EFI_DISK: write(f"{vm.storage}:1", efitype="4m", pre_enrolled_keys=False),
        DISK: write(f"{vm.storage}:0", import_from=source, **_disk_options()),
        CLOUD_INIT: f"{vm.storage}:cloudinit",
        **config(wanted),
    }


def _disk_options() -> dict[str, str | int | bool | None]:
    return {"discard": "on", "iothread": True, "ssd": True, "backup": False}


def disk_parts() -> dict[str, str]:
    """The options of the disk that are compared; its volume and size are PVE's to name."""
    return {"discard": "on", "iothread": "1", "ssd": "1", "backup": "0"}


def split_root_only(keys: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """What any login may set, and what only root@pam may."""
    root = {key: value for key, value in keys.items() if key in ROOT_ONLY}
    return {key: value for key, value in keys.items() if key not in root}, root


def start_seconds(current: dict[str, str]) -> int:
    """How long PVE itself waits for this VM's start: 30 s; a second a GiB above 30; fourfold with passed-through cards;
    at least 150 with huge pages; 5 for each NIC (QemuServer/Helpers.pm, config_aware_timeout).
    """
    memory = int(current.get("memory", "512").removeprefix("current=").split(",")[0])
    seconds = 30.0 if memory <= 30720 else memory / 1024
    if any(key.startswith("hostpci") for key in current):
        seconds *= 4
    if "hugepages" in current:
        seconds = max(seconds, 150)
    return int(seconds) + 5 * sum(key.startswith("net") and key[3:].isdigit() for key in current)
