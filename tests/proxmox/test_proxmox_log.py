"""Public failures that print nothing to search for: what the user sees instead, its cause and its cure.

Those that print a line of their own stand in data/failures.tsv; those of the client in test_proxmox_client.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from runbooks.inventory.shape import Gpus, Node, SecretRef, Vm
from runbooks.proxmox.look import read
from runbooks.proxmox.preflight import checks
from tests.proxmox.node_text import node_text

MakeVm = Callable[..., Vm]
NODE = Node(api="https://192.0.2.2:8006", user="root@pam!x", token=SecretRef(env="X"))
GPUS = Gpus(count=8, name="NVIDIA RTX PRO 6000 Blackwell Server Edition", memory_mib=97887, arch="12.0")

# where it was reported -> (the node, the VM), and the check that tells it: its name, cause and cure
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str, str, str]] = {
    "tianocore/edk2 #10856: large BARs take minutes": (
        {"kernel": "6.8.12-4-pve", "versions": "pve-qemu-kvm 9.0.2-4"}, {},
        "quick start", "the VM's start takes minutes", "kernel 6.14 or newer",
    ),
    "cloud-hypervisor #8896: a window below 1 TiB meets AMD's HyperTransport hole": (
        {"cpu": "vendor_id	: AuthenticAMD\naddress sizes	: 40 bits physical\npdpe1gb\n256"}, {"p2p": "clique"},
        "PCI window", "40 address bits, window 128 GiB, the cards take 1024 GiB", "phys_bits of 43 or more",
    ),
    "bpg #1353: the IOMMU is narrower than the window": (
        {"iommu": f"dmar0\ncap {(38 << 16) | 0x462:x}"}, {"p2p": "clique"},
        "PCI window", "peer-to-peer between the cards cannot work", "p2p: off",
    ),
    "vllm #51513, NVIDIA/nccl #2079: redirected requests are dropped": (
        {}, {"p2p": "auto"},
        "ACS", "1 bridges redirect requests between cards: 60:01.1", "setpci -s BRIDGE ECAP_ACS+6.w=0000",
    ),
    "intel/compute-runtime #942: peer copies corrupt without iommu=pt": (
        {"dmesg": "iommu: Default domain type: Translated"}, {},
        "IOMMU passthrough", "Default domain type: Translated", "invoke provision --tags node",
    ),
    "strongtz #322: a kernel that hands no group over": (
        {"kernel": "6.8.12-12-pve"}, {}, "kernel not known as bad", "6.8.12-12-pve", "kernel pin",
    ),
    "proxmox/qemu-server: a backup of a stopped VM starts it": (
        {"backups": "vzdump: nightly\nall 1"}, {}, "out of backups", "resets its cards", "--exclude 129",
    ),
}  # fmt: skip


@pytest.mark.parametrize("where", CASES)
def test_a_silent_failure_is_told_by_cause_and_cure(make_vm: MakeVm, where: str) -> None:
    node, vm, name, cause, cure = CASES[where]
    found = checks(read(node_text(**node)), NODE, GPUS, make_vm(**vm))
    (bad,) = [check for check in found if check.name == name]
    assert not bad.ok
    assert cause in bad.detail
    assert cure in bad.fix
    assert bad.page
    assert all(check.ok for check in checks(read(node_text()), NODE, GPUS, make_vm()))
