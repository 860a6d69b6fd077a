"""Which parameters PVE takes, and what their property strings may hold. From PVE's API documentation."""

from __future__ import annotations

import re
from collections.abc import Mapping

_ID = r"[A-Za-z][A-Za-z0-9_-]+"
_BOOL = r"0|1|on|off|yes|no|true|false"
_SET = r"\d+(-\d+)?(;\d+(-\d+)?)*"
_VOLUME = r"[A-Za-z][\w.-]*:[\w./-]+|none"
_DISK = {"file": _VOLUME, "size": r"\d+(\.\d+)?[KMGT]?", "discard": "ignore|on", "ssd": _BOOL, "iothread": _BOOL,
         "backup": _BOOL, "import-from": r"[A-Za-z][\w.-]*:[\w./-]+", "format": "raw|qcow2|vmdk", "ro": _BOOL,
         "media": "disk|cdrom", "cache": "none|writethrough|writeback", "aio": "native|threads|io_uring"}  # fmt: skip

# key without its number -> (the part that may stand without its name, parts)
PARTS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "hostpci": ("host", {
        "host": r"([0-9a-f]{4,}:)?[0-9a-f]{2}:[0-9a-f]{2}(\.[0-9a-f])?(;.*)?", "mapping": _ID, "pcie": _BOOL,
        "rombar": _BOOL, "x-vga": _BOOL, "legacy-igd": _BOOL, "romfile": r"[^,;]+", "mdev": r"[^/\.:]+",
        "vendor-id": "0x[0-9a-fA-F]{4}", "device-id": "0x[0-9a-fA-F]{4}",
    }),
    "cpu": ("cputype", {"cputype": r"[\w.-]+", "flags": r"[+-][\w.-]+(;[+-][\w.-]+)*", "hidden": _BOOL,
                        "phys-bits": r"host|\d+", "reported-model": r"[\w.-]+", "hv-vendor-id": r"\w{1,12}"}),
    "machine": ("type", {"type": r"q35|pc|pc-(q35|i440fx)-\d+(\.\d+)+(\+pve\d+)?", "viommu": "intel|virtio"}),
    "agent": ("enabled", {"enabled": _BOOL, "fstrim_cloned_disks": _BOOL, "type": "virtio|isa"}),
    "numa": ("", {"cpus": _SET, "hostnodes": _SET, "memory": r"\d+", "policy": "preferred|bind|interleave"}),
    "net": ("model", {"model": "virtio|e1000|vmxnet3", "macaddr": r"([0-9A-F]{2}:){5}[0-9A-F]{2}", "bridge": _ID,
                      "tag": r"\d+", "mtu": r"\d+", "firewall": _BOOL, "queues": r"\d+", "rate": r"[\d.]+"}),
    "scsi": ("file", _DISK),
    "ide": ("file", _DISK),
    "efidisk": ("file", {"file": _VOLUME, "size": r"\d+[KMGT]?", "efitype": "2m|4m", "pre-enrolled-keys": _BOOL}),
    "ipconfig": ("", {"ip": r"dhcp|(\d+\.){3}\d+/\d+", "gw": r"(\d+\.){3}\d+", "ip6": "auto|dhcp|[0-9a-fA-F:]+/\\d+",
                      "gw6": "[0-9a-fA-F:]+"}),
    "vga": ("type", {"type": "none|std|serial[0-3]|virtio|qxl", "memory": r"\d+"}),
    "boot": ("legacy", {"legacy": "[acdn]{1,4}", "order": r"\w+(;\w+)*"}),
}  # fmt: skip
ONLY_9: Mapping[str, Mapping[str, str]] = {
    "cpu": {"guest-phys-bits": r"3[2-9]|[45]\d|6[0-4]", "level": r"\d+"},
    "hostpci": {"driver": "vfio|keep"},
    "machine": {"aw-bits": r"\d+"},
}
PLAIN: Mapping[str, str] = {
    "name": r"[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?", "memory": r"\d+", "balloon": r"\d+", "cores": r"[1-9]\d*",
    "sockets": r"[1-9]\d*", "numa_switch": _BOOL, "bios": "seabios|ovmf", "scsihw": r"virtio-scsi-(pci|single)|lsi",
    "ostype": "l26|l24|other|win1[01]", "onboot": _BOOL, "protection": _BOOL, "hotplug": r"[01]|\w+(,\w+)*",
    "serial": r"socket|/dev/[^,]+", "ciuser": r"\S+", "sshkeys": r"([A-Za-z0-9_.~-]|%[0-9A-F]{2})+",
    "nameserver": r".+", "searchdomain": r".+", "args": r".+", "affinity": r"\d+(-\d+)?(,\d+(-\d+)?)*",
    "hugepages": "any|2|1024", "keephugepages": _BOOL, "description": r"(?s).*", "tags": r".*", "vmid": r"[1-9]\d{2,8}",
    "delete": r"\w+(,\w+)*", "digest": r"[0-9a-f]+",
}  # fmt: skip
NUMBERED = ("hostpci", "numa", "net", "scsi", "ide", "efidisk", "ipconfig", "serial")


def faults(parameters: Mapping[str, str], major: int) -> dict[str, str]:
    """PVE's `errors`: parameter -> what is wrong with it, in PVE's words."""
    errors: dict[str, str] = {}
    for key, value in parameters.items():
        name = key.rstrip("0123456789") if key[-1:].isdigit() else key
        if name != key and name not in NUMBERED:
            name = ""
        if name == "numa" and key == "numa":
            name = "numa_switch"
        if name in PARTS:
            said = _parts(key, name, value, major)
        elif name in PLAIN:
            fits = re.fullmatch(PLAIN[name], value)
            said = None if fits else "invalid urlencoded string" if name == "sshkeys" else "type check failed"
        else:
            said = "property is not defined in schema and the schema does not allow additional properties"
        if said:
            errors[key] = said
    return errors


def _parts(key: str, name: str, value: str, major: int) -> str | None:
    default, known = PARTS[name]
    allowed = {**known, **(ONLY_9.get(name, {}) if major >= 9 else {})}
    for word in value.split(","):
        part, equals, text = word.partition("=")
        if not equals:
            part, text = default, word
        elif name == "net" and part in ("virtio", "e1000"):
            part = "macaddr"
        if part not in allowed:
            return (
                f"invalid format - format error\n{key}.{part}: property is not defined in schema and the schema "
                "does not allow additional properties\n"
            )
        if not re.fullmatch(allowed[part], text):
            return f"invalid format - format error\n{key}.{part}: value does not match the regex pattern\n"
    return None
