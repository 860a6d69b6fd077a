"""A Proxmox node without machines behind it: the lab's stand-in over real TLS, in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lab.proxmox import certificate
from lab.proxmox.pve import Pve
from lab.proxmox.server import Accounts, Api, serve
from runbooks.engine.secret import Secret
from runbooks.inventory.shape import Image, Node, SecretRef, Vm
from runbooks.proxmox.act import Hands
from runbooks.proxmox.client import Client, Login
from runbooks.proxmox.config import Version, Wanted

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKtest+slash/and+plus ops@desk"
TOKEN = "aaaabbbb-cccc-dddd-eeee-ffff00001111"
IMAGE = b"an image"


@dataclass
class NoMachines:
    """VMs that only remember whether they run. `slow`: seconds that a start takes."""

    on: set[int] = field(default_factory=set)
    slow: float = 0.0
    starts: int = 0
    has_agent: bool = True

    def start(self, vmid: int, config: Mapping[str, str]) -> None:
        self.starts += 1
        time.sleep(self.slow)
        self.on.add(vmid)

    def stop(self, vmid: int, *, hard: bool) -> None:
        self.on.discard(vmid)

    def destroy(self, vmid: int) -> None:
        self.on.discard(vmid)

    def running(self, vmid: int) -> bool:
        return vmid in self.on

    def agent(self, vmid: int) -> bool:
        return self.has_agent

    def read_file(self, vmid: int, path: str) -> str:
        return "ssh-ed25519 " + "A" * 68 + " root@vm\n"

    def fetch(self, url: str) -> bytes:
        return IMAGE


class QuickClock:
    """Time that passes when somebody sleeps, a thousand times faster."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        time.sleep(min(seconds / 50, 0.05))


@dataclass
class Lab:
    api: Api
    machines: NoMachines
    fingerprint: str
    folder: Path

    @property
    def pve(self) -> Pve:
        return self.api.pve

    def client(self, **login: Any) -> Client:
        words: dict[str, Any] = {
            "api": self.api.url,
            "user": "root@pam!lab",
            "token": Secret(TOKEN),
            "fingerprint": self.fingerprint,
        }
        return Client(Login(**{**words, **login}), clock=QuickClock())

    def root(self) -> Client:
        return self.client(user="root@pam", token=None, password=Secret("secret"))

    def hands(self, client: Client, vm: Vm, said: list[str] | None = None) -> Hands:
        lines = said if said is not None else []
        return Hands(client, "pve", vm, None, lambda _line: None, lines.append)

    def written(self) -> list[tuple[str, str]]:
        return [(method, path) for method, path, _, _ in self.api.calls if method != "GET"]

    def restart(self, seconds: float) -> None:
        """The API goes away, its open connections with it, and comes back at the same address."""
        old = self.api
        old.shutdown()
        old.cut()
        old.server_close()

        def back() -> None:
            time.sleep(seconds)
            self.api = old.again()
            serve(self.api)

        threading.Thread(target=back).start()


@pytest.fixture(params=["9.1.2"])
def pve(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    path, fingerprint = certificate.ensure(tmp_path, "127.0.0.1")
    machines = NoMachines()
    accounts = Accounts({"root@pam!lab": TOKEN}, {"root@pam": "secret"})
    api = Api(("127.0.0.1", 0), Pve(machines, version=request.param), accounts, path)
    serve(api)
    lab = Lab(api, machines, fingerprint, tmp_path)
    yield lab
    lab.api.shutdown()
    lab.api.server_close()


@pytest.fixture
def make_vm() -> Callable[..., Vm]:
    def make(**changes: Any) -> Vm:
        import hashlib

        image = Image(url="https://example.org/x.img", sha256=hashlib.sha256(IMAGE).hexdigest(), file="x.qcow2")
        words: dict[str, Any] = {
            "node": "pve", "id": 129, "cores": 128, "memory_gib": 768, "storage": "local-zfs", "disk_gib": 1000,
            "image": image, "address": "192.0.2.10/24", "gateway": "192.0.2.1", "ssh_keys": (KEY,),
            "numa_nodes": (0, 1), "nameservers": ("192.0.2.1", "192.0.2.2"), "search_domain": "example.org",
        }  # fmt: skip
        return Vm(**{**words, **changes})

    return make


@pytest.fixture
def make_wanted(make_vm: Callable[..., Vm]) -> Callable[..., Wanted]:
    def make(version: str = "9.1.2", *, clique: bool = False, **changes: Any) -> Wanted:
        node = Node(api="https://192.0.2.2:8006", user="root@pam!lab", token=SecretRef(env="X"), name="pve")
        return Wanted(
            name="glm5-a", vm=make_vm(**changes), node=node, gpus=8, keys=(KEY,), version=Version.parse(version),
            clique=clique,
        )  # fmt: skip

    return make
