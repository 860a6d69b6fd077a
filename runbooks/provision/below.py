"""What is below a host that is a VM: its node, prepared once for all hosts on it, and the VM itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from runbooks.engine.errors import NoAnswer, RunbookError, Unreachable
from runbooks.engine.facts import Facts
from runbooks.engine.run import HostResult, Options, converge
from runbooks.engine.step import Stage
from runbooks.engine.transport import Connection
from runbooks.inventory.shape import Vm
from runbooks.provision import guest, node, vm
from runbooks.provision.granted import Peers
from runbooks.proxmox import topology
from runbooks.session import Session

TAGS = (node.TAG, vm.TAG)
Build = Callable[[Facts], Sequence[Stage]]


class Below:
    """Converges a host with what is below it. Threads of several hosts share one."""

    def __init__(self, session: Session, options: Options) -> None:
        self._session, self._options = session, options
        self._inventory = session.loaded.inventory
        self._locks = {name: threading.Lock() for name in self._inventory.nodes}
        self._prepared: dict[str, HostResult] = {}

    def converge(self, connection: Connection, build: Build) -> HostResult:
        """The node, the VM, then everything inside. Raises RunbookError for what is below the host."""
        machine = self._inventory.hosts[connection.name].vm
        if machine is None:
            return converge(connection, build, options=self._options, report=self._session.report)
        result = HostResult(host=connection.name)
        if self._wants(node.TAG):
            self._prepare(machine.node, result)
        if self._wants(vm.TAG):
            outcome = vm.ensure(
                self._session,
                connection,
                machine,
                check=self._options.check,
                diff=self._options.diff,
                node_changes=self._node_changes(machine.node),
            )
            result.changed += outcome.changed
            result.would_change += outcome.would_change
            if outcome.absent:
                return result
            build = self.with_guest(build, machine, granted=outcome.granted)
        inside = converge(connection, build, options=self._options, report=self._session.report)
        inside.changed += result.changed
        inside.would_change += result.would_change
        return inside

    def _wants(self, tag: str) -> bool:
        tags = self._options.tags
        return tag not in self._options.skip_tags and (not tags or tag in tags)

    def _node_changes(self, name: str) -> bool:
        return name in self._prepared and bool(self._prepared[name].would_change)

    def _prepare(self, name: str, result: HostResult) -> None:
        """The first host of a node does it; the others wait for it, and fail as it failed."""
        details = self._inventory.nodes[name]
        if details.ssh is None:
            return
        with self._locks[name]:
            first = name not in self._prepared
            if first:
                options = replace(self._options, tags=frozenset(), skip_tags=frozenset())
                with self._session.connect_node(name) as connection:
                    self._prepared[name] = converge(
                        connection,
                        lambda _facts: node.stages(details, self._inventory.gpus),
                        options=options,
                        report=self._session.report,
                    )
        done = self._prepared[name]
        if done.failed:
            raise done.failed[0] if first else RunbookError(f"its node {name} failed: {done.failed[0].message}")
        if first:
            result.changed += done.changed
            result.would_change += done.would_change

    def with_guest(self, build: Build, machine: Vm, *, granted: bool) -> Build:
        """The stages inside a VM stand behind the base ones: those wait for cloud-init first.

        `granted`: its QEMU grants peer-to-peer.
        """
        found = self._topology(machine)
        peers = Peers(asked=machine.p2p != "off", granted=granted)

        def stages(facts: Facts) -> list[Stage]:
            own = list(build(facts))
            extra = guest.stages(facts, self._inventory.nodes[machine.node], self._inventory.gpus, found, peers)
            position = next((n for n, stage in enumerate(own) if "base" not in stage.tags), len(own))
            return [*own[:position], *extra, *own[position:]]

        return stages

    def _topology(self, machine: Vm) -> str | None:
        """None where the node has no shell here, or QEMU does not say which card is which."""
        if self._inventory.nodes[machine.node].ssh is None:
            return None
        try:
            with self._session.connect_node(machine.node) as connection:
                state = node.look_at(connection)
                said = connection.ask(topology.script(machine), deadline=40).out
        except (Unreachable, NoAnswer):
            return None
        cards = topology.cards(said, state)
        return topology.xml(cards, machine, state.vendor) if cards else None
