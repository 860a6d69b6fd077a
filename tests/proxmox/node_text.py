"""What the look at a healthy node prints: two EPYC sockets, eight cards with their audio, all bound to vfio-pci."""

from __future__ import annotations

CARDS = tuple(f"0000:{bus}:00" for bus in ("01", "21", "41", "61", "81", "a1", "c1", "e1"))
BAR1 = "0x0000020000000000 0x0000021fffffffff 0x000000000014220c"  # 128 GiB

_TEXT = """\
== kernel
6.17.2-1-pve
== cmdline
BOOT_IMAGE=/vmlinuz-6.17.2-1-pve root=/dev/mapper/pve-root ro quiet iommu=pt
== cpu
vendor_id	: AuthenticAMD
address sizes	: 52 bits physical, 57 bits virtual
pdpe1gb
256
== memory
MemTotal:       1056000000 kB
MemAvailable:   1040000000 kB
== pages
0 512 512
1 512 512
== iommu
ivhd0
ivhd1
== versions
pve-manager 9.1.2
pve-qemu-kvm 10.1.2-3
pve-edk2-firmware-ovmf 4.2025.05-2
== modules
vfio_pci
vfio
vfio_iommu_type1
== listed
vfio
vfio_iommu_type1
vfio_pci
== pci
{pci}
== guests
100 on hostpci0: mapping=other,pcie=1
== backups
vzdump: nightly
schedule 21:00
enabled 1
all 1
exclude 129
mode snapshot
storage local
== pools
pool:labs::105,106:local-zfs:
== acs
60:01.1 PCI bridge: Advanced Micro Devices, Inc. [AMD] Device 14ab
		ACSCtl:	SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
== dmesg
[    1.000000] iommu: Default domain type: Passthrough (set via kernel command line)
[    9.000000] vfio_pci: add [10de:2bb5[ffffffff:ffffffff]] class 0x000000/00000000
"""


def card(number: int, function: int = 0, **changes: str) -> str:
    """One line of the PCI part. Fields by name replace those of a healthy card."""
    audio = function == 1
    fields = {
        "address": f"{CARDS[number]}.{function}",
        "vendor": "0x10de",
        "device": "0x22e8" if audio else "0x2bb5",
        "kind": "0x040300" if audio else "0x030200",
        "subsystem_vendor": "0x10de",
        "subsystem_device": "0x0000" if audio else "0x204e",
        "driver": "vfio-pci",
        "group": str(20 + number),
        "numa": str(number // 4),
        "speed": "32.0 GT/s PCIe",
        "width": "16",
        "max_speed": "32.0 GT/s PCIe",
        "max_width": "16",
        "power": "on",
        "d3cold": "0",
        "reset": "flr bus",
        "bar1": "-" if audio else BAR1,
        "vendor_now": "10de",
        "above": "0000:00:01.1",
    }
    return "|".join({**fields, **changes}.values()) + "|"


def healthy() -> list[str]:
    bridge = card(0, address="0000:00:01.1", vendor="0x1022", device="0x14ab", kind="0x060400", driver="pcieport",
                  bar1=BAR1, vendor_now="1022", above="pci0000:00")  # fmt: skip
    return [bridge, *(card(number, function) for number in range(8) for function in (0, 1))]


def node_text(pci: list[str] | None = None, **replaced: str) -> str:
    """`replaced`: whole parts by their name."""
    text = _TEXT.format(pci="\n".join(healthy() if pci is None else pci))
    parts = [part.partition("\n") for part in text.split("== ")[1:]]
    return "".join(f"== {name}\n{replaced.get(name, body).rstrip()}\n" for name, _, body in parts)
