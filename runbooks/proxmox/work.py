"""Work that PVE does in the background: started once, found again when its answer was lost, followed to its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from runbooks.engine.errors import RunbookError
from runbooks.proxmox.client import ApiError, Client, LostAnswer, Parameters, is_locked
from runbooks.proxmox.failures import explain

FIND_LOOKS = 6  # looks for a task whose POST had no answer, two seconds apart: the daemon may be at it just now
SENDS = 5  # of a call whose answer was lost each time, and of which each time nothing was to be found
LOCK_TRIES = 5  # of a task that another one kept from the VM's lock
MARGIN = 120.0  # seconds on top of PVE's own limits

IMPORT, SHORT = 3600.0, 600.0  # seconds: an image's download or import; everything else that has no rule of its own


@dataclass(frozen=True)
class Upid:
    """`UPID:pve:0003B9AC:0A2D4C3B:6748F2A1:qmstart:129:root@pam!rb:`"""

    text: str

    @property
    def node(self) -> str:
        return self.text.split(":")[1]

    @property
    def kind(self) -> str:
        return self.text.split(":")[5]

    @property
    def path(self) -> str:
        return f"/nodes/{self.node}/tasks/{quote(self.text, safe='')}"


@dataclass(frozen=True)
class Done:
    """A task that ended well. `warnings` are lines of its log: PVE counts them in its exit status, `WARNINGS: 2`."""

    upid: Upid
    warnings: tuple[str, ...]
    log: tuple[str, ...]


class TaskFailed(RunbookError):
    """A task ended badly; `said` is its exit status."""

    def __init__(self, what: str, said: str, log: tuple[str, ...]) -> None:
        cause = explain("\n".join([*log, said]))
        details = [*log[-8:], *([] if log and said in log[-1] else [said])]
        super().__init__(
            f"{what}: {cause.what}" if cause else f"{what} failed: {said}",
            details=[*details, *((f"cure: {cause.cure}",) if cause else ())],
            page=cause.page if cause else "proxmox-api",
        )
        self.said = said


@dataclass(frozen=True)
class Work:
    """One call that starts a task of kind `kind` (`qmstart`, `imgcopy`...) for the VM `vmid`.

    `limit` is in seconds. `is_done` asks whether its result is there already, for a call whose answer was lost.
    """

    what: str
    method: str
    path: str
    kind: str
    node: str
    parameters: Parameters
    vmid: int | None = None
    limit: float = SHORT
    is_done: Callable[[], bool] = lambda: False


def run(client: Client, work: Work, *, tell: Callable[[str], None]) -> Done | None:
    """Start it and follow it to its end; None: no task was needed. Raises TaskFailed, ApiError, Unreachable.

    Sent again only where it certainly did nothing: PVE could not take the VM's lock.
    """
    wait = 1.0
    for attempt in range(1, LOCK_TRIES + 1):
        try:
            upid = start(client, work)
            return follow(client, upid, what=work.what, limit=work.limit, tell=tell) if upid else None
        except (ApiError, TaskFailed) as error:
            said = error.said if isinstance(error, TaskFailed) else error.reason
            if not is_locked(said) or attempt == LOCK_TRIES:
                raise
        tell(f"{work.what}: another task has the VM's lock; tried again")
        client.clock.sleep(wait)
        wait *= 2
    raise AssertionError("unreachable")


def start(client: Client, work: Work) -> Upid | None:
    """Send it once. An answer that was lost is looked for in the task list, and only then is the call repeated."""
    known = {upid.text for upid in _tasks(client, work)}
    for attempt in range(1, SENDS + 1):
        try:
            return _upid(client.write(work.method, work.path, work.parameters))
        except LostAnswer:
            found = _find(client, work, known)
            if found is not None or work.is_done():
                return found
            if attempt == SENDS:
                raise
        except ApiError as error:
            if attempt > 1 and work.is_done():  # an earlier one had arrived after all
                return _find(client, work, known)
            raise error
    return None


def _find(client: Client, work: Work, known: set[str]) -> Upid | None:
    """The task that was not there before the call."""
    for look in range(FIND_LOOKS):
        new = [upid for upid in _tasks(client, work) if upid.text not in known]
        if new:
            return new[0]
        if look + 1 < FIND_LOOKS:
            client.clock.sleep(2.0)
    return None


def _tasks(client: Client, work: Work) -> list[Upid]:
    """The newest first, running ones included."""
    query: dict[str, Any] = {"source": "all", "typefilter": work.kind, "limit": 20}
    if work.vmid is not None:
        query["vmid"] = work.vmid
    return [Upid(row["upid"]) for row in client.get(f"/nodes/{work.node}/tasks", **query) or []]


def _upid(answer: Any) -> Upid | None:
    return Upid(answer) if isinstance(answer, str) and answer.startswith("UPID:") else None


def follow(client: Client, upid: Upid, *, what: str, limit: float, tell: Callable[[str], None]) -> Done:
    """Poll until it ended. A read that fails says nothing about the task: `Client.get` asks on."""
    began, wait = client.clock.monotonic(), 0.2
    while (status := client.get(f"{upid.path}/status")).get("status") != "stopped":
        if client.clock.monotonic() - began > limit:
            raise RunbookError(
                f"{what} takes longer than {limit:.0f} s; it goes on by itself on the node",
                details=[upid.text, *_log(client, upid)[-5:]],
                next="the same command again: it looks at what has become of it",
                page="proxmox-api",
            )
        tell(_last(client, upid) if wait > 1 else "")
        client.clock.sleep(wait)
        wait = min(1.5 * wait, 5.0)
    said = str(status.get("exitstatus", ""))
    if said == "OK":
        return Done(upid, (), ())
    log = _log(client, upid)
    if not said.startswith("WARNINGS:"):
        raise TaskFailed(what, said, log)
    return Done(upid, tuple(line for line in log if line.startswith("WARN") or "warning:" in line) or (said,), log)


def _log(client: Client, upid: Upid) -> tuple[str, ...]:
    rows = client.get(f"{upid.path}/log", start=0, limit=500) or []
    return tuple(str(row["t"]) for row in rows if str(row.get("t", "")).strip())


def _last(client: Client, upid: Upid) -> str:
    log = _log(client, upid)
    return log[-1] if log else ""
