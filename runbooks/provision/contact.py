"""The first contact with a new VM: its SSH host key is learnt from the hypervisor, never from whoever answers first.

Two ways lead into a VM without its network: its guest agent, which the API asks to read the public key's file; and its
serial console, on which cloud-init prints the keys at the first boot, and which the node's shell can listen to.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runbooks.engine.errors import CheckFailed, HostKeyChanged, HostKeyUnknown, NoAnswer, Unreachable
from runbooks.engine.transport import Connection
from runbooks.inventory.shape import Vm
from runbooks.proxmox.client import ApiError, Client

KEY_FILE = "/etc/ssh/ssh_host_ed25519_key.pub"
CONSOLE_LOGS = "/var/lib/runbooks/console"  # on the node
_KEY = re.compile(r"\b(ssh-ed25519) ([A-Za-z0-9+/]{68}=*)")
_PRINTED = re.compile(r"-----BEGIN SSH HOST KEY KEYS-----(.*?)-----END SSH HOST KEY KEYS-----", re.DOTALL)
_NO_AGENT = ("guest agent is not running", "guest agent configured", "is not running", "can't open")

_LISTEN = """\
mkdir -p {folder} && umask 077 && cd {folder} || exit 1
[ ! -e {id}.pid ] || kill -- "-$(cat {id}.pid)" 2>/dev/null; rm -f {id}.log
setsid sh -c 'echo $$ >{id}.pid
  i=0; while [ ! -S {socket} ] && [ $i -lt 1800 ]; do sleep 0.5; i=$((i + 1)); done
  ulimit -f 16384; timeout --foreground {limit} socat -u UNIX-CONNECT:{socket} - >{id}.log
  rm -f {id}.pid' </dev/null >/dev/null 2>&1 &
"""
_READ = "cat {folder}/{id}.log 2>/dev/null"
_HANG_UP = """\
cd {folder} 2>/dev/null && [ -e {id}.pid ] && kill -- "-$(cat {id}.pid)" 2>/dev/null; rm -f {folder}/{id}.pid
"""


@dataclass
class Console:
    """The VM's serial console, listened to on its node from before its start."""

    connection: Connection
    vm: Vm

    def _fill(self, script: str, limit: int = 3600) -> str:
        socket = f"/var/run/qemu-server/{self.vm.id}.serial0"
        return script.format(folder=CONSOLE_LOGS, id=self.vm.id, socket=socket, limit=limit)

    def listen(self) -> None:
        """From now on, in the background; QEMU forgets what is printed while nobody listens."""
        self.connection.ask(self._fill(_LISTEN), deadline=15)

    def said(self) -> str:
        return self.connection.ask(self._fill(_READ), deadline=15).out

    def hang_up(self) -> None:
        """So that `invoke vm.console` gets the line: it takes one listener."""
        self.connection.ask(self._fill(_HANG_UP), deadline=15)


def reach(
    connection: Connection,
    client: Client,
    vm: Vm,
    node: str,
    *,
    console: Console | None,
    limit: float,
    tell: Callable[[str, float], None],
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Return when the VM answers over SSH with the key that the hypervisor vouches for; True: a key was pinned.

    `limit` in seconds. A key that is pinned and right costs nothing here but the connection.
    """
    began, pinned, wait = time.monotonic(), False, 0.25
    while True:
        try:
            connection.ask(":", deadline=15)
            return pinned
        except (HostKeyUnknown, HostKeyChanged) as error:
            if pinned:  # the person's own ~/.ssh/known_hosts, or somebody in between
                raise
            key = _read_key(connection, client, vm, node, console, until=began + limit, tell=tell, sleep=sleep)
            pin(connection.target.known_hosts, connection.target.address, connection.target.port, key)
            pinned = True
            if not isinstance(error, HostKeyUnknown):
                tell("the VM was rebuilt: its new host key, told by the hypervisor, replaces the old one", 0)
        except (Unreachable, NoAnswer) as error:
            if time.monotonic() - began > limit or "refused the login" in error.message:
                raise _no_contact(error, console) from None
            tell(f"waits for ssh: {error.message}", time.monotonic() - began)
            sleep(wait)
            wait = min(2 * wait, 5.0)


def _read_key(
    connection: Connection,
    client: Client,
    vm: Vm,
    node: str,
    console: Console | None,
    *,
    until: float,
    tell: Callable[[str, float], None],
    sleep: Callable[[float], None],
) -> str:
    """`ssh-ed25519 AAAA…`. Raises CheckFailed when neither way tells it in time, ApiError for a forbidden agent."""
    while True:
        key = _by_agent(client, vm, node) or (from_console(console.said()) if console else None)
        if key is not None:
            if console is not None:
                console.hang_up()
            return key
        if time.monotonic() > until:
            raise CheckFailed(
                f"the host key of VM {vm.id} could not be learnt: no guest agent answers"
                + ("" if console else ", and the node has no `ssh` to listen to the VM's console"),
                host=connection.name,
                next="give the node `ssh` in the inventory, or an image with qemu-guest-agent; by hand: read the "
                "fingerprint at invoke vm.console, then pin it",
                page="host-unreachable",
            )
        tell("asks the guest agent and the console for the VM's host key", 0)
        sleep(2.0)


def _by_agent(client: Client, vm: Vm, node: str) -> str | None:
    """None while no agent runs. Forbidden is another matter: waiting would never end (bpg #2091)."""
    try:
        answer = client.get(f"/nodes/{node}/qemu/{vm.id}/agent/file-read", file=KEY_FILE)
    except ApiError as error:
        if error.status != 403 and any(words in error.reason for words in _NO_AGENT):
            return None
        raise
    return read_key(str((answer or {}).get("content", "")))


def read_key(text: str) -> str | None:
    match = _KEY.search(text)
    return f"{match[1]} {match[2]}" if match else None


def from_console(text: str) -> str | None:
    """The last block of keys that cloud-init printed: a rebuilt VM has a newer one."""
    blocks = _PRINTED.findall(text)
    return read_key(blocks[-1]) if blocks else None


def pin(known_hosts: Path, address: str, port: int, key: str) -> None:
    """Replace what is pinned for this address by this one key, in one rename."""
    name = address if port == 22 else f"[{address}]:{port}"
    lines = known_hosts.read_text(errors="surrogateescape").splitlines() if known_hosts.exists() else []
    kept = [line for line in lines if name not in line.partition(" ")[0].split(",")]
    known_hosts.parent.mkdir(parents=True, exist_ok=True)
    part = known_hosts.with_name(f"{known_hosts.name}.new")
    part.write_text("\n".join([*kept, f"{name} {key}"]) + "\n", errors="surrogateescape")
    part.replace(known_hosts)


def _no_contact(error: Unreachable | NoAnswer, console: Console | None) -> Unreachable:
    last = console.said().splitlines()[-8:] if console else []
    return Unreachable(
        f"the VM runs, and does not answer over ssh: {error.message}",
        host=error.host,
        details=[*(["the end of its console:"] if last else []), *last],
        next="invoke vm.console",
        page="vm-start",
    )
