"""The cards once their driver runs: state, link, power, what they may do to each other, and what the kernel says."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from runbooks.engine.step import Answers, Question, Verdict, quote, shell
from runbooks.health.gpus import HARMLESS_XIDS
from runbooks.inventory.shape import Gpus

FIELDS = (
    "index", "compute_cap", "persistence_mode", "ecc.mode.current", "mig.mode.current",
    "ecc.errors.uncorrected.volatile.total", "pcie.link.width.current", "pcie.link.width.max",
    "power.limit", "power.default_limit",
)  # fmt: skip

_STATE = shell(f"nvidia-smi --query-gpu={','.join(FIELDS)} --format=csv,noheader,nounits 2>&1", deadline=15)
_PEERS = shell("nvidia-smi topo -p2p r 2>&1", deadline=15)
_XIDS = shell("journalctl -k -b -q --no-pager -o cat -g 'NVRM: Xid' 2>/dev/null | tail -n 200")
_XID = re.compile(r"Xid \(([^)]*)\): (\d+)(.*)")

LETTERS = {
    "OK": "granted; in a VM that is the driver's word, and only a checked transfer proves it (NVIDIA/nccl #2335)",
    "NS": "not supported here; as in every VM without a clique: copies go through main memory",
    "CNS": "chipset not supported: the VM's emulated chipset is not in the driver's table (club-3090 PR #884)",
    "GNS": "the card or its driver does not support it",
    "TNS": "topology not supported: the cards hang below different root complexes",
    "DR": "disabled by a setting of the driver",
    "U": "the driver does not know",
}
"""The letters of `nvidia-smi topo -p2p`, from the worst to ask about to the best."""


@dataclass(frozen=True, kw_only=True)
class CardState:
    """Whole cards of the right kind: no MIG slices, memory checked by ECC on all or none, no errors, full link."""

    wanted: Gpus
    id: str = "state of the GPUs"
    accepts_silence: bool = True

    def questions(self) -> tuple[Question, ...]:
        return (_STATE,)

    def plan(self, answers: Answers) -> Verdict:
        rows = [
            dict(zip(FIELDS, (cell.strip() for cell in line.split(",")), strict=False))
            for line in str(answers[_STATE].get("out") or "").splitlines()
            if line.count(",") == len(FIELDS) - 1
        ]
        wrong = [text for row in rows if (text := self._wrong(row))]
        if not rows:
            return self._no("nvidia-smi tells no card's state", [])
        if wrong:
            return self._no("cards are not in the state that the model needs", wrong)
        ecc = sorted({row["ecc.mode.current"] for row in rows})
        if len(ecc) > 1:
            return self._no("ECC is on for some cards and off for others: their memory differs", ecc)
        notes = [text for row in rows if (text := _note(row))]
        line = f"MIG off, ECC {ecc[0].lower()}, no memory errors, persistence {_persistence(rows)}"
        return Verdict(ok=True, line="; ".join([line, *(notes or [_full(rows)])]))

    def _wrong(self, row: dict[str, str]) -> str:
        texts = []
        if row["compute_cap"] != self.wanted.arch:
            texts.append(f"has compute capability {row['compute_cap']}, not {self.wanted.arch}")
        if row["mig.mode.current"] == "Enabled":
            texts.append("is cut into MIG slices: nvidia-smi -mig 0")
        if row["ecc.errors.uncorrected.volatile.total"] not in ("0", "[N/A]", "N/A"):
            texts.append(
                f"has {row['ecc.errors.uncorrected.volatile.total']} uncorrected memory errors since its reset"
            )
        return f"card {row['index']} {', '.join(texts)}" if texts else ""

    def _no(self, line: str, details: list[str]) -> Verdict:
        return Verdict(ok=False, line=line, details=tuple(details), next="nvidia-smi -q", page="gpu-lost")


def _persistence(rows: list[dict[str, str]]) -> str:
    modes = {row["persistence_mode"] for row in rows}
    return "on" if modes == {"Enabled"} else "off" if modes == {"Disabled"} else "on for some cards only"


def _full(rows: list[dict[str, str]]) -> str:
    widths = "/".join(sorted({f"x{row['pcie.link.width.current']}" for row in rows}))
    limits = sorted({limit for row in rows if (limit := _number(row["power.limit"])) is not None})
    power = f", full power ({'/'.join(f'{limit:.0f}' for limit in limits)} W)" if limits else ""
    return f"all lanes ({widths}){power}"


def _note(row: dict[str, str]) -> str:
    """Slower than it could be, and no reason to stop: the width stays at idle, only the generation drops."""
    texts = []
    if row["pcie.link.width.current"] != row["pcie.link.width.max"]:
        texts.append(f"x{row['pcie.link.width.current']} of x{row['pcie.link.width.max']} lanes")
    limit, default = (_number(row[name]) for name in ("power.limit", "power.default_limit"))
    if limit is not None and default is not None and limit < default:
        texts.append(f"limited to {limit:.0f} of {default:.0f} W")
    return f"card {row['index']}: {', '.join(texts)}" if texts else ""


@dataclass(frozen=True, kw_only=True)
class ModuleOptions:
    """The options of our modprobe files, as the loaded modules have them: one that was loaded before keeps its own.

    A report: the next reboot brings them, and none of them is worth one by itself.
    """

    lines: tuple[str, ...]  # options nvidia_uvm uvm_disable_hmm=1
    id: str = "options of the modules"

    @property
    def _wanted(self) -> list[tuple[str, str, str]]:
        """Module, parameter, value."""
        found = []
        for module, *options in (line.split()[1:] for line in self.lines if line.startswith("options ")):
            pairs = (option.partition("=") for option in options)
            found += [(module.replace("-", "_"), name, value) for name, equals, value in pairs if equals]
        return found

    @property
    def _question(self) -> Question:
        names = " ".join(quote(f"{module}/parameters/{name}") for module, name, _ in self._wanted)
        return shell(f'cd /sys/module && for f in {names}; do cat -- "$f" 2>/dev/null || echo -; done')

    def questions(self) -> tuple[Question, ...]:
        return (self._question,) if self._wanted else ()

    def plan(self, answers: Answers) -> Verdict:
        if not self._wanted:
            return Verdict(ok=True, line="none that can be read back")
        runs = str(answers[self._question].get("out") or "").split("\n")
        parts = []
        for (module, name, value), now in zip(self._wanted, runs, strict=False):
            same = _TRUE.get(now, now) == _TRUE.get(value, value)
            later = "cannot be read" if now in ("", "-") else f"is {now} as it runs: {value} from the next reboot on"
            parts.append(f"{module}: {name} is {now}" if same else f"{module}: {name} {later}")
        return Verdict(ok=True, line="; ".join(parts) or "not read")


_TRUE = {"Y": "1", "N": "0", "y": "1", "n": "0"}


@dataclass(frozen=True, kw_only=True)
class Peers:
    """What nvidia-smi says of peer-to-peer, in words. A report: no letter is a fault, and none is a proof."""

    id: str = "peer-to-peer"
    accepts_silence: bool = True

    def questions(self) -> tuple[Question, ...]:
        return (_PEERS,)

    def plan(self, answers: Answers) -> Verdict:
        letters = read_peers(str(answers[_PEERS].get("out") or ""))
        if not letters:
            return Verdict(ok=True, line="one card, or nvidia-smi does not tell")
        parts = [f"{letter} for {letters[letter]} pairs: {LETTERS[letter]}" for letter in LETTERS if letters[letter]]
        return Verdict(ok=True, line="; ".join(parts))


def read_peers(text: str) -> Counter[str]:
    """How often each letter stands in the matrix of `nvidia-smi topo -p2p r`; each pair once."""
    rows = [re.sub(r"\x1b\[[0-9;]*m", "", line).split() for line in text.splitlines()]
    matrix = [row[1:] for row in rows if row and re.fullmatch(r"GPU\d+", row[0]) and not set(row[1:]) <= _names(rows)]
    return Counter(cell for number, row in enumerate(matrix) for cell in row[:number] if cell in LETTERS)


def _names(rows: list[list[str]]) -> set[str]:
    return {f"GPU{number}" for number in range(len(rows))}


@dataclass(frozen=True, kw_only=True)
class Xids:
    """The kernel has not reported a fault of a card since it booted."""

    id: str = "faults of the GPUs (Xid)"

    def questions(self) -> tuple[Question, ...]:
        return (_XIDS,)

    def plan(self, answers: Answers) -> Verdict:
        found = _XID.findall(str(answers[_XIDS].get("out") or ""))
        serious = [entry for entry in found if entry[1] not in HARMLESS_XIDS]
        if serious:
            lines = tuple(f"{where}: Xid {number}{text}"[:160] for where, number, text in serious[-4:])
            return Verdict(
                ok=False,
                line=f"the kernel reported {len(serious)} faults of cards since it booted",
                details=lines,
                next="journalctl -k -b | grep -i xid",
                page="gpu-lost",
            )
        return Verdict(
            ok=True, line=f"{len(found)} of single processes, none of a card" if found else "none since boot"
        )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
