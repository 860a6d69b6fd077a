"""A Proxmox node as its own shell shows it: one question, read into plain values.

From sysfs and not from lspci where it can be: lspci's text of a card that fell off the bus may be its cached name,
while the first two bytes of its configuration space are asked of the card itself (ffff: nobody there).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runbooks.engine.step import Question, shell

PCI = "/sys/bus/pci/devices"

PACKAGES = ("pve-manager", "qemu-server", "pve-qemu-kvm", "pve-edk2-firmware-ovmf")
MODULES = ("vfio", "vfio_pci", "vfio_iommu_type1", "nvidia", "nouveau", "nova_core", "snd_hda_intel")
TELLING = ("vfio", "Default domain type", "not ready", "D3cold", "FLR", "AER", "DMAR", "AMD-Vi", "IOMMU")

SCRIPT = f"""\
part() {{ printf '== %s\\n' "$1"; }}
part kernel; uname -r
part cmdline; cat /proc/cmdline
part cpu; grep -m1 '^vendor_id' /proc/cpuinfo; grep -m1 '^address sizes' /proc/cpuinfo
grep -m1 -ow pdpe1gb /proc/cpuinfo; nproc --all
part memory; grep -E '^Mem(Total|Available):' /proc/meminfo
part pages
for n in /sys/devices/system/node/node[0-9]*; do
  h=$n/hugepages/hugepages-1048576kB
  echo "${{n##*/node}} $(cat $h/nr_hugepages 2>/dev/null || echo 0) $(cat $h/free_hugepages 2>/dev/null || echo 0)"
done
part iommu; ls /sys/class/iommu 2>/dev/null; cat /sys/class/iommu/dmar*/intel-iommu/cap 2>/dev/null | sed 's/^/cap /'
part versions
dpkg-query -W -f '${{Package}} ${{Version}}\\n' {" ".join(PACKAGES)} 2>/dev/null
part modules; cut -d ' ' -f 1 /proc/modules | grep -xE '{"|".join(MODULES)}'
part listed; cat /etc/modules /etc/modules-load.d/*.conf 2>/dev/null | sed 's/#.*//' | grep -v '^ *$' | sort -u
part pci
for d in {PCI}/*; do
  [ -e "$d/vendor" ] || continue
  own() {{ cat "$d/$1" 2>/dev/null || echo -; }}
  link() {{ l=$(readlink "$d/$1") && echo "${{l##*/}}" || echo -; }}
  set -- "${{d##*/}}"
  for name in vendor device class subsystem_vendor subsystem_device; do set -- "$@" "$(own $name)"; done
  set -- "$@" "$(link driver)" "$(link iommu_group)" "$(own numa_node)"
  for name in current_link_speed current_link_width max_link_speed max_link_width power/control d3cold_allowed; do
    set -- "$@" "$(own $name)"
  done
  case $(own class) in 0x0604*) line=16 ;; *) line=2 ;; esac
  set -- "$@" "$(own reset_method)" "$(own resource | sed -n ${{line}}p)"
  above=$(readlink -f "$d/..")
  printf '%s|' "$@" "$(od -An -tx2 -N2 "$d/config" 2>/dev/null | tr -d ' ')" "${{above##*/}}"
  echo
done
part guests
for f in /etc/pve/qemu-server/*.conf; do
  [ -e "$f" ] || continue
  v=${{f##*/}}; v=${{v%.conf}}; on=off; [ ! -e "/run/qemu-server/$v.pid" ] || on=on
  sed -n '/^\\[/q;/^hostpci[0-9]*:/p' "$f" | sed "s/^/$v $on /"
done
part backups; cat /etc/pve/jobs.cfg /etc/pve/vzdump.cron 2>/dev/null
part pools; grep '^pool:' /etc/pve/user.cfg 2>/dev/null
part acs
! command -v lspci >/dev/null || lspci -vv 2>/dev/null | grep -E 'PCI bridge|ACSCtl' | grep -B1 ACSCtl | head -n 64
part dmesg; dmesg 2>/dev/null | grep -E '{"|".join(TELLING)}' | tail -n 200
"""

QUESTION: Question = shell(SCRIPT, deadline=30.0)


@dataclass(frozen=True)
class Device:
    """A PCI function. Sizes in bytes; `vendor_now` is what its configuration space answers just now."""

    address: str
    id: str
    subsystem: str
    kind: str  # the class, six hex digits
    driver: str | None
    group: int | None
    numa: int
    speed: str
    width: int
    max_speed: str
    max_width: int
    power: str
    d3cold: str
    reset: str
    bar1: int  # of a bridge: its window for what is 64 bits and prefetchable
    vendor_now: str
    above: str = ""  # the address of the bridge that it hangs on

    @property
    def is_bridge(self) -> bool:
        return self.kind.startswith("0604")

    @property
    def slot(self) -> str:
        return self.address.rpartition(".")[0]


@dataclass(frozen=True, kw_only=True)
class NodeState:
    """`pages`: NUMA node -> 1 GiB pages (all, free). `guests`: (VM, runs, its hostpci line)."""

    kernel: str = ""
    cmdline: str = ""
    vendor: str = ""
    phys_bits: int = 0
    has_gib_pages: bool = True
    threads: int = 0
    memory_total: int = 0
    memory_available: int = 0
    pages: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    has_iommu: bool = False
    iommu_bits: int | None = None  # None: not told (AMD)
    versions: Mapping[str, str] = field(default_factory=dict)
    modules: frozenset[str] = frozenset()
    listed: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()
    guests: tuple[tuple[int, bool, str], ...] = ()
    backups: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    acs: tuple[str, ...] = ()
    dmesg: tuple[str, ...] = ()

    def cards(self, ids: Sequence[str]) -> tuple[Device, ...]:
        return tuple(device for device in self.devices if device.id in ids)


def read(text: str) -> NodeState:
    """The script's output, read. Parts that are missing leave their value empty."""
    parts: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("== "):
            lines = parts.setdefault(line[3:], [])
        elif line.strip():
            lines.append(line.strip())
    cpu = "\n".join(parts.get("cpu", []))
    memory = dict(re.findall(r"(\w+):\s+(\d+)", "\n".join(parts.get("memory", []))))
    caps = [line.split()[1] for line in parts.get("iommu", []) if line.startswith("cap ")]
    return NodeState(
        kernel=" ".join(parts.get("kernel", [])),
        cmdline=" ".join(parts.get("cmdline", [])),
        vendor=_found(r"vendor_id\s*:\s*(\S+)", cpu),
        phys_bits=int(_found(r"(\d+) bits physical", cpu) or 0),
        has_gib_pages="pdpe1gb" in cpu.split(),
        threads=int(_found(r"^(\d+)$", cpu) or 0),
        memory_total=1024 * int(memory.get("MemTotal", 0)),
        memory_available=1024 * int(memory.get("MemAvailable", 0)),
        pages={int(n): (int(total), int(free)) for n, total, free in map(str.split, parts.get("pages", []))},
        has_iommu=any(not line.startswith("cap ") for line in parts.get("iommu", [])),
        iommu_bits=min((iommu_width(int(cap, 16)) for cap in caps), default=None),
        versions=dict(line.split(" ", 1) for line in parts.get("versions", []) if " " in line),
        modules=frozenset(parts.get("modules", [])),
        listed=tuple(parts.get("listed", [])),
        devices=tuple(map(_device, parts.get("pci", []))),
        guests=tuple(
            (int(vm), on == "on", rest) for vm, on, rest in (line.split(" ", 2) for line in parts.get("guests", []))
        ),
        backups=tuple(parts.get("backups", [])),
        pools=tuple(parts.get("pools", [])),
        acs=tuple(parts.get("acs", [])),
        dmesg=tuple(parts.get("dmesg", [])),
    )


def iommu_width(capability: int) -> int:
    """Address bits of an Intel IOMMU: MGAW, bits 16 to 21 of its capability register, plus one (VT-d 11.4.2)."""
    return ((capability >> 16) & 0x3F) + 1


def _device(line: str) -> Device:
    fields = (*line.split("|"), *["-"] * 19)[:19]
    (address, vendor, device, kind, sub_vendor, sub_device, driver, group, numa, *rest) = fields
    speed, width, max_speed, max_width, power, d3cold, reset, bar, now, above = rest
    return Device(
        address=address,
        id=f"{_hex(vendor)}:{_hex(device)}",
        subsystem=f"{_hex(sub_vendor)}:{_hex(sub_device)}",
        kind=_hex(kind),
        driver=None if driver == "-" else driver,
        group=int(group) if group.isdigit() else None,
        numa=int(numa) if numa.lstrip("-").isdigit() else -1,
        speed=speed,
        width=int(width) if width.isdigit() else 0,
        max_speed=max_speed,
        max_width=int(max_width) if max_width.isdigit() else 0,
        power=power,
        d3cold=d3cold,
        reset=reset,
        bar1=_bar_size(bar),
        vendor_now=now,
        above=above,
    )


def _bar_size(line: str) -> int:
    """`0x… 0x… 0x…` of sysfs `resource`: first and last byte, flags. A BAR without an address has none at all."""
    words = line.split()
    if len(words) < 2 or not words[0].startswith("0x"):
        return 0
    first, last = int(words[0], 16), int(words[1], 16)
    return last - first + 1 if last > first and first > 0 else 0


def _hex(text: str) -> str:
    return text.removeprefix("0x").lower()


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    return match[1] if match else ""
