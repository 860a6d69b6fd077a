"""Which backup jobs of a cluster take a VM: a backup of a stopped VM starts it, which binds and resets all its cards.

Source: VZDump/QemuServer.pm (enforce_vm_running_for_backup) of proxmox/qemu-server; VZDump.pm (get_included_guests) of
proxmox/pve-manager; jobs.cfg, and vzdump.cron of nodes that were never upgraded past 7.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Job:
    """`options` as `pvesh get /cluster/backup` would name them."""

    id: str
    options: Mapping[str, str]

    def takes(self, vmid: int, node: str, pools: Mapping[str, frozenset[str]]) -> bool:
        """A job for one node takes no other node's VMs; one for all has exceptions; one for a pool its members."""
        number, options = str(vmid), self.options
        if options.get("enabled", "1") == "0" or options.get("node", node) != node:
            return False
        if options.get("all", "0") == "1":
            return number not in _words(options.get("exclude", ""))
        return number in _words(options.get("vmid", "")) or number in pools.get(options.get("pool", ""), ())

    def cure(self, vmid: int) -> str:
        if self.options.get("all", "0") == "1":
            out = ",".join([*_words(self.options.get("exclude", "")), str(vmid)])
            return f"pvesh set /cluster/backup/{self.id} --exclude {out}"
        if "pool" in self.options:
            return f"take VM {vmid} out of the pool {self.options['pool']}"
        return f"take VM {vmid} out of the job {self.id}: Datacenter, Backup"


def jobs(lines: Sequence[str]) -> list[Job]:
    """From jobs.cfg and vzdump.cron, one after the other, without indentation."""
    found: list[tuple[str, dict[str, str]]] = []
    inside = False
    for line in lines:
        if header := re.match(r"(\w+):\s*(\S+)$", line):
            inside = header[1] == "vzdump"
            found += [(header[2], {})] if inside else []
        elif " vzdump " in line and re.match(r"[\d*]", line):
            found.append((f"of vzdump.cron ({line.partition(' root ')[0]})", dict(_cron(line))))
        elif inside:
            name, _, value = line.partition(" ")
            found[-1][1][name] = value.strip()
    return [Job(name, options) for name, options in found]


def _cron(line: str) -> Iterator[tuple[str, str]]:
    words = shlex.split(line.partition(" vzdump ")[2])
    numbers = [word for word in words if word.isdigit() and not words[max(0, words.index(word) - 1)].startswith("--")]
    yield "vmid", ",".join(numbers)
    for name, value in itertools.pairwise(words):
        if name.startswith("--"):
            yield name[2:], value


def members(lines: Sequence[str]) -> dict[str, frozenset[str]]:
    """Pool -> its guests, from the `pool:NAME:COMMENT:GUESTS:STORAGES:` lines of user.cfg."""
    parts = [line.split(":") for line in lines if line.startswith("pool:")]
    return {part[1]: frozenset(_words(part[3])) for part in parts if len(part) > 3}


def _words(text: str) -> list[str]:
    return re.findall(r"\d+", text)
