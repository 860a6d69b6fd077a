"""What must hold on a node before a VM with all its cards may start there: pure, from what was seen to checks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from runbooks.inventory.shape import Gpus, Node, Vm
from runbooks.proxmox import backups, properties
from runbooks.proxmox.failures import explain
from runbooks.proxmox.look import Device, NodeState

GIB = 1 << 30
HEADROOM = 8 * GIB  # bytes that a node keeps for itself, QEMU and page tables
FRESH_KERNEL = (6, 14)  # huge pfnmap: before it, mapping 128 GiB BARs takes minutes (Ubuntu bug 2111861)
FRESH_QEMU = (9, 2)  # aligned mmaps of BARs (CentOS qemu-kvm MR 366)
FRESH_OVMF = (2022, 11)  # PlatformDynamicMmioWindow: before it, 32 GiB whatever the CPU can address (tianocore/edk2)
BAD_KERNELS = ("6.8.12-12-pve", "6.14.8-1-pve")  # strongtz/i915-sriov-dkms #312, #322
NODE_TAG = "invoke provision --tags node"


@dataclass(frozen=True)
class Check:
    """`ok` or not, what was seen, and what to do. `advice`: worth knowing, and no reason to stop."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    page: str = ""
    advice: bool = False


def checks(state: NodeState, node: Node, gpus: Gpus, vm: Vm | None = None, *, running: bool = False) -> list[Check]:
    """All that the node's shell tells. `running`: the VM has its memory and cards already."""
    cards = state.cards(node.gpu_ids)
    found = [
        _iommu(state),
        _passthrough(state),
        _count(cards, gpus),
        *_cards(state, cards, node, gpus),
        _no_driver(state),
        _modules_listed(state),
        _kernel(state),
        _map_speed(state),
        _firmware(state),
        *_kernel_log(state),
        _access_control(state, vm),
    ]
    if vm is not None:
        found += [_threads(state, vm), _window(state, vm, gpus), _numa(state, cards, vm), *_others(state, cards, vm)]
        found.append(_backups(state, node.name or vm.node, vm))
        if not running:
            found.append(_pages(state, vm) if vm.hugepages else _memory(state, vm))
    return found


def _iommu(state: NodeState) -> Check:
    return Check(
        "IOMMU",
        state.has_iommu and any(device.group is not None for device in state.devices),
        f"kernel command line: {state.cmdline}",
        "VT-d or AMD-Vi on in the firmware; the kernel's words stand in the loader that boots: " + NODE_TAG,
        "node-prepare",
    )


def _passthrough(state: NodeState) -> Check:
    said = next((line for line in state.dmesg if "Default domain type" in line), "")
    ok = "Passthrough" in said or (not said and re.search(r"\biommu=pt\b", state.cmdline) is not None)
    return Check("IOMMU passthrough", ok, said or f"kernel command line: {state.cmdline}", NODE_TAG, "node-prepare")


def _count(cards: Sequence[Device], gpus: Gpus) -> Check:
    return Check(
        "cards",
        len(cards) == gpus.count,
        f"{len(cards)} of {gpus.count}: {_list(card.address for card in cards)}",
        "cold boot of the node; then power cable, riser, slot. Another model: gpu_ids of the node in the inventory",
        "gpu-lost",
    )


def _cards(state: NodeState, cards: Sequence[Device], node: Node, gpus: Gpus) -> Iterator[Check]:
    """One check a property, naming the cards that fail it."""
    vendor = "10de"
    dead = [card for card in cards if card.vendor_now != vendor]
    yield _each("cards alive", dead, [f"{c.address} answers {c.vendor_now or 'nothing'}" for c in dead],
                "only a cold boot of the node (power off, wait, on) brings it back", "gpu-reset")  # fmt: skip
    strangers = [(card, other) for card in cards for other in _strangers(state, card)]
    yield _each(
        "IOMMU groups", strangers,
        [f"{card.address} shares group {card.group} with {other.address} ({other.id})" for card, other in strangers],
        "ACS on in the firmware, or another slot; an ACS override patch only hides it", "node-prepare",
    )  # fmt: skip
    loose = [device for card in cards for device in _functions(state, card) if device.driver != "vfio-pci"]
    yield _each(
        "bound to vfio-pci", loose, [f"{d.address} ({d.id}) has {d.driver or 'no driver'}" for d in loose],
        f"{NODE_TAG}, and the reboot that it asks for", "node-prepare",
    )  # fmt: skip
    narrow = [card for card in cards if card.width == 0 or card.width < card.max_width]
    yield _each(
        "link width", narrow, [f"{c.address} x{c.width} of x{c.max_width}, {c.speed}" for c in narrow],
        "x0: cold boot. Otherwise riser, cable, slot, bifurcation in the firmware", "gpu-reset",
    )  # fmt: skip
    slow = [card for card in cards if card.speed != card.max_speed and card not in narrow]
    yield _each(
        "link speed", slow, [f"{c.address} {c.speed} of {c.max_speed}" for c in slow],
        "idle cards may lower it; under load it must not: pcie_aspm=off in kernel_options", "node-prepare", advice=True,
    )  # fmt: skip
    need = 1 << (gpus.memory_mib - 1).bit_length()  # MiB; a BAR is a power of two
    small = [card for card in cards if card.bar1 < need << 20]
    yield _each(
        "Resizable BAR", small, [f"{c.address} BAR1 {c.bar1 >> 20} MiB of {need}" for c in small],
        "Above 4G Decoding and Re-Size BAR on in the firmware, CSM off", "node-prepare",
    )  # fmt: skip
    tight = [(card, one) for card in cards for one in state.devices
             if one.address == card.above and one.is_bridge and one.bar1 < need << 20]  # fmt: skip
    yield _each(
        "bridge windows", tight,
        [f"{card.address} hangs on {one.address}, whose window is {one.bar1 // GIB} GiB of {need >> 10}"
         for card, one in tight],
        "Above 4G Decoding on in the firmware, its MMIO high size as large as it goes; or pci=realloc in "
        "kernel_options", "node-prepare",
    )  # fmt: skip
    sleepy = [card for card in cards if card.d3cold not in ("0", "-") or card.power not in ("on", "-")]
    yield _each(
        "no deep sleep", sleepy, [f"{c.address} d3cold_allowed={c.d3cold} power/control={c.power}" for c in sleepy],
        NODE_TAG, "gpu-reset",
    )  # fmt: skip
    unresettable = [card for card in cards if card.reset in ("", "-")]
    yield _each(
        "can be reset", unresettable, [card.address for card in unresettable],
        "a start of the VM cannot reset these; a newer kernel of Proxmox", "gpu-reset", advice=True,
    )  # fmt: skip


def _each(
    name: str, bad: Sequence[object], lines: Sequence[str], fix: str, page: str, *, advice: bool = False
) -> Check:
    return Check(name, not bad, _list(lines) if bad else "all", fix, page, advice)


def _functions(state: NodeState, card: Device) -> list[Device]:
    """The card and its audio: they leave the node together."""
    return [device for device in state.devices if device.slot == card.slot]


def _strangers(state: NodeState, card: Device) -> list[Device]:
    if card.group is None:
        return []
    mates = [device for device in state.devices if device.group == card.group]
    return [device for device in mates if device.slot != card.slot and not device.is_bridge]


def _no_driver(state: NodeState) -> Check:
    found = sorted(state.modules & {"nvidia", "nouveau", "nova_core"})
    return Check("no NVIDIA driver on the node", not found, _list(found) or "none", NODE_TAG, "node-prepare")


def _modules_listed(state: NodeState) -> Check:
    """nvidia or vfio_virqfd there leave the boot waiting for systemd-modules-load (cloudmigration.blog)."""
    bad = [name for name in state.listed if name.split()[0] in ("nvidia", "nvidia_drm", "nvidia_uvm", "vfio_virqfd")]
    return Check("modules loaded at boot", not bad, _list(bad) or _list(state.listed), NODE_TAG, "node-prepare")


def _kernel(state: NodeState) -> Check:
    return Check(
        "kernel not known as bad",
        state.kernel not in BAD_KERNELS,
        state.kernel,
        "proxmox-boot-tool kernel pin VERSION, with one that worked; then reboot the node",
        "vm-start",
    )


def _map_speed(state: NodeState) -> Check:
    """VFIO maps every page of memory and BARs: by 4 KiB on old kernels, and again at each toggle of the firmware."""
    qemu = state.versions.get("pve-qemu-kvm", "")
    slow = [f"kernel {state.kernel}"] if len(state.kernel) > 0 and version(state.kernel) < FRESH_KERNEL else []
    slow += [f"QEMU {qemu}"] if qemu and version(qemu) < FRESH_QEMU else []
    detail = f"{_list(slow)}: the VM's start takes minutes" if slow else f"kernel {state.kernel}, QEMU {qemu or '?'}"
    return Check("quick start", not slow, detail, "PVE 9 with kernel 6.14 or newer", "vm-start", advice=True)


def _firmware(state: NodeState) -> Check:
    """The VMs' firmware, which gives the cards their window."""
    text = state.versions.get("pve-edk2-firmware-ovmf", "")
    found = tuple(int(number) for number in re.findall(r"\d+", text)[1:3])
    fix = "apt full-upgrade on the node"
    return Check("OVMF sizes its window", not text or found >= FRESH_OVMF, text or "not told", fix, "guest-window")


def _kernel_log(state: NodeState) -> Iterator[Check]:
    """The last word of the kernel on each kind of trouble that is known."""
    known: dict[str, Check] = {}
    for line in state.dmesg:
        cause = explain(line)
        if cause is not None:
            known[cause.what] = Check("kernel log", False, f"{cause.what}: {line}", cause.cure, cause.page)
    yield from known.values()
    if not known:
        yield Check("kernel log", True, "nothing that is known as trouble")


def _access_control(state: NodeState, vm: Vm | None) -> Check:
    """ACS sends traffic between cards by the root complex: slower, and hangs where that drops it (nccl #2079).

    Told, never changed: without it a VM's card can reach what is another's.
    """
    redirecting = [bridge.split()[0] for bridge, said in pairwise(state.acs) if "ReqRedir+" in said]
    detail = f"{len(redirecting)} bridges redirect requests between cards: {_list(redirecting)}"
    fix = "if the ladder hangs: setpci -s BRIDGE ECAP_ACS+6.w=0000 for each, which gives their isolation up"
    wanted = vm is not None and vm.p2p != "off"
    return Check("ACS", not (wanted and redirecting), detail.rstrip(": "), fix, "peer-to-peer", advice=True)


def _threads(state: NodeState, vm: Vm) -> Check:
    return Check("CPU threads", vm.cores <= state.threads, f"{vm.cores} vCPUs, {state.threads} threads",
                 "fewer `cores`", "vm-start")  # fmt: skip


def _window(state: NodeState, vm: Vm, gpus: Gpus) -> Check:
    """OVMF gives an eighth of the guest's address space to 64-bit BARs; eight of 128 GiB take 43 bits."""
    need = gpus.count * (1 << (gpus.memory_mib - 1).bit_length()) << 20
    bits = min(vm.phys_bits or state.phys_bits, state.phys_bits)
    detail = f"{bits} address bits, window {(1 << bits) // 8 // GIB} GiB, the cards take {need // GIB} GiB"
    if not state.has_gib_pages:
        return Check("PCI window", False, "the CPU shows no 1 GiB pages, and OVMF then takes 40 bits",
                     "cpu: host without -pdpe1gb", "guest-window")  # fmt: skip
    if state.iommu_bits is not None and bits > state.iommu_bits:
        fix = f"phys_bits: {state.iommu_bits} for the VM (PVE 9.2), or p2p: off"
        said = f"{detail}; the IOMMU reaches {state.iommu_bits} bits only: peer-to-peer between the cards cannot work"
        return Check("PCI window", vm.p2p == "off" and (1 << bits) // 8 >= need, said, fix, "guest-window")
    return Check(
        "PCI window", (1 << bits) // 8 >= need, detail, "cpu: host, and phys_bits of 43 or more", "guest-window"
    )


def _numa(state: NodeState, cards: Sequence[Device], vm: Vm) -> Check:
    missing = [node for node in vm.numa_nodes if node not in state.pages]
    where = {numa: sum(card.numa == numa for card in cards) for numa in sorted({card.numa for card in cards})}
    detail = f"cards by NUMA node: {where}" + (
        f"; the node has no NUMA node {_list(map(str, missing))}" if missing else ""
    )
    return Check("NUMA nodes", not missing, detail, "numa_nodes of the VM as the node has them", "vm-start")


def _others(state: NodeState, cards: Sequence[Device], vm: Vm) -> Iterator[Check]:
    """A running VM with one of the cards: by mapping's name or by address."""
    addresses = {card.slot.removeprefix("0000:") for card in cards}
    holders: list[str] = []
    for number, runs, line in state.guests:
        parts = properties.read("hostpci", line.partition(": ")[2])
        hosts = {host.removeprefix("0000:").partition(".")[0] for host in parts.get("host", "").split(";")}
        if number != vm.id and runs and (parts.get("mapping") == vm.mapping or hosts & addresses):
            holders.append(f"VM {number}: {line}")
    yield Check("cards free", not holders, _list(holders) or "no other running VM has one",
                "shut that VM down, or take the card out of it", "vm-start")  # fmt: skip


def _backups(state: NodeState, node: str, vm: Vm) -> Check:
    """`node`: its name in the cluster."""
    pools = backups.members(state.pools)
    takers = [job for job in backups.jobs(state.backups) if job.takes(vm.id, node, pools)]
    detail = _list(f"the backup job {job.id} takes it" for job in takers) or "no job takes it"
    if takers:
        detail += ": a backup of the stopped VM starts it, and resets its cards"
    return Check("out of backups", not takers, detail, "; ".join(job.cure(vm.id) for job in takers), "vm-start", True)


def _pages(state: NodeState, vm: Vm) -> Check:
    share = vm.memory_gib // len(vm.numa_nodes)
    short = [n for n in vm.numa_nodes if state.pages.get(n, (0, 0))[1] < share]
    lines = [
        f"node {n}: {state.pages.get(n, (0, 0))[1]} free of {state.pages.get(n, (0, 0))[0]}" for n in vm.numa_nodes
    ]
    return Check("1 GiB pages", not short, f"{share} wanted a NUMA node; {_list(lines)}",
                 "hugepages_gib for the node, then reboot it: no such page is found later", "vm-start")  # fmt: skip


def _memory(state: NodeState, vm: Vm) -> Check:
    need = vm.memory_gib * GIB + HEADROOM
    detail = f"{state.memory_available // GIB} GiB available, {need // GIB} GiB wanted with headroom"
    return Check("memory", state.memory_available >= need, detail,
                 "less memory_gib, fewer other VMs, a smaller ZFS ARC", "vm-start")  # fmt: skip


def version(text: str) -> tuple[int, int]:
    numbers = re.findall(r"\d+", text)
    return (int(numbers[0]), int(numbers[1])) if len(numbers) > 1 else (0, 0)


def _list(words: Iterable[str]) -> str:
    return ", ".join(words)
