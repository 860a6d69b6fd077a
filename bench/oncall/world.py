"""A whole small world for the pages: a Proxmox node with its API, a VM with eight cards on it, two releases to go back
and forth between. All of it of the lab."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.guest import Guest
from lab.lab import Lab
from lab.proxmox.inventory import write_inventory

ROOT = Path(__file__).parents[2]
NODE = ROOT / "tests/provision/node"
HOST = "glm5-a"
ONLY_FINAL = {"cuda_graph_max_bs_decode": [64]}  # a setting that `final` has and `baseline` has not
READY = 60.0  # seconds for a restart of the simulated server


class World:
    """`inventory` is that of the person on call; a fault may edit it, and has to put it back."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.node = lab.guest_at(7)  # the node's shell, out of the way of the VMs, which are the first ones
        lab.boot(self.node)
        self.node.run("sh -s grub", stdin=(NODE / "dress.sh").read_text())
        self.node.run("sh -s", stdin=(NODE / "machine.sh").read_text())
        self.inventory = write_inventory(lab, lab.inventory)
        login = f"{{address: {self.node.address}, user: root, key: {lab.folder}/id_ed25519}}"
        self.edit("    user: root@pam!lab\n", f"    user: root@pam!lab\n    ssh: {login}\n")
        self.edit("      cores: 128\n      memory_gib: 768", "      cores: 2\n      memory_gib: 4")
        self.edit("numa_nodes: [0, 1]", "numa_nodes: [0]")

    @property
    def host(self) -> Guest:
        return self.lab.guest_at(0)

    def edit(self, old: str, new: str) -> None:
        text = self.inventory.read_text()
        assert old in text, old
        self.inventory.write_text(text.replace(old, new, 1))

    def invoke(self, *words: str, check: bool = True) -> str:
        argv = [sys.executable, "-m", "invoke", "--search-root", str(ROOT), *words, "--inventory", str(self.inventory)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=self.lab.folder)
        said = done.stdout + done.stderr
        assert not check or done.returncode == 0, f"{words}\n{said[-3000:]}"
        return said

    def knobs(self, **knobs: object) -> None:
        self.host.write("/etc/lab-sglang.json", json.dumps(knobs))

    def restart(self) -> None:
        """Start the server anew with the knobs as they are, and wait for the new one's port, or its death."""
        pid = "systemctl show -p MainPID --value sglang"
        old = self.host.run(pid).stdout.strip()
        self.host.run("systemctl reset-failed sglang 2>/dev/null; systemctl restart --no-block sglang", check=False)
        answers = f'[ "$({pid})" != {old} ] && curl -s -o /dev/null http://127.0.0.1:30000/metrics'
        script = f"{answers} || systemctl is-failed -q sglang"
        until = time.monotonic() + READY
        while self.host.run(script, check=False).returncode and time.monotonic() < until:
            time.sleep(0.5)

    def served(self) -> None:
        """`baseline` behind, `final` serving: what a rollback needs."""
        self.knobs(start_delay=0.2, warmup=0.1)
        for profile in ("baseline", "final"):
            self.invoke("deploy", "--profile", profile, "--quick", "--yes")


@contextmanager
def world(name: str = "") -> Iterator[World]:
    lab = Lab.open(name or f"pages-{os.getpid()}")
    try:
        lab.up(0)
        lab.start_proxmox()
        made = World(lab)
        made.invoke("provision", "--yes", check=False)  # the node asks for a reboot in between, as real ones do
        made.invoke("provision", "--yes")
        made.served()
        yield made
    finally:
        lab.down()
