"""A control group of this machine that a guest's step is moved into: there memory really runs out."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest

_STEP = b"sh\0-e\0./script\0"


class MemoryGroup:
    """`limit` in bytes. A machine that lets nobody make memory groups skips the test."""

    def __init__(self, limit: int) -> None:
        self._place = _own_group() / f"runbooks-faults-{os.getpid()}"
        old = self._place.parent.joinpath("memory.limit_in_bytes").exists()
        names = ("memory.limit_in_bytes", "memory.oom_control") if old else ("memory.max", "memory.events")
        self._kills = names[1]
        try:
            self._place.mkdir(exist_ok=True)
            self._place.joinpath(names[0]).write_text(str(limit))
        except OSError as error:
            pytest.skip(f"no memory group can be made here: {error}")

    def take(self, machine: str) -> None:
        """Move the step at work in the guest with this machine-id, and what it starts, in here."""
        found = [path.parent for path in Path("/proc").glob("[0-9]*/cmdline") if _is(path, machine)]
        assert found, "the step is not at work"
        for process in found:
            self._place.joinpath("cgroup.procs").write_text(process.name)

    def kills(self) -> int:
        lines = self._place.joinpath(self._kills).read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))

    def remove(self) -> None:
        for _ in range(50):
            with contextlib.suppress(OSError):
                self._place.rmdir()
                return
            time.sleep(0.1)


def _own_group() -> Path:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory" + path)
        if number == "0" and not Path("/sys/fs/cgroup/memory").exists():
            return Path("/sys/fs/cgroup" + path)
    return Path("/sys/fs/cgroup")


def _is(cmdline: Path, machine: str) -> bool:
    try:
        if not cmdline.read_bytes().endswith(_STEP):
            return False
        return (cmdline.parent / "root/etc/machine-id").read_text().strip() == machine.strip()
    except OSError:
        return False
