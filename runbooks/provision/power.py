"""The vm tasks: one host's virtual machine looked at, started, shut down, removed; never by force."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from runbooks.engine.errors import CheckFailed, RunbookError, UsageError
from runbooks.inventory.shape import Vm
from runbooks.provision import vm as machines
from runbooks.provision.contact import Console
from runbooks.proxmox.act import Hands
from runbooks.proxmox.client import ApiError
from runbooks.proxmox.diff import Found
from runbooks.session import Session

_ESCAPES = re.compile(
    r"\x1b\[[0-9;?]*[A-Za-z]|\r|\x1bc?"
)  # a firmware's colours and cursor, and line ends of a console


def status(session: Session) -> int:
    """What Proxmox says of each host's VM. Exit code 1 when one is not there or does not run."""
    rows = []
    for host, machine in _machines(session):
        with ExitStack() as stack:
            hands = _hands(session, host, machine, stack)
            rows.append([host, str(machine.id), machine.node, *_state(hands)])
    session.report.table("virtual machines", ["host", "id", "node", "state", "since", "pending"], rows)
    return 0 if all(row[3] == "running" for row in rows) else 1


def _state(hands: Hands) -> list[str]:
    try:
        current = hands.client.get(f"{hands.path}/status/current")
    except ApiError as error:
        if "does not exist" in error.reason:
            return ["not there", "", ""]
        raise
    lock = f" (locked: {current['lock']})" if current.get("lock") else ""
    hours = int(current.get("uptime") or 0) / 3600
    return [f"{current.get('status')}{lock}", f"{hours:.1f} h" if hours else "", ", ".join(hands.waiting())]


def start(session: Session) -> int:
    """Start the VMs that do not run. Once each: a card that did not come back only gets worse by trying."""

    def one(hands: Hands, host: str) -> str:
        if hands.is_running():
            return "runs already"
        machines.refuse_unfit(session, hands.vm, running=False)
        hands.start()
        return "started"

    return _each(session, one)


def shutdown(session: Session) -> int:
    """Ask the guests to shut down, after consent. They are never stopped by force."""

    def one(hands: Hands, host: str) -> str:
        if not hands.is_running():
            return "does not run"
        question = (
            f"{host}: shut the VM down? Its server stops; cards may not come back from the reset at the next start."
        )
        if not session.consent(question):
            return "left running"
        with session.connect(host) as connection:
            machines.let_go(session, connection)
        hands.shutdown()
        machines.refuse_dead_cards(session, hands.vm)
        return "shut down"

    return _each(session, one)


def destroy(session: Session, confirm: str) -> int:
    """Remove one VM with its disks: its name must be typed, and it must be neither protected nor running."""
    hosts = _machines(session)
    if len(hosts) != 1:
        raise UsageError("one VM at a time is destroyed", details=[", ".join(host for host, _ in hosts)],
                         next="invoke vm.destroy --hosts HOST")  # fmt: skip
    host, machine = hosts[0]
    with ExitStack() as stack:
        hands = _hands(session, host, machine, stack)
        current = hands.client.get(f"{hands.path}/status/current")
        found = Found.read(hands.client.get(f"{hands.path}/pending"))
        _refuse_destroy(host, machine, str(current.get("name")), found, running=current.get("status") == "running")
        if _typed(session, host, confirm) != host:
            raise UsageError("that is not its name; nothing was removed", next=f"invoke vm.destroy --hosts {host}")
        hands.destroy()
    session.report.note("destroyed, with its disks", host=host, level="good")
    return 0


def _refuse_destroy(host: str, machine: Vm, name: str, found: Found, *, running: bool) -> None:
    if name != host:
        raise CheckFailed(f"VM {machine.id} is called {name!r}, not {host!r}: it is left alone")
    if machine.protection or found.next_start.get("protection") == "1":
        raise CheckFailed(
            f"VM {machine.id} is protected",
            host=host,
            next="protection: false for it in the inventory, then invoke provision --tags vm",
        )
    if running:
        raise CheckFailed(f"VM {machine.id} runs", host=host, next=f"invoke vm.shutdown --hosts {host}")


def _typed(session: Session, host: str, confirm: str) -> str:
    if confirm or not sys.stdin.isatty():
        return confirm
    session.report.close()
    print(f"This removes the VM {host} and everything on its disks. Type its name: ", end="", flush=True)
    return sys.stdin.readline().strip()


def console(session: Session, *, log: bool = False) -> int:
    """The VM's serial console: opened on a terminal, left with Ctrl-O; else the line that opens it.

    `log`: what it printed at its last start by provisioning, which listens until the VM answers over ssh.
    """
    hosts = _machines(session)
    if len(hosts) != 1:
        raise UsageError("a console is one VM's", next="invoke vm.console --hosts HOST")
    host, machine = hosts[0]
    node = session.loaded.inventory.nodes[machine.node]
    if node.ssh is None:
        raise UsageError(
            f"the console of {host} is reached through the shell of its node, and {machine.node} has no `ssh`",
            next=f"in the browser: {node.api}, VM {machine.id}, Console",
        )
    with session.connect_node(machine.node) as connection:
        serial = Console(connection, machine)
        if log:
            return _print_log(session, host, serial.said())
        sudo = "" if connection.target.user == "root" else "sudo "
        line = f"{connection.target.ssh} -t {sudo}qm terminal {machine.id}"
        if sys.stdin.isatty():
            serial.hang_up()  # QEMU's socket takes one listener
    if sys.stdin.isatty():
        session.report.close()
        words = shlex.split(line)
        os.execvp(words[0], words)
    print(line)
    return 0


def _print_log(session: Session, host: str, said: str) -> int:
    if not said.strip():
        session.report.note(
            "nothing was recorded: no start by provisioning, or a VM that says nothing", host=host, level="warning"
        )
        return 1
    session.report.close()
    print(_ESCAPES.sub("", said), end="")
    return 0


def _each(session: Session, work: Callable[[Hands, str], str]) -> int:
    failed = False
    for host, machine in _machines(session):
        with ExitStack() as stack:
            try:
                what = work(_hands(session, host, machine, stack), host)
                session.report.progress("proxmox", 1, 1, host=host)
                session.report.note(what, host=host, level="good")
            except UsageError:
                raise
            except RunbookError as error:
                failed = True
                error.host = error.host or host
                session.report.failed(error, host=host)
    return int(failed)


def _hands(session: Session, host: str, machine: Vm, stack: ExitStack) -> Hands:
    node = session.loaded.inventory.nodes[machine.node]
    return machines.hands(session, host, stack.enter_context(machines.client(session, host, node)))


def _machines(session: Session) -> Sequence[tuple[str, Vm]]:
    found = [(name, session.loaded.inventory.hosts[name].vm) for name in session.hosts]
    vms = [(name, machine) for name, machine in found if machine is not None]
    if not vms:
        raise UsageError(
            "none of these hosts has a `vm` in the inventory", details=[f"hosts: {', '.join(session.hosts)}"]
        )
    return vms
