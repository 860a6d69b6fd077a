"""A lab's own network: a free 10.77.N.0/24, the bridge rb<N> that claims it, and its way out to the registries."""

from __future__ import annotations

import fcntl
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.machine import cache, sh
from runbooks.engine.errors import RunbookError

_SYSCTLS = {
    "net/ipv4/ip_forward": 1,  # guests reach the registries through this machine
    "fs/inotify/max_user_instances": 8192,  # each guest's systemd takes several; the default 128 is enough for about 11
}


@contextmanager
def locked(what: str) -> Iterator[None]:
    """One at a time on this machine and cache: claiming a network, making the base tree, changing one lab."""
    folder = cache() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / what).open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class Network:
    number: int

    @property
    def bridge(self) -> str:
        return f"rb{self.number}"

    @property
    def prefix(self) -> str:
        return f"10.77.{self.number}."

    @property
    def subnet(self) -> str:
        return f"{self.prefix}0/24"

    @property
    def gateway(self) -> str:
        """The machine itself, as guests see it."""
        return f"{self.prefix}1"

    @property
    def mtu(self) -> int:
        """As the machine's own way out: answers that are too big for it would be lost, not cut."""
        routes = json.loads(sh("ip", "-j", "route", "show", "default") or "[]")
        return int(Path(f"/sys/class/net/{routes[0]['dev']}/mtu").read_text()) if routes else 1500

    @property
    def owner(self) -> str | None:
        """Whose bridge it is, as written on it; None where there is no such bridge."""
        alias = Path(f"/sys/class/net/{self.bridge}/ifalias")
        return alias.read_text().strip() if alias.exists() else None

    @classmethod
    def claim(cls, owner: str) -> Network:
        """The first free one. Making the bridge is the claim: the kernel lets only one succeed."""
        with locked("network"):
            for network in _ALL:
                if network.owner == owner:  # an earlier claim that was killed before it was noted
                    network._close()
            taken = sh("ip", "-4", "-o", "addr", "show") + sh("ip", "-4", "route", "show")
            for network in _ALL:
                if network.owner is None and not re.search(rf"\b{re.escape(network.prefix)}", taken):
                    network._open(owner)
                    return network
        raise RunbookError("lab: all 256 networks 10.77.N.0/24 are taken", next="invoke lab.status")

    def release(self, owner: str) -> None:
        """Bridge and rules go; the last lab also puts the kernel settings back as they were found."""
        with locked("network"):
            if self.owner in (owner, None):  # else this machine restarted since, and the number is another lab's now
                self._close()
            if all(network.owner is None for network in _ALL):
                _restore_sysctls()

    def _open(self, owner: str) -> None:
        _raise_sysctls()
        sh("ip", "link", "add", self.bridge, "type", "bridge")
        sh("ip", "link", "set", self.bridge, "alias", owner, "mtu", str(self.mtu), "up")
        sh("ip", "addr", "add", f"{self.gateway}/24", "dev", self.bridge)
        for table, rule in self._rules():
            sh("iptables", "-w", "-t", table, "-I", *rule)

    def _close(self) -> None:
        for table, rule in self._rules():
            _drop_rule(table, rule)
        if self.owner is not None:
            sh("ip", "link", "del", self.bridge)

    def _rules(self) -> list[tuple[str, list[str]]]:
        mark = ["-m", "comment", "--comment", f"runbooks-lab-{self.bridge}"]
        return [
            ("nat", ["POSTROUTING", "-s", self.subnet, "!", "-d", self.subnet, *mark, "-j", "MASQUERADE"]),
            ("filter", ["FORWARD", "-i", self.bridge, *mark, "-j", "ACCEPT"]),
            ("filter", ["FORWARD", "-o", self.bridge, *mark, "-j", "ACCEPT"]),
            ("filter", ["INPUT", "-i", self.bridge, *mark, "-j", "ACCEPT"]),
        ]


_ALL = [Network(number) for number in range(256)]


def _drop_rule(table: str, rule: list[str]) -> None:
    """Until iptables says that there is none left."""
    while (
        subprocess.run(["iptables", "-w", "-t", table, "-D", *rule], capture_output=True, check=False).returncode == 0
    ):
        pass


def _raise_sysctls() -> None:
    before = _sysctls_before()
    for key, wanted in _SYSCTLS.items():
        path = Path("/proc/sys") / key
        found = int(path.read_text())
        if found < wanted:
            before.setdefault(key, found)
            path.write_text(str(wanted))
    _memory().write_text(json.dumps(before))


def _restore_sysctls() -> None:
    for key, found in _sysctls_before().items():
        (Path("/proc/sys") / key).write_text(str(found))
    _memory().unlink(missing_ok=True)


def _sysctls_before() -> dict[str, int]:
    path = _memory()
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _memory() -> Path:
    return Path("/run/runbooks-lab-sysctls.json")  # /run: a restart of the machine forgets both together
