"""NCCL's topology of a VM, from the real one of its node: inside, every card hangs flat on one root bus (nccl #1674).

A guest's address is matched to the node's card by QEMU itself (`info pci`), never by its number: PVE's root ports are
not enumerated in the order of hostpciN.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import quoteattr

from runbooks.inventory.shape import Vm
from runbooks.proxmox.look import Device, NodeState

_DEVICE = re.compile(r"vfio-pci,host=([0-9a-f:.]+),(?:.*,)?id=(hostpci\d+)(?:\.0)?(?:,|$)")
_BUS = re.compile(r"Bus\s+(\d+), device\s+(\d+), function\s+(\d+):")
_ID = re.compile(r'id "(hostpci\d+)(?:\.0)?"')


@dataclass(frozen=True)
class Card:
    """`guest` is its address inside the VM; `device` what it is on the node."""

    guest: str
    device: Device


def script(vm: Vm) -> str:
    """What to ask the node's shell: the command line of the VM's QEMU, and its PCI tree."""
    return f"""\
tr '\\0' '\\n' <"/proc/$(cat /run/qemu-server/{vm.id}.pid)/cmdline" | grep '^vfio-pci,'
echo '== tree'
echo 'info pci' | timeout 20 qm monitor {vm.id} 2>/dev/null"""


def cards(said: str, state: NodeState) -> list[Card]:
    """The VM's cards in the order of their guest addresses; empty where QEMU did not say."""
    arguments, _, tree = said.partition("== tree")
    hosts = {name: _full(host) for host, name in map(_pair, filter(None, map(_DEVICE.search, arguments.splitlines())))}
    devices = {device.address: device for device in state.devices}
    found = [
        Card(guest, devices[hosts[name]]) for guest, name in _tree(tree) if name in hosts and hosts[name] in devices
    ]
    return sorted(found, key=lambda card: card.guest)


def _pair(match: re.Match[str]) -> tuple[str, str]:
    return match[1], match[2]


def _full(address: str) -> str:
    return address if address.count(":") == 2 else f"0000:{address}"


def _tree(text: str) -> list[tuple[str, str]]:
    found, address = [], ""
    for line in text.splitlines():
        if bus := _BUS.search(line):
            address = f"0000:{int(bus[1]):02x}:{int(bus[2]):02x}.{int(bus[3])}"
        elif (name := _ID.search(line)) and address:
            found.append((address, name[1]))
    return found


def xml(found: Sequence[Card], vm: Vm, vendor: str) -> str:
    """Each card below the guest CPU whose memory is bound to the card's own NUMA node of the host."""
    by_node: dict[int, list[Card]] = {}
    for card in found:
        by_node.setdefault(_guest_node(card.device.numa, vm), []).append(card)
    lines = ['<system version="1">']
    for number in range(len(vm.numa_nodes)):
        lines.append(f"  <cpu {_attributes(_cpu(number, vm, vendor))}>")
        lines += [f"    <pci {_attributes(_pci(card))}/>" for card in by_node.get(number, [])]
        lines.append("  </cpu>")
    return "\n".join([*lines, "</system>"]) + "\n"


def _guest_node(numa: int, vm: Vm) -> int:
    return vm.numa_nodes.index(numa) if numa in vm.numa_nodes else 0


def _cpu(number: int, vm: Vm, vendor: str) -> Mapping[str, str]:
    share = vm.cores // len(vm.numa_nodes)
    mask = ((1 << share) - 1) << (number * share)
    return {
        "numaid": str(number), "affinity": _mask(mask, vm.cores), "arch": "x86_64", "vendor": vendor, "familyid": "0",
        "modelid": "0",
    }  # fmt: skip


def _mask(mask: int, cores: int) -> str:
    """As the kernel prints one: groups of 32 bits, the highest first."""
    groups = -(-cores // 32)
    return ",".join(f"{(mask >> (32 * group)) & 0xFFFFFFFF:08x}" for group in reversed(range(groups)))


def _pci(card: Card) -> Mapping[str, str]:
    device = card.device
    vendor, kind = device.id.split(":")
    sub_vendor, sub_device = device.subsystem.split(":")
    return {
        "busid": card.guest, "class": f"0x{device.kind}", "vendor": f"0x{vendor}", "device": f"0x{kind}",
        "subsystem_vendor": f"0x{sub_vendor}", "subsystem_device": f"0x{sub_device}",
        "link_speed": device.max_speed, "link_width": str(device.max_width),
    }  # fmt: skip


def _attributes(values: Mapping[str, str]) -> str:
    return " ".join(f"{name}={quoteattr(value)}" for name, value in values.items())
