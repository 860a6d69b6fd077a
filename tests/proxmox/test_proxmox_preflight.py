"""The checks of a node: all pass on a healthy one, and each fault is named with its cure, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from runbooks.inventory.shape import Gpus, Node, SecretRef, Vm
from runbooks.proxmox.look import iommu_width, read
from runbooks.proxmox.preflight import Check, checks
from tests.proxmox.node_text import card, healthy, node_text

MakeVm = Callable[..., Vm]
NODE = Node(api="https://192.0.2.2:8006", user="root@pam!x", token=SecretRef(env="X"))
GPUS = Gpus(count=8, name="NVIDIA RTX PRO 6000 Blackwell Server Edition", memory_mib=97887, arch="12.0")
GIB = 1 << 30


def found(text: str, vm: Vm, *, running: bool = False) -> list[Check]:
    return checks(read(text), NODE, GPUS, vm, running=running)


def failing(text: str, vm: Vm, *, advice: bool = False, running: bool = False) -> dict[str, Check]:
    bad = [check for check in found(text, vm, running=running) if not check.ok and check.advice is advice]
    return {check.name: check for check in bad}


def with_card(number: int, function: int = 0, **changes: str) -> list[str]:
    rows = healthy()
    rows[1 + 2 * number + function] = card(number, function, **changes)
    return rows


def test_a_healthy_node(make_vm: MakeVm) -> None:
    for vm in (make_vm(), make_vm(hugepages=True)):
        assert failing(node_text(), vm) == {}
        assert failing(node_text(), vm, advice=True) == {}
    assert all(check.detail for check in found(node_text(), make_vm()))


FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "IOMMU off": ({"iommu": "", "pci": [card(n, group="-") for n in range(8)]}, "IOMMU", "kernel command line"),
    "no passthrough": (
        {"dmesg": "iommu: Default domain type: Translated"}, "IOMMU passthrough", "Translated",
    ),
    "a card is missing": ({"pci": healthy()[:-2]}, "cards", "7 of 8"),
    "a card is dead, its name still there": (
        {"pci": with_card(3, vendor_now="ffff")}, "cards alive", "0000:61:00.0 answers ffff",
    ),
    "a stranger in the group": (
        {"pci": [*healthy(), card(0, address="0000:02:00.0", vendor="0x8086", device="0x1521", kind="0x020000")]},
        "IOMMU groups", "0000:01:00.0 shares group 20 with 0000:02:00.0 (8086:1521)",
    ),
    "audio has its own driver": (
        {"pci": with_card(2, 1, driver="snd_hda_intel")}, "bound to vfio-pci", "(10de:22e8) has snd_hda_intel",
    ),
    "no driver at all": ({"pci": with_card(2, driver="-")}, "bound to vfio-pci", "has no driver"),
    "link is down": ({"pci": with_card(5, width="0")}, "link width", "0000:a1:00.0 x0 of x16"),
    "link is narrow": ({"pci": with_card(5, width="8")}, "link width", "x8 of x16"),
    "Resizable BAR is off": (
        {"pci": with_card(1, bar1="0x00000000d0000000 0x00000000dfffffff 0x14220c")},
        "Resizable BAR", "0000:21:00.0 BAR1 256 MiB of 131072",
    ),
    "BAR without an address": (
        {"pci": with_card(1, bar1="0x0000000000000000 0x0000001fffffffff 0x14220c")}, "Resizable BAR", "BAR1 0 MiB",
    ),
    "a bridge without room": (
        {"pci": [card(0, address="0000:00:01.1", vendor="0x1022", kind="0x060400", vendor_now="1022",
                      bar1="0x0000020000000000 0x00000207ffffffff 0x0014220c"), *healthy()[1:]]},
        "bridge windows", "0000:01:00.0 hangs on 0000:00:01.1, whose window is 32 GiB of 128",
    ),
    "an old OVMF": (
        {"versions": "pve-edk2-firmware-ovmf 4.2022.08-1"}, "OVMF sizes its window", "4.2022.08-1",
    ),
    "D3cold is allowed": (
        {"pci": with_card(7, d3cold="1", power="auto")}, "no deep sleep", "d3cold_allowed=1 power/control=auto",
    ),
    "a driver on the node": ({"modules": "vfio\nnouveau"}, "no NVIDIA driver on the node", "nouveau"),
    "a gone module is listed": ({"listed": "vfio\nvfio_virqfd"}, "modules loaded at boot", "vfio_virqfd"),
    "a kernel known as bad": ({"kernel": "6.14.8-1-pve"}, "kernel not known as bad", "6.14.8-1-pve"),
    "FLR failed": (
        {"dmesg": "Default domain type: Passthrough\nvfio-pci 0000:61:00.0: not ready 65535ms after FLR; giving up"},
        "kernel log", "did not come back from its reset",
    ),
    "too few threads": ({"cpu": "address sizes : 52 bits physical\npdpe1gb\n64"}, "CPU threads", "64 threads"),
    "too few address bits": (
        {"cpu": "address sizes	: 42 bits physical\npdpe1gb\n256"}, "PCI window", "42 address bits, window 512 GiB",
    ),
    "no 1 GiB pages in the CPU": ({"cpu": "address sizes	: 52 bits physical\n256"}, "PCI window", "no 1 GiB pages"),
    "a NUMA node is missing": ({"pages": "0 512 512"}, "NUMA nodes", "has no NUMA node 1"),
    "another VM has a card, by mapping": (
        {"guests": "105 on hostpci0: mapping=rtxpro6000,pcie=1"}, "cards free", "VM 105: hostpci0: mapping=rtxpro6000",
    ),
    "another VM has a card, by address": (
        {"guests": "105 on hostpci3: 0000:41:00.0,pcie=1"}, "cards free", "VM 105",
    ),
    "memory is short": ({"memory": "MemAvailable: 400000000 kB"}, "memory", "381 GiB available, 776 GiB wanted"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_named(make_vm: MakeVm, name: str) -> None:
    changes, check, words = FAULTS[name]
    bad = failing(node_text(**changes), make_vm())
    assert check in bad, bad
    assert words in bad[check].detail
    assert bad[check].fix
    assert bad[check].page
    allowed = {check, *({"bound to vfio-pci", "IOMMU"} if name in ("IOMMU off", "a card is missing") else set())}
    assert set(bad) <= allowed


def test_huge_pages_are_counted_a_numa_node(make_vm: MakeVm) -> None:
    bad = failing(node_text(pages="0 512 512\n1 512 100"), make_vm(hugepages=True))
    assert "384 wanted a NUMA node; node 0: 512 free of 512, node 1: 100 free of 512" in bad["1 GiB pages"].detail


def test_memory_of_a_running_vm_is_its_own(make_vm: MakeVm) -> None:
    assert failing(node_text(memory="MemAvailable: 1000 kB"), make_vm(), running=True) == {}


def test_a_stopped_vm_and_our_own_hold_no_card(make_vm: MakeVm) -> None:
    text = node_text(guests="105 off hostpci0: 0000:41:00.0\n129 on hostpci0: mapping=rtxpro6000")
    assert failing(text, make_vm()) == {}


def test_slow_mapping_is_advice(make_vm: MakeVm) -> None:
    text = node_text(kernel="6.8.12-4-pve", versions="pve-qemu-kvm 9.0.2-4")
    assert failing(text, make_vm()) == {}
    assert (
        "6.8.12-4-pve, QEMU 9.0.2-4: the VM's start takes minutes"
        in failing(text, make_vm(), advice=True)["quick start"].detail
    )


@pytest.mark.parametrize(("capability", "bits"), [(0x8D2008C10EF0462, 46), (0xD2008C40660462, 39)])
def test_the_width_of_an_iommu(capability: int, bits: int) -> None:
    value = (capability & ~(0x3F << 16)) | ((bits - 1) << 16)
    assert iommu_width(value) == bits


def test_a_narrow_iommu_forbids_peer_to_peer_only(make_vm: MakeVm) -> None:
    """VT-d with 39 bits: `vfio_dma_map = -22`, the VM runs and P2P is dead (bpg #1353)."""
    cap = (38 << 16) | 0x462
    text = node_text(iommu=f"dmar0\ncap {cap:x}")
    assert failing(text, make_vm()) == {}
    bad = failing(text, make_vm(p2p="clique"))
    assert "the IOMMU reaches 39 bits only: peer-to-peer between the cards cannot work" in bad["PCI window"].detail


@pytest.mark.parametrize(("bits", "good"), [(40, False), (41, False), (42, False), (43, True), (46, True), (48, True)])
def test_the_window_rule_agrees_with_what_was_measured(make_vm: MakeVm, bits: int, good: bool) -> None:
    """tests/proxmox/data/guest-mmio: q35 and OVMF with eight 128 GiB BARs."""
    text = node_text(cpu=f"address sizes	: {bits} bits physical\npdpe1gb\n256")
    assert ("PCI window" not in failing(text, make_vm())) is good
    assert ("PCI window" not in failing(node_text(), make_vm(phys_bits=bits))) is good


def test_a_look_with_holes_is_read(make_vm: MakeVm) -> None:
    """Not root, no dmesg, a strange kernel: checks fail, nothing breaks."""
    assert "IOMMU" in failing("", make_vm())
    assert "cards" in failing("== pci\n0000:00:00.0|\n", make_vm())


def test_access_control_is_only_told(make_vm: MakeVm) -> None:
    (acs,) = [check for check in found(node_text(), make_vm()) if check.name == "ACS"]
    assert acs.ok
    assert acs.detail == "1 bridges redirect requests between cards: 60:01.1"


def test_a_backup_job_is_advice(make_vm: MakeVm) -> None:
    text = node_text(backups="vzdump: nightly\nall 1\nexclude 100")
    assert failing(text, make_vm()) == {}
    bad = failing(text, make_vm(), advice=True)["out of backups"]
    assert bad.detail.startswith("the backup job nightly takes it: a backup of the stopped VM starts it")
    assert bad.fix == "pvesh set /cluster/backup/nightly --exclude 100,129"
