"""What the lab shows of itself in a terminal, or in a log."""

from __future__ import annotations

import re
import shutil
import sys
import time
from pathlib import Path
from types import TracebackType

from lab.lab import PROXMOX_PORT, Lab


class Progress:
    """One live line with the seconds so far; in a log, a line for each new part and at least every ten seconds."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._live = sys.stderr.isatty()
        self._part = ""
        self._logged = 0.0

    def __call__(self, text: str) -> None:
        part = text.partition(": ")[0]
        seconds = time.monotonic() - self._begun
        line = f"{seconds:4.0f} s  {text}"
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\033[K{line[:width]}", end="", file=sys.stderr, flush=True)
        elif part != self._part or seconds > self._logged + 10:
            print(line, file=sys.stderr, flush=True)
            self._logged = seconds
        self._part = part

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live and self._part:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def table(lab: Lab) -> None:
    """A lab, its depot and its guests, one line each."""
    if lab.lost:
        print(f"lab {lab.name}: this machine restarted since it was up     next: invoke lab.down{lab.option}")
        return
    depot = f"depot http://{lab.network.gateway}:8090 {_state(lab.depot_alive)}"
    print(f"lab {lab.name}: {lab.network.subnet} on {lab.network.bridge}, {depot}")
    for guest in lab.guests:
        state = _state(lab.alive(guest))
        print(f"  {guest.name:10}  {guest.address:14}  {state:5}  invoke lab.shell {guest.name}{lab.option}")
    if lab.proxmox_alive:
        print(f"  Proxmox API https://{lab.network.gateway}:{PROXMOX_PORT} (stand-in)")
    for path in inventories(lab):
        print(f"  inventory   {path}")


def inventories(lab: Lab) -> list[Path]:
    """Those that name a host: of a lab whose hosts are VMs of its node, not its own, which has none."""
    wanted = (f"{where}{lab.inventory.name}" for where in ("", "pve-"))
    usable = [path for name in wanted if _has_hosts(path := lab.folder / name)]
    return usable or [path for path in sorted(lab.folder.glob("pve-inventory*.yaml")) if _has_hosts(path)]


def _has_hosts(path: Path) -> bool:
    """Read as text: a name is a line below `hosts:`."""
    return path.exists() and re.search(r"^hosts:\n(?:\s*#.*\n|\n)*  \S", path.read_text(), re.MULTILINE) is not None


def _state(alive: bool) -> str:
    return "up" if alive else "dead"
