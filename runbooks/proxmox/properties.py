"""Property strings, the values of a VM's configuration: `host,flags=+aes`, written and read.

Source: PVE::JSONSchema::parse_property_string and print_property_string (proxmox/pve-common), and the formats of
proxmox/qemu-server. A default key may stand without its name, and comes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Parts = dict[str, str]
Part = str | int | bool | None

# The key that may stand without its name, by the configuration key without its number.
DEFAULT_KEYS = {
    "scsi": "file",
    "ide": "file",
    "sata": "file",
    "virtio": "file",
    "efidisk": "file",
    "net": "model",
    "hostpci": "host",
    "cpu": "cputype",
    "machine": "type",
    "agent": "enabled",
    "vga": "type",
    "memory": "current",
    "boot": "legacy",
}
_FORMATS = (*DEFAULT_KEYS, "numa", "ipconfig")
_TRUE = ("1", "on", "yes", "true")  # JSONSchema::parse_boolean
_FALSE = ("0", "off", "no", "false")
# Sub-keys of type boolean, so that `1`, `on` and `yes` compare as the same; `discard=on` is no boolean.
_BOOLEANS = frozenset(
    {
        *("pcie", "rombar", "x-vga", "iothread", "ssd", "backup", "ro", "shared", "replicate", "firewall", "link_down"),
        *("enabled", "fstrim_cloned_disks", "freeze-fs-on-backup", "freeze-fs", "pre-enrolled-keys", "hidden"),
        "legacy-igd",
    }
)


def write(default: str | None = None, /, **parts: Part) -> str:
    """`write("host", flags="+aes")` -> `host,flags=+aes`. Underscores become dashes; None is left out."""
    words = [default] if default is not None else []
    words += [f"{name.replace('_', '-')}={_plain(value)}" for name, value in parts.items() if value is not None]
    return ",".join(words)


def _plain(value: Part) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def has_parts(key: str) -> bool:
    """Is the value of this configuration key a property string? `numa` is a plain switch, `numa0` a string."""
    name = key.rstrip("0123456789")
    return name in _FORMATS and not (name == "numa" and key == "numa")


def read(key: str, value: str) -> Parts:
    """A property string as its parts, booleans as 0 and 1. Works for keys of which `has_parts` is true."""
    name = key.rstrip("0123456789")
    parts: Parts = {}
    for word in filter(None, value.split(",")):
        part, equals, text = word.partition("=")
        if not equals:
            part, text = DEFAULT_KEYS.get(name, ""), word
        elif name == "net" and part not in _NET_PARTS:
            parts["model"] = part  # `virtio=BC:24:11:00:00:01` is model and macaddr in one
            part = "macaddr"
        if part in _BOOLEANS:
            text = "1" if text.lower() in _TRUE else "0" if text.lower() in _FALSE else text
        parts[_ALIASES.get(part, part)] = text
    return parts


_NET_PARTS = ("model", "macaddr", "bridge", "firewall", "link_down", "mtu", "queues", "rate", "tag", "trunks")
_ALIASES = {"volume": "file", "freeze-fs-on-backup": "freeze-fs", "guest-fsfreeze": "freeze-fs"}


@dataclass(frozen=True)
class MapEntry:
    """One card of a cluster-wide PCI mapping: where it is expected, and what. `path` ends in `.0`: the GPU alone.

    `subsystem` and `iommu_group` let PVE notice that a kernel renumbered the buses.
    """

    node: str
    path: str
    id: str
    iommu_group: int
    subsystem: str

    def __str__(self) -> str:
        return write(
            node=self.node, path=self.path, id=self.id, iommugroup=self.iommu_group, subsystem_id=self.subsystem
        )


def read_map(value: str) -> Parts:
    return dict(word.partition("=")[::2] for word in value.split(",") if "=" in word)


def numbered(name: str, values: Sequence[str]) -> Mapping[str, str]:
    """`numbered("numa", [a, b])` -> {"numa0": a, "numa1": b}."""
    return {f"{name}{number}": value for number, value in enumerate(values)}
