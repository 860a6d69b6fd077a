"""Inside a VM that has just been met: its cards found room, all are there; agent and NCCL's topology."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runbooks import paths
from runbooks.engine.facts import Facts
from runbooks.engine.step import Answers, Question, Stage, Step, Verdict, quote, shell
from runbooks.inventory.shape import Gpus, Node
from runbooks.provision.base import CloudInitDone
from runbooks.provision.granted import Peers
from runbooks.proxmox import guestlog
from runbooks.steps.files import File
from runbooks.steps.packages import Packages
from runbooks.steps.services import Unit

TAG = "vm"
TOPOLOGY = f"{paths.ROOT}/nccl-topology.xml"


def stages(facts: Facts, node: Node, gpus: Gpus, topology: str | None, peers: Peers) -> list[Stage]:
    """The kernel's word first: a card without room cannot be helped by any driver."""
    tags = frozenset({TAG})
    looked: list[Step] = [CardsHaveRoom(gpus=gpus)]
    if not facts.is_container:  # a container sees its machine's PCI bus
        looked.append(CardsPresent(node=node, gpus=gpus))
    # `--tags vm` alone meets a VM whose cloud-init is at apt itself
    agent: list[Step] = [CloudInitDone(), Packages(names=("qemu-guest-agent",))]
    if not facts.is_container:
        agent.append(Unit(name="qemu-guest-agent.service", active=True))
    if topology is not None:
        agent += [File(path=TOPOLOGY, content=topology), _nccl_conf()]
    agent.append(peers)
    return [Stage("vm cards", tuple(looked), tags), Stage("vm agent", tuple(agent), tags)]


def _nccl_conf() -> File:
    """The machine's own settings file of NCCL; an environment variable of a profile still wins."""
    why = "# runbooks: the node's real topology, which a VM does not show.\n"
    return File(path="/etc/nccl.conf", content=f"{why}NCCL_TOPO_FILE={TOPOLOGY}\n")


@dataclass(frozen=True, kw_only=True)
class CardsHaveRoom:
    """Every card's memory found room in the firmware's window; the driver says so only in riddles."""

    gpus: Gpus
    id: str = "PCI window"

    @property
    def _question(self) -> Question:
        pattern = quote(guestlog.TELLING)
        return shell(f"journalctl -k -b -o cat --no-pager 2>/dev/null | grep -E {pattern} | tail -n 400")

    def questions(self) -> tuple[Question, ...]:
        return (self._question,)

    def plan(self, answers: Answers) -> Verdict:
        log = guestlog.read(str(answers[self._question].get("out") or ""))
        if log.ok:
            room = f"{log.window_gib} GiB from 0x{log.window[0]:x}" if log.window else "nothing amiss in the kernel log"
            return Verdict(ok=True, line=room)
        count = len(log.homeless)
        line = f"{count} of {self.gpus.count} cards found no room in the VM's PCI window" if count else log.driver[0]
        details = tuple(guestlog.advice(log, self.gpus.count))
        return Verdict(ok=False, line=line, details=details, next="invoke doctor --node", page="guest-window")


@dataclass(frozen=True, kw_only=True)
class CardsPresent:
    """As many cards on the guest's bus as in the inventory, alive: by configuration space, not by cached names."""

    node: Node
    gpus: Gpus
    id: str = "cards on the bus"

    @property
    def _question(self) -> Question:
        return shell("""\
for d in /sys/bus/pci/devices/*; do
  v=$(cat "$d/vendor") i=$(cat "$d/device")
  now=$(od -An -tx2 -N2 "$d/config" | tr -d ' ')
  echo "${d##*/} ${v#0x}:${i#0x} $now $(cat "$d/numa_node") $(cat "$d/current_link_width" 2>/dev/null)"
done""")

    def questions(self) -> tuple[Question, ...]:
        return (self._question,)

    def plan(self, answers: Answers) -> Verdict:
        rows = [line.split() for line in str(answers[self._question].get("out") or "").splitlines()]
        cards = [row for row in rows if len(row) > 2 and row[1] in self.node.gpu_ids]
        dead = [row[0] for row in cards if row[2] != "10de"]
        details = tuple(" ".join(row) for row in cards)
        if dead:
            line = f"{', '.join(dead)}: nobody answers there any more"
            return Verdict(ok=False, line=line, details=details, next="invoke doctor --node", page="gpu-reset")
        if len(cards) != self.gpus.count:
            line = f"{len(cards)} cards of {self.gpus.count} are on the VM's bus"
            return Verdict(ok=False, line=line, details=details, next="invoke doctor --node", page="gpu-lost")
        return Verdict(ok=True, line=f"{len(cards)} cards{_noted(cards)}", details=details)


def _noted(cards: Sequence[Sequence[str]]) -> str:
    """NUMA nodes and link widths as the guest shows them: cosmetic both, for PVE hangs all cards on one flat bus."""
    numa = sorted({row[3] for row in cards if len(row) > 3})
    widths = sorted({row[4] for row in cards if len(row) > 4})
    flat = " (flat: NCCL takes the node's real topology from a file)" if numa == ["-1"] else ""
    said = f", NUMA node {', '.join(numa)}{flat}" if numa else ""
    return said + (f", link x{', x'.join(widths)}" if widths else "")
