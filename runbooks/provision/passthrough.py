"""Steps that only a node with passed-through cards has: a reboot when its kernel needs it, cards awake, cards fit."""

from __future__ import annotations

from dataclasses import dataclass

from runbooks.engine.step import Answers, Change, Diff, Question, Verdict, quote, shell
from runbooks.inventory.shape import Gpus, Node
from runbooks.proxmox import look
from runbooks.proxmox.look import PCI
from runbooks.proxmox.preflight import Check, checks
from runbooks.steps.boot import BootOptions
from runbooks.steps.files import File

LISTS = "/etc/modules /etc/modules-load.d/*.conf"
_RUNNING = shell("""\
for f in /run/qemu-server/*.pid; do [ ! -e "$f" ] || echo "VM $(basename "$f" .pid)"; done
for d in /sys/fs/cgroup/lxc/[0-9]*; do [ ! -d "$d" ] || echo "container ${d##*/}"; done""")


@dataclass(frozen=True, kw_only=True)
class NotListed:
    """Modules that must not be loaded at boot: gone ones leave systemd-modules-load waiting, drivers take the cards."""

    names: tuple[str, ...]
    id: str = "modules not loaded at boot"

    @property
    def _pattern(self) -> str:
        return rf"^[[:space:]]*({'|'.join(self.names)})([[:space:]]|$)"

    @property
    def _question(self) -> Question:
        return shell(f"grep -sHE {quote(self._pattern)} {LISTS}")

    def questions(self) -> tuple[Question, ...]:
        return (self._question,)

    def plan(self, answers: Answers) -> Change | None:
        found = str(answers[self._question].get("out") or "").splitlines()
        if not found:
            return None
        comment = quote(f"s/{self._pattern}/# runbooks: &/")  # modules.conf is a link to /etc/modules, and stays one
        script = f"sed -i --follow-symlinks -E {comment} $(grep -slE {quote(self._pattern)} {LISTS})"
        return Change(script=script, diff=tuple(Diff(f"out: {line}") for line in found), page="node-prepare")


@dataclass(frozen=True, kw_only=True)
class RebootForCards:
    """The running kernel has the words, and vfio-pci has the cards; anything else takes a reboot of the node.

    Never with guests running on it: they would be pulled down with it.
    """

    options: BootOptions
    node: Node
    id: str = "running kernel"

    def questions(self) -> tuple[Question, ...]:
        return (*self.options.questions(), look.QUESTION, _RUNNING)

    def plan(self, answers: Answers) -> Change | Verdict | None:
        state = look.read(str(answers[look.QUESTION].get("out") or ""))
        missing = [word for word in self.options.wanted(answers) if word not in state.cmdline.split()]
        slots = {card.slot for card in state.cards(self.node.gpu_ids)}
        loose = [one for one in state.devices if one.slot in slots and one.driver != "vfio-pci"]
        why = [f"the running kernel lacks {' '.join(missing)}"] if missing else []
        why += [f"{one.address} has {one.driver or 'no driver'}, not vfio-pci" for one in loose]
        if not why:
            return None
        guests = str(answers[_RUNNING].get("out") or "").splitlines()
        if guests:
            return Verdict(
                ok=False,
                line=f"the node needs a reboot, and {len(guests)} guests run on it",
                details=(*why, *guests),
                next="shut them down, then the same command again",
                page="node-prepare",
            )
        return Change(script="", diff=tuple(map(Diff, why)), reboot=True, limit=1800, page="node-prepare")


def awake_rule() -> File:
    """From the next boot on."""
    rule = 'ACTION=="add", SUBSYSTEM=="pci", ATTR{vendor}=="0x10de", ATTR{power/control}="on", ATTR{d3cold_allowed}="0"'
    why = "# A card in D3cold may not wake up: it then needs a cold boot (kata-containers #11708)."
    return File(path="/etc/udev/rules.d/80-runbooks-cards.rules", content=f"{why}\n{rule}\n")


@dataclass(frozen=True, kw_only=True)
class Awake:
    """No card may fall into its deepest sleep, now."""

    id: str = "cards kept awake"

    @property
    def _question(self) -> Question:
        return shell(f"""\
for d in {PCI}/*; do
  [ "$(cat "$d/vendor" 2>/dev/null)" = 0x10de ] || continue
  case "$(cat "$d/power/control" 2>/dev/null) $(cat "$d/d3cold_allowed" 2>/dev/null)" in 'on 0'|'on '|' 0'|' ') ;;
  *) echo "$d" ;; esac
done""")

    def questions(self) -> tuple[Question, ...]:
        return (self._question,)

    def plan(self, answers: Answers) -> Change | None:
        sleepy = str(answers[self._question].get("out") or "").splitlines()
        if not sleepy:
            return None
        lines = [
            f"{{ [ ! -e {d}/d3cold_allowed ] || echo 0 >{d}/d3cold_allowed; }}\necho on >{d}/power/control"
            for d in map(quote, sleepy)
        ]
        return Change(script="\n".join(lines), diff=tuple(Diff(name.rpartition("/")[2]) for name in sleepy))


@dataclass(frozen=True, kw_only=True)
class CardsReady:
    """Every check of the node's hardware that needs no VM, with the first that fails as the headline."""

    node: Node
    gpus: Gpus
    id: str = "cards fit to be handed over"

    def questions(self) -> tuple[Question, ...]:
        return (look.QUESTION,)

    def plan(self, answers: Answers) -> Verdict:
        state = look.read(str(answers[look.QUESTION].get("out") or ""))
        bad = [one for one in checks(state, self.node, self.gpus) if not one.ok and not one.advice]
        if not bad:
            return Verdict(ok=True, line=f"{self.gpus.count} cards, alive, bound to vfio-pci, in groups of their own")
        first, *rest = bad
        return Verdict(
            ok=False,
            line=f"{first.name}: {first.detail}",
            details=(f"cure: {first.fix}", *map(_line, rest)),
            next="invoke doctor --node",
            page=first.page or None,
        )


def _line(check: Check) -> str:
    return f"{check.name}: {check.detail} ({check.fix})"
