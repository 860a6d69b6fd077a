"""`invoke doctor --node`: every check of a Proxmox node and of the account that talks to its API. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from runbooks.engine.errors import RunbookError, UsageError
from runbooks.inventory.shape import Node, Vm
from runbooks.provision import vm as machines
from runbooks.provision.node import look_at
from runbooks.proxmox import rights
from runbooks.proxmox.client import Client
from runbooks.proxmox.config import Version, start_seconds
from runbooks.proxmox.preflight import Check, checks
from runbooks.proxmox.seen import Seen, look
from runbooks.session import Session


def doctor_nodes(session: Session) -> int:
    """Exit code 1 when a check fails; advice alone is no failure."""
    found = [(host, session.loaded.inventory.hosts[host].vm) for host in session.hosts]
    pairs = [(host, vm) for host, vm in found if vm is not None]
    if not pairs:
        raise UsageError("none of these hosts has a `vm`, so no node is known", next="vm and nodes in the inventory")
    failed = [host for host, vm in pairs if _doctor(session, host, vm)]
    return int(bool(failed))


def _doctor(session: Session, host: str, vm: Vm) -> bool:
    """True when something fails."""
    node = session.loaded.inventory.nodes[vm.node]
    with machines.client(session, host, node) as client:
        results, running = _api(session, client, host, vm, node)
    results += list(_shell(session, vm, node, running=running))
    for check in results:
        _tell(session, vm.node, check)
    bad = [check for check in results if not check.ok and not check.advice]
    session.report.emit(
        "result",
        f"{len(results) - len(bad)} of {len(results)} checks pass, for {host}",
        host=vm.node,
        state="failed" if bad else "ok",
    )
    return bool(bad)


def _api(session: Session, client: Client, host: str, vm: Vm, node: Node) -> tuple[list[Check], bool]:
    """Checks by the API; and does the VM run?"""
    name = machines.node_name(session, vm.node)
    try:
        seen = look(client, vm, node, name)
        return [*_what_is_seen(seen, host, vm, session.loaded.inventory.gpus.count), _rights(client, seen, vm, name)], (
            seen.running
        )
    except RunbookError as error:
        fix = error.next or next((line for line in error.details if line.startswith("cure: ")), "")
        detail = "; ".join([error.message, *error.details[:3]])
        return [Check("API", False, detail, fix.removeprefix("cure: "), error.page or "proxmox-api")], False


def _what_is_seen(seen: Seen, host: str, vm: Vm, gpus: int) -> Iterator[Check]:
    yield Check("API", True, f"Proxmox VE {seen.version}")
    yield Check("cards by the API", len(seen.cards) >= gpus, f"{len(seen.cards)} of {gpus}",
                "gpu_ids of the node; cold boot of the node", "gpu-lost")  # fmt: skip
    ours = {str(entry) for entry in seen.cards[:gpus]}
    fresh = seen.mapping is not None and ours <= set(seen.mapping) and not seen.mapping_faults
    what = "; ".join(seen.mapping_faults) or ("as the hardware is" if fresh else "not as the hardware is now")
    yield Check(f"PCI mapping {vm.mapping}", fresh, what if seen.mapping is not None else "not there yet",
                "invoke provision --tags vm", "vm-start", advice=seen.mapping is None)  # fmt: skip
    yield Check("not in high availability", not seen.in_ha, "in HA" if seen.in_ha else "no",
                f"ha-manager remove vm:{vm.id}", "vm-start")  # fmt: skip
    if seen.found is None:
        yield Check(f"VM {vm.id}", not seen.elsewhere, f"on {seen.elsewhere}" if seen.elsewhere else "not there yet",
                    "another id", "vm-start")  # fmt: skip
        return
    detail = f"{seen.name}, locked: {seen.lock}" if seen.lock else seen.name
    yield Check(f"VM {vm.id}", seen.name == host and not seen.lock, detail,
                "another id, or wait for the lock's task", "vm-start")  # fmt: skip
    yield from _config(dict(seen.found.next_start), seen)


def _config(config: dict[str, str], seen: Seen) -> Iterator[Check]:
    hidden = [word for word in ("hidden=1", "x-vga=1", "kvm=off") if any(word in value for value in config.values())]
    yield Check("nothing hides the hypervisor", not hidden, ", ".join(hidden) or "no", "the driver asks it for the "
                "peer clique: invoke provision --tags vm", "peer-to-peer")  # fmt: skip
    waiting = sorted({*(seen.found.pending if seen.found else {}), *(seen.found.deleted if seen.found else ())})
    yield Check("nothing waits for a power cycle", not waiting, ", ".join(waiting) or "no",
                "a power cycle, when it suits", "vm-start", advice=True)  # fmt: skip
    yield Check("start time-out", True, f"PVE gives this VM {start_seconds(config)} s to start", advice=True)


def _rights(client: Client, seen: Seen, vm: Vm, name: str) -> Check:
    if client.login.is_root:
        return Check("privileges", True, "root@pam")
    lacking = rights.missing(rights.needed(vm, name, seen.version), client.get("/access/permissions"))
    detail = ", ".join(f"{right.privilege} on {right.path}" for right in lacking) or "all that the plan needs"
    return Check("privileges", not lacking, detail, rights.role(Version(seen.version.major, 0)), "proxmox-api")


def _shell(session: Session, vm: Vm, node: Node, *, running: bool) -> list[Check]:
    if node.ssh is None:
        detail = "the node has no `ssh` in the inventory: its kernel, cards and memory are not looked at"
        return [Check("shell", False, detail, "ssh for the node", "node-prepare", advice=True)]
    try:
        with session.connect_node(vm.node) as connection:
            state = look_at(connection)
    except RunbookError as error:
        return [Check("shell", False, error.message, error.next or "", error.page or "host-unreachable")]
    return checks(state, node, session.loaded.inventory.gpus, vm, running=running)


def _tell(session: Session, node: str, check: Check) -> None:
    mark = "ok" if check.ok else "note" if check.advice else "FAILS"
    text = f"{check.name:<28} {mark:<5}  {check.detail}"
    if not check.ok:
        text += f"\n  cure: {check.fix}" + (f"     page: invoke runbook {check.page}" if check.page else "")
    level = "good" if check.ok else "warning" if check.advice else "error"
    session.report.emit(
        "note", text, host=node, level=level,
        check={"name": check.name, "ok": check.ok, "detail": check.detail, "fix": check.fix, "page": check.page,
               "advice": check.advice},
    )  # fmt: skip
