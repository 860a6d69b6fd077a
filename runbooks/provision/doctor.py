"""`invoke doctor`: every check of a host, of the Proxmox node below it, and of the account at its API. Changes nothing.

What is checked inside a host are the steps of provisioning, looked at and not taken: there is no second list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from runbooks.engine.errors import NoAnswer, RunbookError, UsageError
from runbooks.engine.facts import ask_facts
from runbooks.engine.look import look as ask
from runbooks.engine.look import waited_for
from runbooks.engine.run import Options, planned
from runbooks.engine.step import Answers, Change, Question, Stage, Step, Verdict
from runbooks.engine.transport import Connection
from runbooks.inventory.shape import Node, Vm
from runbooks.provision import vm as machines
from runbooks.provision.below import Below, Build
from runbooks.provision.node import look_at
from runbooks.provision.run import build
from runbooks.provision.stages import TAGS
from runbooks.proxmox import rights
from runbooks.proxmox.client import Client
from runbooks.proxmox.config import start_seconds
from runbooks.proxmox.preflight import Check, checks
from runbooks.proxmox.seen import Seen, look
from runbooks.session import Session

WIDEST = 48  # letters of a check's name that the others make room for


@dataclass
class _Below:
    """What was found below a host that is a VM; `seen` is None where the API did not tell."""

    results: list[Check] = field(default_factory=list)
    seen: Seen | None = None


def doctor(session: Session, *, node_only: bool = False) -> int:
    """Exit code 1 when a check fails; advice alone is no failure."""
    vms = {host: vm for host in session.hosts if (vm := session.loaded.inventory.hosts[host].vm) is not None}
    if node_only and not vms:
        raise UsageError("none of these hosts has a `vm`, so no node is known", next="vm and nodes in the inventory")
    found = {host: _below(session, host, vm) for host, vm in vms.items()}
    failed = [_tell(session, vms[host].node, f"the node of {host}", one.results) for host, one in found.items()]
    if not node_only:
        steps = Below(session, Options(check=True))

        def inside(connection: Connection) -> list[Check]:
            host = connection.name
            stages: Build = partial(build, session, host)

            def waiting(late: Sequence[Question]) -> None:
                session.report.note(f"{waited_for(late)}; all else is answered", host=host)

            if host not in vms:
                return host_checks(connection, stages, waiting)
            seen = found[host].seen
            if seen is not None and not seen.running:
                text, fix = (
                    ("does not run", "vm.start") if seen.found is not None else ("is not there yet", "provision")
                )
                return [Check("VM", False, f"it {text}: nothing inside it can be looked at", f"invoke {fix}",
                              "vm-start")]  # fmt: skip
            granted = seen is not None and machines.grants(seen)
            return host_checks(connection, steps.with_guest(stages, vms[host], granted=granted), waiting)

        for outcome in session.each(inside):
            results = outcome.value if outcome.value is not None else [_unreached(outcome.error)]
            failed.append(_tell(session, outcome.host, outcome.host, results))
    return int(any(failed))


def host_checks(
    connection: Connection, build: Build, waiting: Callable[[Sequence[Question]], None] = lambda _late: None
) -> list[Check]:
    """The steps of provisioning as they are just now: two exchanges. Raises RunbookError where nobody answers.

    `waiting` is told of questions that take longer than all the rest.
    """
    stages = build(ask_facts(connection))
    questions = [q for stage in stages for step in stage.steps for q in step.questions()]
    answers = ask(connection, questions, waiting=waiting)
    found: list[Check] = []
    first = ""  # the first stage that would change something: what fails below it may be its consequence
    for stage in stages:
        for step in stage.steps:
            check, changes = _check(connection.name, stage, step, answers, first)
            first = first or (stage.name if changes else "")
            found.append(check)
    return found


def _check(host: str, stage: Stage, step: Step, answers: Answers, first: str) -> tuple[Check, bool]:
    """And would the step change something?"""
    name = f"{stage.name}: {step.id}"
    tag = next((tag for tag in TAGS if tag in stage.tags), "")
    mend = f"invoke provision --hosts {host}" + (f" --tags {tag}" if tag else "")
    try:
        plan = planned(step, answers)
    except RunbookError as error:
        detail = "; ".join([error.message, *error.details])
        return Check(name, False, detail, error.next or "invoke diagnose", error.page or "", stage.optional), False
    if plan is None:
        return Check(name, True, "as it should be"), False
    if isinstance(plan, Change):
        detail = "; ".join(_found(diff.line) for diff in plan.diff) or "not as it should be"
        return Check(name, False, detail, mend, plan.page or "", stage.optional), True
    return _judged(
        name, plan, f"first stage '{first}': {mend.partition(' --tags')[0]}" if first else mend, stage
    ), False


def _found(line: str) -> str:
    """A line of a preview as what is there now: `new, mode 0644, root:root` is a file that is missing."""
    made, _, how = line.partition(", ")
    return line if made != "new" else f"is missing (wanted: {how})" if how else "is missing"


def _judged(name: str, verdict: Verdict, mend: str, stage: Stage) -> Check:
    if verdict.ok:
        return Check(name, True, verdict.line)
    detail = "; ".join([verdict.line, *verdict.details[:3]])
    fix = mend if mend.startswith("first ") else verdict.next or mend
    return Check(name, False, detail, fix, verdict.page or "", stage.optional)


def _unreached(error: RunbookError | None) -> Check:
    assert error is not None
    detail = "; ".join([error.message, *error.details[:3]])
    page = error.page or ("gpu-lost" if isinstance(error, NoAnswer) else "host-unreachable")
    return Check("host", False, detail, error.next or "invoke status", page)


def _below(session: Session, host: str, vm: Vm) -> _Below:
    node = session.loaded.inventory.nodes[vm.node]
    found = _Below()
    with machines.client(session, host, node) as client:
        found.results += _api(session, client, host, vm, node, found)
    found.results += _shell(session, vm, node, running=found.seen is not None and found.seen.running)
    return found


def _api(session: Session, client: Client, host: str, vm: Vm, node: Node, found: _Below) -> list[Check]:
    name = machines.node_name(session, vm.node)
    try:
        found.seen = look(client, vm, node, name)
        gpus = session.loaded.inventory.gpus.count
        return [*_what_is_seen(found.seen, host, vm, gpus), _rights(client, found.seen, vm, name)]
    except RunbookError as error:
        fix = error.next or next((line for line in error.details if line.startswith("cure: ")), "")
        detail = "; ".join([error.message, *error.details[:3]])
        return [Check("API", False, detail, fix.removeprefix("cure: "), error.page or "proxmox-api")]


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
    needed = rights.needed(vm, name, seen.version, mapping_is_new=seen.mapping is None)
    lacking = rights.missing(needed, client.get("/access/permissions"))
    detail = ", ".join(f"{right.privilege} on {right.path}" for right in lacking) or "all that the plan needs"
    return Check("privileges", not lacking, detail, rights.role(seen.version, client.login.user), "proxmox-api")


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


def _tell(session: Session, host: str, what: str, results: Sequence[Check]) -> bool:
    """Each check on its line, then the count. True when one fails."""
    width = max([28, *(len(check.name) for check in results if len(check.name) <= WIDEST)])
    for check in results:
        mark = "ok" if check.ok else "note" if check.advice else "FAILS"
        text = f"{check.name:<{width}} {mark:<5}  {check.detail}"
        if not check.ok:
            text += f"\n  cure: {check.fix}" + (f"     page: invoke runbook {check.page}" if check.page else "")
        level = "good" if check.ok else "warning" if check.advice else "error"
        session.report.emit(
            "note", text, host=host, level=level,
            check={"name": check.name, "ok": check.ok, "detail": check.detail, "fix": check.fix, "page": check.page,
                   "advice": check.advice},
        )  # fmt: skip
    bad = [check for check in results if not check.ok and not check.advice]
    text = f"{what}: {len(results) - len(bad)} of {len(results)} checks pass"
    session.report.emit("result", text, host=host, state="failed" if bad else "ok")
    return bool(bad)
