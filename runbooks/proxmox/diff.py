"""What differs between the VM that should be and the one that is: pure, from two configurations to a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runbooks.proxmox import properties
from runbooks.proxmox.config import DISK, ROOT_ONLY, disk_parts

AT_ONCE = ("name", "onboot", "protection", "tags", "description", "startup")
"""Keys that a running VM takes at once (QemuServer.pm, $fast_plug_option); every other waits for a power cycle."""
AT_BOOT = ("ciuser", "sshkeys", "ipconfig0", "nameserver", "searchdomain")
"""Cloud-init reads these once, at the first boot of an instance: a later value is for a VM that is rebuilt."""
_KEPT_PARTS = {"net": ("macaddr", "firewall", "mtu", "queues")}  # PVE's or a person's, and not ours to take away
_FAMILIES = ("hostpci", "numa")
_OPTIONAL = (*ROOT_ONLY, "nameserver", "searchdomain")  # ours where the inventory has them, and gone where it has not
_DEFAULTS = {"onboot": "0", "protection": "0", "numa": "0", "rombar": "1", "keephugepages": "0"}


@dataclass(frozen=True)
class Setting:
    """One key: None is 'not there'."""

    key: str
    old: str | None
    new: str | None

    @property
    def line(self) -> str:
        if self.key == "sshkeys":
            return "sshkeys changed"
        return f"{self.key} {self.old or 'absent'} -> {self.new or 'absent'}"


@dataclass(frozen=True)
class Difference:
    """`settings` have to be written; `pending` are written already, and wait for a power cycle."""

    settings: tuple[Setting, ...] = ()
    pending: tuple[Setting, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.settings or self.pending)

    @property
    def needs_power_cycle(self) -> tuple[str, ...]:
        """The keys, of a VM that runs."""
        keys = [setting.key for setting in (*self.settings, *self.pending)]
        return tuple(dict.fromkeys(key for key in keys if key not in (*AT_ONCE, *AT_BOOT)))

    @property
    def set(self) -> dict[str, str]:
        return {setting.key: setting.new for setting in self.settings if setting.new is not None}

    @property
    def delete(self) -> list[str]:
        return [setting.key for setting in self.settings if setting.new is None]


@dataclass(frozen=True)
class Found:
    """A VM's configuration as GET .../pending tells it: what runs, and what the next start brings."""

    current: Mapping[str, str]
    pending: Mapping[str, str] = field(default_factory=dict)
    deleted: frozenset[str] = frozenset()

    @classmethod
    def read(cls, rows: Sequence[Mapping[str, object]]) -> Found:
        current = {str(row["key"]): str(row["value"]) for row in rows if "value" in row}
        pending = {str(row["key"]): str(row["pending"]) for row in rows if "pending" in row}
        return cls(current, pending, frozenset(str(row["key"]) for row in rows if row.get("delete")))

    @property
    def next_start(self) -> dict[str, str]:
        kept = {key: value for key, value in self.current.items() if key not in self.deleted}
        return {**kept, **self.pending}


def compare(wanted: Mapping[str, str], found: Found) -> Difference:
    """Against what the next start brings: a change that already waits is not written again, only told."""
    settings = [
        Setting(key, found.next_start.get(key), value)
        for key, value in wanted.items()
        if not _same(key, value, found.next_start.get(key))
    ]
    settings += [Setting(key, found.next_start[key], None) for key in _leftovers(wanted, found.next_start)]
    disk = found.next_start.get(DISK)
    if disk is not None and (mended := _mended_disk(disk)) != disk:
        settings.append(Setting(DISK, disk, mended))
    ours = {*wanted, *_leftovers(wanted, found.current), DISK}
    waiting = [
        Setting(key, found.current.get(key), found.next_start.get(key))
        for key in sorted((set(found.pending) | found.deleted) & ours)
        if not _same(key, found.next_start.get(key) or "", found.current.get(key))
    ]
    return Difference(tuple(settings), tuple(waiting))


def _leftovers(wanted: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """Cards and NUMA nodes too many, and options that are not wanted any more (p2p taken back)."""
    return [
        key
        for key in there
        if key not in wanted and (key in _OPTIONAL or (key[-1:].isdigit() and key.rstrip("0123456789") in _FAMILIES))
    ]


def _same(key: str, wanted: str, found: str | None) -> bool:
    if found is None:
        return _DEFAULTS.get(key) == wanted
    if key == "sshkeys":  # a person's tool may have written a last line end
        return wanted == found.removesuffix("%0A")
    if not properties.has_parts(key):
        return wanted == found
    ours, theirs = properties.read(key, wanted), properties.read(key, found)
    for part in _KEPT_PARTS.get(key.rstrip("0123456789"), ()):
        theirs.pop(part, None)
    return all(
        ours.get(part, _DEFAULTS.get(part)) == theirs.get(part, _DEFAULTS.get(part)) for part in {*ours, *theirs}
    )


def merged(key: str, wanted: str, found: str | None) -> str:
    """Our value with the parts of the present one that are kept: a NIC keeps its address."""
    kept = _KEPT_PARTS.get(key.rstrip("0123456789"), ())
    if found is None or not kept:
        return wanted
    theirs = properties.read(key, found)
    extra = [f"{part}={theirs[part]}" for part in kept if part in theirs]
    return ",".join([wanted, *extra])


def _mended_disk(value: str) -> str:
    """Our options on the disk that is there; everything else about it is left as it is."""
    parts = properties.read(DISK, value)
    wrong = {name: want for name, want in disk_parts().items() if parts.get(name, _DISK_DEFAULTS[name]) != want}
    if not wrong:
        return value
    kept = [word for word in value.split(",") if word.partition("=")[0] not in wrong]
    return ",".join([*kept, *(f"{name}={want}" for name, want in wrong.items())])


_DISK_DEFAULTS = {"discard": "ignore", "iothread": "0", "ssd": "0", "backup": "1"}


def disk_gib(value: str) -> float:
    """The size of a disk as its configuration tells it, in GiB; 0 where it does not."""
    size = properties.read(DISK, value).get("size", "0")
    factor = {"K": 2**-20, "M": 2**-10, "G": 1.0, "T": 1024.0}.get(size[-1:], 2**-30)
    number = size.rstrip("KMGT")
    return float(number) * factor if number else 0.0
