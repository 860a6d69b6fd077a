"""A lab: a network, guests, keys, the depot and an inventory; its state lies in one folder of the cache."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from lab import base
from lab.guest import BOOT_PATIENCE, Bind, Guest, letters
from lab.machine import cache, create_key, require_guests, write
from lab.network import Network, locked
from lab.process import Process
from runbooks.engine.errors import RunbookError, UsageError

DEPOT_PORT = 8090
MOST_HOSTS = 60  # 25 MB and a few processes each: more is a slip of the hand on most machines
PROXMOX_PORT = 8006
HERE = Path(__file__).parent
EXAMPLES = sorted(HERE.glob("inventory*.yaml"))  # one for each engine
EXAMPLE_FOLDER = "~/.cache/runbooks-lab/labs/dev"  # what they call the lab's folder


def quiet(_text: str) -> None:
    """Progress that nobody wants to see."""


class Lab:
    """One lab, up or down. Objects hold no state of their own: two processes may look at the same lab."""

    def __init__(self, name: str) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,30}", name):
            raise UsageError(f"lab: {name!r} is no name for a lab: lower-case letters, digits and dashes")
        self.name = name
        self.folder = cache() / "labs" / name

    @classmethod
    def open(cls, name: str = "dev") -> Lab:
        return cls(name)

    @classmethod
    def all(cls) -> list[Lab]:
        return [cls(path.name) for path in sorted((cache() / "labs").glob("*")) if (path / "state.json").exists()]

    # -- what it is --------------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        return (self.folder / "state.json").exists()

    @property
    def inventory(self) -> Path:
        """For the simulated engine; inventory-sglang.yaml beside it is for the real one."""
        return self.folder / "inventory.yaml"

    @property
    def _state(self) -> _State:
        if not self.exists:
            raise UsageError(f"lab: {self.name} is not up", next=f"invoke lab.up{self.option}")
        return _State.read(self.folder)

    @property
    def network(self) -> Network:
        return Network(self._state.network)

    @property
    def guests(self) -> list[Guest]:
        network = self.network
        return [self._guest(index, network) for index in sorted(self._state.guests)]

    def guest(self, name: str) -> Guest:
        known = {guest.name: guest for guest in self.guests}
        if name not in known:
            raise UsageError(
                f"lab: {self.name} has no guest {name}", details=[f"its guests: {', '.join(known) or 'none'}"]
            )
        return known[name]

    def guest_at(self, index: int) -> Guest:
        """The guest of this number, created or not."""
        return self._guest(index, self.network)

    def alive(self, guest: Guest) -> bool:
        process = self._state.guests.get(guest.index)
        return process is not None and process.alive()

    @property
    def depot_alive(self) -> bool:
        depot = self._state.depot
        return depot is not None and depot.alive()

    @property
    def proxmox_alive(self) -> bool:
        return _lives(self._state.proxmox)

    @property
    def lost(self) -> bool:
        """The folder is there and the lab is not: this machine restarted."""
        return self.network.owner != self._owner

    @property
    def dead(self) -> bool:
        """Nothing of it runs any more; `down` clears what is left."""
        state = self._state
        return not any(_lives(process) for process in (state.depot, state.proxmox, *state.guests.values()))

    @property
    def _owner(self) -> str:
        return f"runbooks-lab {self.folder}"

    def _guest(self, index: int, network: Network) -> Guest:
        name = f"glm5-{letters(index)}"
        return Guest(name, index, network, place=self.folder / "guests" / name, keys=self.folder)

    @property
    def option(self) -> str:
        """What a command of the lab needs, to mean this one."""
        return "" if self.name == "dev" else f" --name {self.name}"

    # -- up ----------------------------------------------------------------------------------------------------------

    def up(self, hosts: int = 1, *, binds: Sequence[Bind] = (), progress: Callable[[str], None] = quiet) -> list[Guest]:
        """Bring it up with at least `hosts` guests that answer ssh. A lab that is up keeps those it has."""
        if not 0 <= hosts <= MOST_HOSTS:
            raise UsageError(f"lab: {hosts} hosts; this takes from 0 to {MOST_HOSTS}")
        require_guests()
        tree = base.ensure(progress)
        with locked(f"lab-{self.name}"):
            if self.exists and self.lost:
                progress(f"lab {self.name}: clearing what a dead one left")
                self._down()
            if not self.exists:
                self._found()
            state = self._state
            if not _lives(state.depot):
                state.depot = self._start_depot(progress)
                state.write(self.folder)
            missing = [index for index in range(hosts) if not _lives(state.guests.get(index))]
            waiting = [self._boot(index, state, tree, binds) for index in missing]
            self._write_inventories()
            for done, (guest, process) in enumerate(waiting):
                progress(f"guests: {done} of {len(waiting)} answer ssh, waiting for {guest.name} at {guest.address}")
                guest.wait(process)
        return self.guests

    def add(self, *, binds: Sequence[Bind] = ()) -> Guest:
        """One more guest, fresh, answering ssh."""
        tree = base.ensure(quiet)
        with locked(f"lab-{self.name}"):
            state = self._state
            index = next(index for index in range(240) if index not in state.guests)
            guest, process = self._boot(index, state, tree, binds)
            self._write_inventories()
        guest.wait(process)
        return guest

    def _found(self) -> None:
        """The network and the client key, without guests yet."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        _State(Network.claim(self._owner).number).write(self.folder)
        create_key(self.folder / "id_ed25519", comment=f"lab {self.name}")
        write(self.folder / "known_hosts", "")

    def _start_depot(self, progress: Callable[[str], None]) -> Process:
        from lab import depot  # builders of packages and wheels, which only this needs

        root = cache() / "depot"
        with locked("depot"):
            depot.prepare(root, progress)
        return self._serve("depot", DEPOT_PORT, "--root", str(root))

    def start_proxmox(self, *, binds: Sequence[Bind] = ()) -> None:
        """The stand-in for a Proxmox API, whose VMs are this lab's guests; the lab must be up."""
        write(self.folder / "pve-token", f"{uuid.uuid4()}\n", 0o600)
        mounts = [f"--mount={folder}:{where}" for folder, where in binds]
        with locked(f"lab-{self.name}"):
            state = self._state
            if not _lives(state.proxmox):
                state.proxmox = self._serve("proxmox", PROXMOX_PORT, "--lab", self.name, *mounts)
                state.write(self.folder)

    def _serve(self, what: str, port: int, *options: str) -> Process:
        """Start a server of the lab on its own address, and return once it listens."""
        address = (self.network.gateway, port)
        argv = [sys.executable, "-m", f"lab.{what}", "--bind", address[0], "--port", str(port), *options]
        log = self.folder / f"{what}.log"
        process = Process.start(argv, log=log, env={**os.environ, "PYTHONPATH": str(HERE.parent)})
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and process.alive():
            with contextlib.suppress(OSError), socket.create_connection(address, timeout=1):
                return process
            time.sleep(0.05)
        process.end()
        raise RunbookError(f"lab: its {what} does not answer", details=log.read_text().splitlines()[-8:])

    def _boot(self, index: int, state: _State, tree: Path, binds: Sequence[Bind]) -> tuple[Guest, Process]:
        guest = self._guest(index, Network(state.network))
        if not guest.place.exists():
            guest.create()
        process = guest.start(tree, binds)
        state.guests[index] = process
        state.write(self.folder)
        return guest, process

    def _write_inventories(self) -> None:
        """The examples with this lab's addresses and keys, and their one host repeated for each guest."""
        guests, first = self.guests, self._guest(0, self.network)
        for path in EXAMPLES:
            text = path.read_text().replace(EXAMPLE_FOLDER, str(self.folder)).replace("10.77.0.", self.network.prefix)
            one = re.search(r"^  glm5-a:.*\n", text, re.MULTILINE)
            if one is None:
                raise RunbookError(f"lab: {path} has no line for the host glm5-a")
            lines = [one[0].replace(first.name, guest.name).replace(first.address, guest.address) for guest in guests]
            write(self.folder / path.name, text.replace(one[0], "".join(lines)))

    # -- down --------------------------------------------------------------------------------------------------------

    def kill(self, guest: Guest) -> None:
        """Power loss: everything in it ends at once. Its disk stays; `up` boots it again."""
        process = self._state.guests.get(guest.index)
        if process is not None:
            process.end()
        guest.wait_gone()

    def boot(self, guest: Guest, *, binds: Sequence[Bind] = (), patience: float = BOOT_PATIENCE) -> None:
        """Switch it on again after `kill`, with the disk it had."""
        tree = base.ensure(quiet)
        with locked(f"lab-{self.name}"):
            _guest, process = self._boot(guest.index, self._state, tree, binds)
        guest.wait(process, patience=patience)

    def switch_on(self, guest: Guest, *, binds: Sequence[Bind] = ()) -> None:
        """Start its boot and return at once."""
        tree = base.ensure(quiet)
        with locked(f"lab-{self.name}"):
            self._boot(guest.index, self._state, tree, binds)

    def end_depot(self) -> None:
        """The package sources stop answering; `up` starts them again."""
        depot = self._state.depot
        if depot is not None:
            depot.end()

    def remove(self, guest: Guest, *, unpin: bool = True) -> None:
        """End one guest and forget it, disk and (unless somebody else pinned it) pinned key included."""
        with locked(f"lab-{self.name}"):
            self.kill(guest)
            state = self._state
            state.guests.pop(guest.index, None)
            state.write(self.folder)
            shutil.rmtree(guest.place, ignore_errors=True)
            self._write_inventories()
            if not unpin:
                return
            pinned = self.folder / "known_hosts"
            kept = [line for line in pinned.read_text().splitlines(keepends=True) if line.split()[0] != guest.address]
            write(pinned, "".join(kept))

    def down(self) -> None:
        """End what runs, and leave nothing but the cache. A lab that is not there is already down."""
        require_guests()
        with locked(f"lab-{self.name}"):
            if self.exists:
                self._down()

    def _down(self) -> None:
        state = self._state
        for process in state.guests.values():
            process.end()
        for guest in self.guests:
            guest.wait_gone()
        self.end_depot()
        if state.proxmox is not None:
            state.proxmox.end()
        Network(state.network).release(self._owner)
        shutil.rmtree(self.folder)


class _State:
    """state.json: the network's number and the processes, all that cannot be seen from the folder itself."""

    def __init__(
        self,
        network: int,
        depot: Process | None = None,
        guests: dict[int, Process] | None = None,
        proxmox: Process | None = None,
    ) -> None:
        self.network = network
        self.depot = depot
        self.guests = guests or {}
        self.proxmox = proxmox

    @classmethod
    def read(cls, folder: Path) -> _State:
        raw = json.loads((folder / "state.json").read_text())
        guests = {int(index): Process(**process) for index, process in raw["guests"].items()}
        servers = {name: Process(**raw[name]) for name in ("depot", "proxmox") if raw.get(name)}
        return cls(raw["network"], servers.get("depot"), guests, servers.get("proxmox"))

    def write(self, folder: Path) -> None:
        raw = {
            "network": self.network,
            "depot": asdict(self.depot) if self.depot else None,
            "proxmox": asdict(self.proxmox) if self.proxmox else None,
            "guests": {str(index): asdict(process) for index, process in self.guests.items()},
        }
        part = folder / "state.json.part"
        part.write_text(json.dumps(raw, indent=1) + "\n")
        part.rename(folder / "state.json")


def _lives(process: Process | None) -> bool:
    return process is not None and process.alive()
