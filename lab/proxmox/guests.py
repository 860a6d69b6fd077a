"""Behind the stand-in's VMs: lab guests. VM 100 is the lab's first guest, 101 the second."""

from __future__ import annotations

import contextlib
import time
import urllib.request
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

from lab.guest import Bind, Guest
from lab.lab import Lab
from lab.machine import write
from runbooks.engine.errors import RunbookError

FIRST = 100  # the VM number of the lab's first guest
KEY_FILES = {"root": "root/.ssh/authorized_keys", "ops": "etc/ssh/ops_keys"}
SHUTDOWN_PATIENCE = 60.0  # seconds


class Guests:
    """Implements pve.Machines with guests that really boot."""

    def __init__(self, lab: Lab, binds: Sequence[Bind] = ()) -> None:
        self._lab, self._binds = lab, binds

    def start(self, vmid: int, config: Mapping[str, str]) -> None:
        """What cloud-init would have done at the first boot is written onto the disk: name, address, account's keys."""
        guest = self._guest(vmid)
        if not guest.place.exists():
            guest.create(pin=False)
            self._initialise(guest, config)
        self._lab.switch_on(guest, binds=self._binds)

    def _initialise(self, guest: Guest, config: Mapping[str, str]) -> None:
        upper = guest.place / "upper"
        user = config.get("ciuser", "root")
        if user not in KEY_FILES:
            raise RunbookError(f"lab: the image knows the users {', '.join(KEY_FILES)}, not {user}")
        write(upper / KEY_FILES[user], unquote(config["sshkeys"]) + "\n", 0o600 if user == "root" else 0o644)
        network = dict(word.partition("=")[::2] for word in config["ipconfig0"].split(","))
        write(
            upper / "etc/systemd/network/10-host0.network",
            f"[Match]\nName=host0\n\n[Link]\nMTUBytes={guest.network.mtu}\n\n"
            f"[Network]\nAddress={network['ip']}\nGateway={network.get('gw', '')}\n",
        )
        write(upper / "etc/hostname", f"{config['name']}\n")

    def stop(self, vmid: int, *, hard: bool) -> None:
        """A shutdown asks the guest, by the ACPI button that it would see; a stop pulls the plug."""
        guest = self._guest(vmid)
        if not hard:
            guest.power_button()
            deadline = time.monotonic() + SHUTDOWN_PATIENCE
            while self._lab.alive(guest):
                if time.monotonic() > deadline:
                    raise RunbookError("VM quit/powerdown failed - got timeout")
                time.sleep(0.1)
        self._lab.kill(guest)

    def destroy(self, vmid: int) -> None:
        guest = self._guest(vmid)
        if guest.place.exists():
            self._lab.remove(guest, unpin=False)

    def running(self, vmid: int) -> bool:
        return self._lab.alive(self._guest(vmid))

    def agent(self, vmid: int) -> bool:
        """The lab's image has an agent, unlike Ubuntu's: it answers as soon as the guest does."""
        return self._guest(vmid).answers()

    def read_file(self, vmid: int, path: str) -> str:
        place = self._guest(vmid).place / "upper" / path.lstrip("/")
        with contextlib.suppress(OSError):
            return place.read_text()
        raise RunbookError(f"can't open {path}: No such file or directory")

    def fetch(self, url: str) -> bytes:
        with urllib.request.urlopen(url, timeout=30) as answer:
            data: bytes = answer.read()
        return data

    def _guest(self, vmid: int) -> Guest:
        return self._lab.guest_at(vmid - FIRST)
