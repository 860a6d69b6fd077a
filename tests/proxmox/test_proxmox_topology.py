"""NCCL's topology from the node's real one: guest addresses matched by QEMU's own words, never by number."""

from __future__ import annotations

from collections.abc import Callable
from xml.etree import ElementTree

from runbooks.inventory.shape import Vm
from runbooks.proxmox import topology
from runbooks.proxmox.look import read
from tests.proxmox.node_text import CARDS, node_text

# PVE's root ports of hostpci4 and later enumerate before those of the first four.
GUEST_BUS = {0: 5, 1: 6, 2: 7, 3: 8, 4: 1, 5: 2, 6: 3, 7: 4}
ARGUMENTS = "\n".join(f"vfio-pci,host={CARDS[n]}.0,id=hostpci{n},bus=ich9-pcie-port-{n + 1},addr=0x0" for n in range(8))
TREE = "\n".join(
    f"  Bus  {bus}, device   0, function 0:\n    VGA controller: PCI device 10de:2bb5\n"
    f'      PCI subsystem 10de:204e\n      IRQ 0, pin A\n      BAR1: 64 bit prefetchable memory\n      id "hostpci{n}"'
    for n, bus in sorted(GUEST_BUS.items(), key=lambda pair: pair[1])
)
SAID = f'{ARGUMENTS}\n== tree\nQEMU 10.1.2 monitor\n  Bus  0, device   0, function 0:\n      id ""\n{TREE}\n'


def test_each_card_is_found_by_its_id() -> None:
    cards = topology.cards(SAID, read(node_text()))
    assert [(card.guest, card.device.address) for card in cards] == [
        (f"0000:{bus:02x}:00.0", f"{CARDS[n]}.0") for n, bus in sorted(GUEST_BUS.items(), key=lambda pair: pair[1])
    ]


def test_the_cards_hang_below_the_socket_of_their_numa_node(make_vm: Callable[..., Vm]) -> None:
    text = topology.xml(topology.cards(SAID, read(node_text())), make_vm(), "AuthenticAMD")
    root = ElementTree.fromstring(text)
    assert root.tag == "system"
    first, second = root.findall("cpu")
    assert [pci.get("busid") for pci in first] == [f"0000:0{bus}:00.0" for bus in (5, 6, 7, 8)]
    assert [pci.get("busid") for pci in second] == [f"0000:0{bus}:00.0" for bus in (1, 2, 3, 4)]
    assert first.get("affinity") == "00000000,00000000,ffffffff,ffffffff"
    assert second.get("affinity") == "ffffffff,ffffffff,00000000,00000000"
    pci = first.find("pci")
    assert pci is not None
    assert (pci.get("class"), pci.get("link_speed"), pci.get("link_width")) == ("0x030200", "32.0 GT/s PCIe", "16")


def test_without_qemus_word_nothing_is_guessed() -> None:
    state = read(node_text())
    assert topology.cards("", state) == []
    assert topology.cards(f"{ARGUMENTS}\n== tree\n", state) == []
    assert topology.cards(f"== tree\n{TREE}", state) == []


def test_a_multifunction_id_is_the_same_card() -> None:
    said = (
        'vfio-pci,host=0000:01:00.0,id=hostpci0.0,bus=x\n== tree\n Bus  1, device   0, function 0:\n id "hostpci0.0"\n'
    )
    (card,) = topology.cards(said, read(node_text()))
    assert card.guest == "0000:01:00.0"
