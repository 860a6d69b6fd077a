"""A host that is a virtual machine: planned, made and started through the API of its Proxmox node, and met safely."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from runbooks.engine.errors import CheckFailed, NoAnswer, RunbookError, Unreachable, UsageError
from runbooks.engine.transport import Connection
from runbooks.inventory.shape import Node, Vm
from runbooks.paths import expand
from runbooks.provision import contact, granted
from runbooks.provision.node import look_at
from runbooks.proxmox.act import Hands
from runbooks.proxmox.client import Client, Login
from runbooks.proxmox.config import Wanted, has_clique
from runbooks.proxmox.plan import Act, PowerCycle, Start, plan
from runbooks.proxmox.preflight import Check, checks
from runbooks.proxmox.seen import Seen, look
from runbooks.session import Session

TAG = "vm"
BOOT = 900.0  # seconds from PVE's word that the VM was started to an answer over ssh: OVMF, kernel, cloud-init

# The unit is ours; the modules are unloaded so that no card is in use when QEMU resets it.
_QUIET = """\
systemctl stop sglang.service nvidia-persistenced.service 2>/dev/null
modprobe -r nvidia_drm nvidia_modeset nvidia_uvm nvidia 2>/dev/null
:"""


@dataclass(frozen=True)
class Outcome:
    """What became of a host's VM; counts are of acts. `absent`: check mode, and there is no host to look at yet.

    `granted`: the QEMU that runs grants peer-to-peer.
    """

    changed: int = 0
    would_change: int = 0
    absent: bool = False
    granted: bool = False


def ensure(
    session: Session, connection: Connection, vm: Vm, *, check: bool, diff: bool, node_changes: bool = False
) -> Outcome:
    """Make the VM as the inventory has it, started, and its host key pinned; in check mode only say what is not so.

    `node_changes`: check mode found something to do on the node, so what it is like then cannot be known now.
    """
    return _Machine(session, connection, vm).ensure(check=check, diff=diff, node_changes=node_changes)


def login(session: Session, node: Node) -> Login:
    folder = session.loaded.folder
    return Login(
        api=node.api,
        user=node.user,
        token=session.secret(node.token),
        password=session.secret(node.password),
        ca=folder / expand(node.ca) if node.ca else None,
        fingerprint=node.fingerprint,
    )


def node_name(session: Session, key: str) -> str:
    """The node's own name in its cluster."""
    return session.loaded.inventory.nodes[key].name or key


def hands(session: Session, host: str, client: Client) -> Hands:
    vm = session.loaded.inventory.hosts[host].vm
    assert vm is not None
    report = session.report
    has_shell = session.loaded.inventory.nodes[vm.node].ssh is not None

    def tell(line: str) -> None:
        if line:
            report.progress("proxmox", 0, None, host=host, detail=line)

    return Hands(
        client,
        node_name(session, vm.node),
        vm,
        (lambda: session.connect_node(vm.node)) if has_shell else None,
        tell,
        lambda line: report.note(line, host=host, level="warning"),
    )


def client(session: Session, host: str, node: Node) -> Client:
    return Client(
        login(session, node), tell=lambda line: session.report.progress("proxmox", 0, None, host=host, detail=line)
    )


class _Machine:
    def __init__(self, session: Session, connection: Connection, vm: Vm) -> None:
        self._session, self._connection, self._vm = session, connection, vm
        self._inventory = session.loaded.inventory
        self._node = self._inventory.nodes[vm.node]
        self._report = session.report
        self._host = connection.name
        self._started = False  # by this run

    def ensure(self, *, check: bool, diff: bool, node_changes: bool) -> Outcome:
        with ExitStack() as stack:
            api = stack.enter_context(client(self._session, self._host, self._node))
            able = hands(self._session, self._host, api)
            seen = look(api, self._vm, self._node, able.node)
            wanted = self._wanted(seen)
            acts = plan(wanted, seen, is_root=api.login.is_root, has_shell=able.shell is not None)
            if node_changes:
                self._report.note("is the node fit for a start: decided once it is prepared", host=self._host)
            else:
                self._preflight(acts, seen)
            if check:
                return self._preview(acts, seen, diff=diff)
            changed = sum(self._do(act, able, seen, diff=diff) for act in acts)
            changed += self._meet(api, able, patient=any(isinstance(act, Start | PowerCycle) for act in acts))
            self._report.progress("proxmox", 1, 1, host=self._host)
            self._say(f"vm   {changed} changed" if changed else "vm   as it should be", changed)
            now = wanted.clique if self._started else grants(seen)
            return Outcome(changed=changed, granted=now)

    def _wanted(self, seen: Seen) -> Wanted:
        vm, gpus = self._vm, self._inventory.gpus.count
        wanted = Wanted(
            name=self._host, vm=vm, node=self._node, gpus=gpus, keys=public_keys(vm, self._session.loaded.folder),
            version=seen.version,
        )  # fmt: skip
        return replace(wanted, clique=self._grants_peers(seen))

    def _grants_peers(self, seen: Seen) -> bool:
        """Granted unless it was tried and not proven: a false grant hangs or sums wrong (NVIDIA/nccl #2335).

        A VM that cannot be asked keeps what it has.
        """
        if self._vm.p2p == "off":
            return False
        if seen.found is None:
            return True
        there = has_clique(seen.found.next_start)
        verdict = self._verdict() if seen.running else None
        if verdict is None:
            return there
        if not granted.is_vetoed(verdict):
            return True
        if there:
            text = f"peer-to-peer was tried and is not proven ({verdict}): the grant is taken back"
            self._report.note(text, host=self._host, level="warning")
        return False

    def _verdict(self) -> str | None:
        """What the host holds of peer-to-peer; None: nobody answers there."""
        try:
            return self._connection.ask(granted.ASK, deadline=15).out.strip()
        except (Unreachable, NoAnswer):
            return None

    def _preflight(self, acts: list[Act], seen: Seen) -> None:
        if any(isinstance(act, Start | PowerCycle) for act in acts):
            refuse_unfit(self._session, self._vm, running=seen.running)

    def _preview(self, acts: list[Act], seen: Seen, *, diff: bool) -> Outcome:
        for act in acts:
            self._report.emit(
                "step",
                act.line,
                host=self._host,
                state="would-change",
                diff=list(act.details) if diff else [],
                unified="",
            )
        absent = not seen.running
        if acts:
            self._say(f"vm   {len(acts)} would change", len(acts), state="would-change")
        else:
            self._say("vm   as it should be", 0)
        if absent:
            self._report.note("everything inside the VM is decided once it runs", host=self._host)
        return Outcome(would_change=len(acts), absent=absent, granted=grants(seen))

    def _say(self, text: str, changed: int, *, state: str = "") -> None:
        state = state or ("changed" if changed else "ok")
        self._report.emit("stage", text, host=self._host, state=state, ok=0, changed=changed)

    def _do(self, act: Act, able: Hands, seen: Seen, *, diff: bool) -> bool:
        """True when it was done; a power cycle that nobody consents to waits, and is said."""
        if isinstance(act, PowerCycle):
            if not self._cycle(act, able):
                return False
        else:
            if isinstance(act, Start):
                self._listen(able)
            able.do(act)
            self._started = self._started or isinstance(act, Start)
        self._tell_step(act.line, act.details if diff else ())
        return True

    def _tell_step(self, line: str, details: tuple[str, ...] = (), *, state: str = "changed") -> None:
        self._report.emit("step", line, host=self._host, state=state, diff=list(details), unified="")

    def _cycle(self, act: PowerCycle, able: Hands) -> bool:
        if not able.waiting():
            self._report.note("PVE took it at once: no power cycle is needed", host=self._host)
            return False
        question = (
            f"{self._host}: shut the VM down and start it again? ({'; '.join(act.details)}) "
            "Cards may not come back from the reset; then only a cold boot of the node helps."
        )
        try:
            consent = self._session.consent(question)
        except UsageError:
            consent = False
        if not consent:
            self._report.note(
                f"waits for the next power cycle: {'; '.join(act.details)}", host=self._host, level="warning"
            )
            return False
        let_go(self._session, self._connection)
        able.shutdown()
        refuse_dead_cards(self._session, self._vm)
        self._listen(able)
        able.start()
        self._started = True
        return True

    def _listen(self, able: Hands) -> None:
        """Before its start, so that the console tells of a boot that never gets to the network."""
        if able.shell is not None:
            with able.shell() as connection:
                contact.Console(connection, self._vm).listen()

    def _meet(self, api: Client, able: Hands, *, patient: bool) -> int:
        with ExitStack() as stack:
            console = None
            if able.shell is not None and patient:
                console = contact.Console(stack.enter_context(able.shell()), self._vm)
            pinned = contact.reach(
                self._connection, api, self._vm, able.node, console=console, limit=BOOT if patient else 60.0,
                tell=lambda line, seconds: self._report.progress(
                    "boot", seconds, BOOT, host=self._host, unit="s", detail=line
                ),
            )  # fmt: skip
            self._report.progress("boot", BOOT, BOOT, host=self._host)
            if console is not None:
                console.hang_up()
        if pinned:
            self._report.emit(
                "step",
                "host key pinned, as the hypervisor told it",
                host=self._host,
                state="changed",
                diff=[],
                unified="",
            )
        return int(pinned)


def grants(seen: Seen) -> bool:
    """Does the QEMU that runs grant peer-to-peer?"""
    return seen.running and seen.found is not None and has_clique(seen.found.current)


def refuse_unfit(session: Session, vm: Vm, *, running: bool) -> None:
    """Before a start: what the node's own shell tells. Without a shell only what the API told."""
    node = session.loaded.inventory.nodes[vm.node]
    if node.ssh is None:
        return
    with session.connect_node(vm.node) as connection:
        state = look_at(connection)
    found = checks(state, node, session.loaded.inventory.gpus, vm, running=running)
    for bad in found:
        if not bad.ok and bad.advice:
            session.report.note(f"{bad.name}: {bad.detail} ({bad.fix})", host=vm.node, level="warning")
    refuse(found, vm.node)


def refuse_dead_cards(session: Session, vm: Vm) -> None:
    """After each stop: a card whose configuration space reads ffff stays dead until a cold boot."""
    node = session.loaded.inventory.nodes[vm.node]
    if node.ssh is None:
        return
    with session.connect_node(vm.node) as connection:
        state = look_at(connection)
    found = checks(state, node, session.loaded.inventory.gpus)
    refuse([one for one in found if one.page in ("gpu-reset", "gpu-lost")], vm.node)


def let_go(session: Session, connection: Connection) -> None:
    """The guest stops its server and unloads the driver, so that no card is in use when QEMU resets it."""
    try:
        connection.ask(_QUIET, deadline=120)
    except (Unreachable, NoAnswer) as error:
        text = f"the guest could not be asked to let go of its cards: {error.message}"
        session.report.note(text, host=connection.name, level="warning")
    connection.close()


def refuse(found: list[Check], node: str) -> None:
    """Raises CheckFailed with all that fails, the first one as the headline."""
    bad = [one for one in found if not one.ok and not one.advice]
    if not bad:
        return
    first, *rest = bad
    raise CheckFailed(
        f"{first.name}: {first.detail}",
        host=node,
        details=[f"cure: {first.fix}", *(f"{one.name}: {one.detail} ({one.fix})" for one in rest)],
        next="invoke doctor --node",
        page=first.page or None,
    )


def public_keys(vm: Vm, folder: Path, read: Callable[[Path], str] = Path.read_text) -> tuple[str, ...]:
    """The lines themselves, or those of files beside the inventory. Raises UsageError for what is no public key."""
    found: list[str] = []
    for word in vm.ssh_keys:
        lines = [word]
        if not word.startswith(("ssh-", "ecdsa-", "sk-")):
            path = folder / expand(word)
            try:
                lines = read(path).splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise UsageError(f"ssh_keys: {path}: {getattr(error, 'strerror', None) or 'is no text'}") from None
        for line in filter(str.strip, lines):
            if "PRIVATE KEY" in line:
                raise UsageError(f"ssh_keys: {word} is a private key; the public one is meant", next=f"{word}.pub")
            if len(line.split()) < 2 or not line.startswith(("ssh-", "ecdsa-", "sk-")):
                raise UsageError(f"ssh_keys: {line[:40]!r} is no public key")
            found.append(line.strip())
    if not found:
        raise RunbookError("ssh_keys: names no public key, so nobody could log in to the VM")
    return tuple(found)
