"""The acts of a plan, done: each one call of the API, followed to its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runbooks.engine.errors import RunbookError, StepFailed
from runbooks.engine.step import quote
from runbooks.engine.transport import Connection
from runbooks.inventory.shape import Vm
from runbooks.proxmox.client import ApiError, Client, LostAnswer
from runbooks.proxmox.config import DISK, start_seconds
from runbooks.proxmox.diff import Found
from runbooks.proxmox.plan import Act, Configure, Create, Download, Grow, Map, Start
from runbooks.proxmox.work import IMPORT, MARGIN, SHORT, Done, Work, run

SHUTDOWN = 600.0  # seconds that a guest gets to shut down: it unloads the driver and flushes its disks


@dataclass
class Hands:
    """What acts need. `node` is the node's own name; `shell` its root shell, where the inventory gives one."""

    client: Client
    node: str
    vm: Vm
    shell: Callable[[], Connection] | None
    tell: Callable[[str], None]
    warn: Callable[[str], None]

    @property
    def path(self) -> str:
        return f"/nodes/{self.node}/qemu/{self.vm.id}"

    def do(self, act: Act) -> None:
        """Raises TaskFailed, ApiError or Unreachable; what was done by then, a second run finds done."""
        if isinstance(act, Map):
            self._map(act)
        elif isinstance(act, Download):
            self._download()
        elif isinstance(act, Create):
            self._create(act)
        elif isinstance(act, Configure):
            self._configure_by_shell(act) if act.by_shell else self._configure(act)
        elif isinstance(act, Grow):
            work = {"disk": DISK, "size": f"{act.gib}G"}
            self._run("disk", "PUT", f"{self.path}/resize", "resize", work, vmid=self.vm.id)
        elif isinstance(act, Start):
            self.start()
        else:
            raise AssertionError(act)

    def _run(
        self,
        what: str,
        method: str,
        path: str,
        kind: str,
        parameters: dict[str, str] | None = None,
        *,
        vmid: int | None = None,
        limit: float = SHORT,
        is_done: Callable[[], bool] = lambda: False,
    ) -> Done | None:
        work = Work(what, method, path, kind, self.node, parameters or {}, vmid=vmid, limit=limit, is_done=is_done)
        done = run(self.client, work, tell=self.tell)
        for line in done.warnings if done else ():
            self.warn(f"{what}: {line}")
        return done

    def _map(self, act: Map) -> None:
        """No task. A lost answer is answered by a look, and by the same once more: writing it twice does no harm."""
        mapping, entries = self.vm.mapping, list(act.entries)
        for attempt in (1, 2):
            new = act.new and (attempt == 1 or not self._is_mapped())
            try:
                if new:
                    self.client.write("POST", "/cluster/mapping/pci", {"id": mapping, "map": entries})
                else:
                    self.client.write("PUT", f"/cluster/mapping/pci/{mapping}", {"map": entries})
                return
            except LostAnswer:
                if attempt == 2:
                    raise

    def _is_mapped(self) -> bool:
        return any(row["id"] == self.vm.mapping for row in self.client.get("/cluster/mapping/pci") or [])

    def _download(self) -> None:
        image = self.vm.image
        self._run(
            f"image {image.file}",
            "POST",
            f"/nodes/{self.node}/storage/{image.storage}/download-url",
            "download",
            {
                "content": "import",
                "filename": image.file,
                "url": image.url,
                "checksum": image.sha256,
                "checksum-algorithm": "sha256",
            },
            limit=IMPORT,
            is_done=self._has_image,
        )

    def _has_image(self) -> bool:
        storage, file = self.vm.image.storage, self.vm.image.file
        rows = self.client.get(f"/nodes/{self.node}/storage/{storage}/content", content="import") or []
        return any(row.get("volid") == f"{storage}:import/{file}" for row in rows)

    def _create(self, act: Create) -> None:
        self._run(
            f"VM {self.vm.id}",
            "POST",
            f"/nodes/{self.node}/qemu",
            "qmcreate",
            dict(act.settings),
            vmid=self.vm.id,
            limit=IMPORT,
            is_done=self._exists,
        )

    def _exists(self) -> bool:
        try:
            self.client.get(f"{self.path}/status/current")
        except ApiError as error:
            if "does not exist" in error.reason:
                return False
            raise
        return True

    def _configure(self, act: Configure) -> None:
        """With the digest of what was compared: somebody else's change in between is an error, not lost."""
        digest = str(self.client.get(f"{self.path}/config")["digest"])
        settings = {**dict(act.settings), "digest": digest}
        if act.delete:
            settings["delete"] = ",".join(act.delete)
        self._run("configuration", "POST", f"{self.path}/config", "qmconfig", settings, vmid=self.vm.id)

    def _configure_by_shell(self, act: Configure) -> None:
        assert self.shell is not None
        words = [word for key, value in act.settings for word in (f"--{key}", value)]
        words += ["--delete", ",".join(act.delete)] if act.delete else []
        script = f"qm set {self.vm.id} {' '.join(map(quote, words))}"
        with self.shell() as connection:
            answer = connection.ask(script, deadline=120)
            if answer.rc != 0:
                said = (answer.err or answer.out).splitlines()[-5:]
                raise StepFailed("`qm set` failed", host=connection.name, details=[script, *said], page="proxmox-api")

    def start(self) -> None:
        """Started once, never in a loop: a card that did not come back only gets worse.

        No time-out is sent, so PVE takes its own, by memory and cards; our patience is a little longer.
        """
        current = {str(key): str(value) for key, value in self.client.get(f"{self.path}/config").items()}
        self._run(
            f"start of VM {self.vm.id}",
            "POST",
            f"{self.path}/status/start",
            "qmstart",
            vmid=self.vm.id,
            limit=start_seconds(current) + MARGIN,
            is_done=self.is_running,
        )

    def shutdown(self) -> None:
        """The guest shuts itself down; it is never stopped by force, which is what leaves cards dead."""
        self._run(
            f"shutdown of VM {self.vm.id}",
            "POST",
            f"{self.path}/status/shutdown",
            "qmshutdown",
            {"timeout": str(int(SHUTDOWN))},
            vmid=self.vm.id,
            limit=SHUTDOWN + MARGIN,
            is_done=lambda: not self.is_running(),
        )
        if self.is_running():
            raise RunbookError(
                f"VM {self.vm.id} did not shut down within {SHUTDOWN:.0f} s, and is not stopped by force",
                next="look at its console: invoke vm.console",
                page="vm-start",
            )

    def destroy(self) -> None:
        self._run(
            f"removal of VM {self.vm.id}", "DELETE", self.path, "qmdestroy", {"purge": "1"}, vmid=self.vm.id,
            is_done=lambda: not self._exists(),
        )  # fmt: skip

    def waiting(self) -> tuple[str, ...]:
        """Keys of its configuration that only a power cycle makes true: a NIC's are hot-plugged, memory is not."""
        found = Found.read(self.client.get(f"{self.path}/pending"))
        return tuple(sorted({*found.pending, *found.deleted}))

    def is_running(self) -> bool:
        return bool(self.client.get(f"{self.path}/status/current").get("status") == "running")
