"""The state of the stand-in's node: VMs, tasks, storage, PCI mapping. What a call does, without HTTP."""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from lab.proxmox import formats

ROOT_ONLY = ("args", "affinity", "hugepages", "keephugepages")
FAST = ("name", "onboot", "protection", "tags", "description", "startup", "net0")  # net0: hot-plugged
GPU, AUDIO, SUBSYSTEM = ("0x10de", "0x2bb5"), ("0x10de", "0x22e8"), ("0x10de", "0x204e")
GIB = 1 << 30

Call = Mapping[str, Any]


class Refused(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, reason: str, errors: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.errors = status, reason, dict(errors or {})


class Machines(Protocol):
    """What runs behind the VMs."""

    def start(self, vmid: int, config: Mapping[str, str]) -> None: ...

    def stop(self, vmid: int, *, hard: bool) -> None: ...

    def destroy(self, vmid: int) -> None: ...

    def running(self, vmid: int) -> bool: ...

    def agent(self, vmid: int) -> bool: ...

    def read_file(self, vmid: int, path: str) -> str: ...

    def fetch(self, url: str) -> bytes: ...


@dataclass
class Vm:
    config: dict[str, str]
    pending: dict[str, str] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)

    @property
    def digest(self) -> str:
        return hashlib.sha1(repr(sorted(self.config.items())).encode()).hexdigest()

    def settle(self) -> None:
        """A power cycle: what was pending becomes true."""
        for key in self.deleted:
            self.config.pop(key, None)
        self.config |= self.pending
        self.pending, self.deleted = {}, set()


@dataclass
class Task:
    upid: str
    kind: str
    vmid: str
    user: str
    started: int
    log: list[str] = field(default_factory=list)
    exit: str | None = None


class Pve:
    """One node. `cards` are BDFs of its GPUs; `rights` None: everything."""

    def __init__(self, machines: Machines, *, version: str = "9.1.2", node: str = "pve", cards: int = 8) -> None:
        self.machines, self.version, self.node = machines, version, node
        self.lock = threading.RLock()
        self.vms: dict[int, Vm] = {}
        self.tasks: list[Task] = []
        self.images: dict[str, bytes] = {}
        self.mappings: dict[str, list[str]] = {}
        self.cards = [f"0000:{0x01 + 0x20 * n if n < 4 else 0x81 + 0x20 * (n - 4):02x}:00" for n in range(cards)]
        self.rights: dict[str, dict[str, int]] | None = None
        self.ha: list[str] = []
        self.start_warnings: list[str] = []
        self.start_failure: str | None = None
        self.lock_failures = 0
        self._count = itertools.count(0x3B9AC)

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])

    # -- tasks -------------------------------------------------------------------------------------------------------

    def task(self, kind: str, vmid: str, user: str, work: Callable[[Task], None]) -> str:
        """Start it in the background; the UPID."""
        now = int(time.time())
        upid = f"UPID:{self.node}:{next(self._count):08X}:{now & 0xFFFFFFFF:08X}:{now:08X}:{kind}:{vmid}:{user}:"
        task = Task(upid, kind, vmid, user, now)
        self.tasks.insert(0, task)

        def run() -> None:
            try:
                work(task)
                warnings = sum(line.startswith("WARN") for line in task.log)
                task.log.append(f"TASK WARNINGS: {warnings}" if warnings else "TASK OK")
                task.exit = f"WARNINGS: {warnings}" if warnings else "OK"
            except Exception as error:
                task.log.append(f"TASK ERROR: {error}")
                task.exit = str(error)

        threading.Thread(target=run, daemon=True).start()
        return upid

    def find_task(self, upid: str) -> Task:
        for task in self.tasks:
            if task.upid == upid:
                return task
        raise Refused(400, "Parameter verification failed.", {"upid": "unable to parse worker upid"})

    # -- VMs ---------------------------------------------------------------------------------------------------------

    def vm(self, vmid: int) -> Vm:
        if vmid not in self.vms:
            raise Refused(500, f"Configuration file 'nodes/{self.node}/qemu-server/{vmid}.conf' does not exist")
        return self.vms[vmid]

    def check(self, parameters: Mapping[str, str], user: str) -> None:
        """What PVE checks before it does anything."""
        errors = formats.faults(parameters, self.major)
        if errors:
            raise Refused(400, "Parameter verification failed.", errors)
        for key, value in parameters.items():
            raw = key.startswith("hostpci") and "host=" in f",{value}".replace(",mapping", "")
            raw = raw or (key.startswith("hostpci") and "=" not in value.split(",")[0])
            if user != "root@pam" and (key in ROOT_ONLY or raw):
                what = f"only root can set '{key}' config" + (" for non-mapped devices" if raw else "")
                raise Refused(500, what)

    def create(self, parameters: Mapping[str, str], user: str) -> str:
        vmid = int(parameters["vmid"])
        if vmid in self.vms:
            raise Refused(500, f"unable to create VM {vmid} - VM {vmid} already exists on node '{self.node}'")
        self.check(parameters, user)
        config = {key: value for key, value in parameters.items() if key != "vmid"}
        self._sums(config)

        def work(task: Task) -> None:
            made = {key: self._stored(vmid, key, value, task) for key, value in config.items()}
            made |= {"smbios1": f"uuid={uuid.uuid4()}", "vmgenid": str(uuid.uuid4()), "meta": "creation-qemu=10.1.2"}
            with self.lock:
                if vmid in self.vms:
                    raise RuntimeError(f"unable to create VM {vmid} - VM {vmid} already exists on node '{self.node}'")
                self.vms[vmid] = Vm(made)

        return self.task("qmcreate", str(vmid), user, work)

    def _sums(self, config: Mapping[str, str]) -> None:
        parts = [dict(word.split("=") for word in value.split(",")) for key, value in config.items()
                 if key.startswith("numa") and key != "numa"]  # fmt: skip
        if parts and sum(int(part["memory"]) for part in parts) != int(config.get("memory", 512)):
            raise Refused(500, "total memory for NUMA nodes must be equal to vm static memory")

    def _stored(self, vmid: int, key: str, value: str, task: Task) -> str:
        """What becomes of a disk or NIC once PVE has made it."""
        words = value.split(",")
        storage = words[0].partition(":")[0]
        if key.startswith("net") and key[3:].isdigit():
            mac = hashlib.sha1(f"{vmid}{key}".encode()).hexdigest()[:6].upper()
            words[0] = f"{words[0]}=BC:24:11:{mac[:2]}:{mac[2:4]}:{mac[4:]}" if "=" not in words[0] else words[0]
        elif key.startswith("efidisk"):
            words = [f"{storage}:vm-{vmid}-disk-0", *words[1:], "size=4M"]
        elif key.startswith("ide") and words[0].endswith(":cloudinit"):
            words = [f"{storage}:vm-{vmid}-cloudinit", "media=cdrom", "size=4M"]
        elif key.startswith("scsi") and key[4:].isdigit():
            source = next((word.partition("=")[2] for word in words if word.startswith("import-from=")), None)
            if source is not None:
                if source not in self.images:
                    raise RuntimeError(f"unable to parse volume ID or volume '{source}' does not exist")
                task.log.append(f"importing disk '{source}' as {key} (lab stand-in)")
                task.log.append("transferred 2.0 GiB of 2.0 GiB (100.00%)")
            words = [
                f"{storage}:vm-{vmid}-disk-1",
                *(w for w in words[1:] if not w.startswith("import-from=")),
                "size=2G",
            ]
        return ",".join(words)

    def change(self, vmid: int, parameters: Mapping[str, str], user: str) -> str:
        vm = self.vm(vmid)
        settings = {key: value for key, value in parameters.items() if key not in ("delete", "digest")}
        self.check(parameters, user)
        doomed = [key for key in parameters.get("delete", "").split(",") if key]
        if user != "root@pam" and (forbidden := [key for key in doomed if key in ROOT_ONLY]):
            raise Refused(500, f"only root can set '{forbidden[0]}' config")
        if parameters.get("digest", vm.digest) != vm.digest:
            raise Refused(500, "detected modified configuration - file changed by other user? Try again.")

        def work(task: Task) -> None:
            with self.lock:
                runs = self.machines.running(vmid)
                for key, value in settings.items():
                    stored = self._stored(vmid, key, value, task) if key.startswith("net") else value
                    (vm.pending if runs and key not in FAST else vm.config)[key] = stored
                    vm.deleted.discard(key)
                for key in doomed:
                    vm.pending.pop(key, None)
                    vm.deleted.add(key) if runs and key not in FAST else vm.config.pop(key, None)

        return self.task("qmconfig", str(vmid), user, work)

    def start(self, vmid: int, user: str) -> str:
        vm = self.vm(vmid)

        def work(task: Task) -> None:
            if self.lock_failures:
                self.lock_failures -= 1
                raise RuntimeError(f"can't lock file '/var/lock/qemu-server/lock-{vmid}.conf' - got timeout")
            if self.machines.running(vmid):
                raise RuntimeError(f"VM {vmid} already running")
            if self.start_failure:
                raise RuntimeError(self.start_failure)
            for key, value in vm.config.items():
                mapping = value.partition("mapping=")[2].partition(",")[0]
                if key.startswith("hostpci") and mapping not in self.mappings:
                    raise RuntimeError(f"PCI device mapping not found for '{mapping}'")
            task.log.append("generating cloud-init ISO")
            task.log += self.start_warnings
            vm.settle()
            self.machines.start(vmid, vm.config)

        return self.task("qmstart", str(vmid), user, work)

    def shutdown(self, vmid: int, user: str, *, hard: bool) -> str:
        self.vm(vmid)

        def work(_task: Task) -> None:
            if not self.machines.running(vmid):
                raise RuntimeError(f"VM {vmid} not running")
            self.machines.stop(vmid, hard=hard)
            self.vms[vmid].settle()

        return self.task("qmstop" if hard else "qmshutdown", str(vmid), user, work)

    def destroy(self, vmid: int, user: str) -> str:
        vm = self.vm(vmid)
        if vm.config.get("protection") == "1":
            raise Refused(500, f"can't remove VM {vmid} - protection mode enabled")
        if self.machines.running(vmid):
            raise Refused(500, f"VM {vmid} is running - destroy failed")

        def work(_task: Task) -> None:
            self.machines.destroy(vmid)
            with self.lock:
                del self.vms[vmid]

        return self.task("qmdestroy", str(vmid), user, work)

    def resize(self, vmid: int, disk: str, size: str, user: str) -> str:
        vm = self.vm(vmid)

        def work(_task: Task) -> None:
            words = [word for word in vm.config[disk].split(",") if not word.startswith("size=")]
            vm.config[disk] = ",".join([*words, f"size={size}"])

        return self.task("resize", str(vmid), user, work)

    def download(self, storage: str, parameters: Mapping[str, str], user: str) -> str:
        name = parameters["filename"]
        if parameters.get("content") != "import" or not name.endswith((".qcow2", ".raw", ".vmdk", ".ova")):
            raise Refused(400, "Parameter verification failed.", {"filename": "invalid filename or wrong extension"})

        def work(task: Task) -> None:
            task.log.append(f"downloading {parameters['url']} to /var/lib/vz/import/{name}")
            data = self.machines.fetch(parameters["url"])
            found = hashlib.new(parameters.get("checksum-algorithm", "sha256"), data).hexdigest()
            if parameters.get("checksum", found) != found:
                raise RuntimeError(f"checksum mismatch: got '{found}' != expect '{parameters['checksum']}'")
            self.images[f"{storage}:import/{name}"] = data
            task.log.append(f"download of '{parameters['url']}' to '/var/lib/vz/import/{name}' finished")

        return self.task("download", name, user, work)
