"""Checks: they change nothing, and pass or fail."""

from __future__ import annotations

from dataclasses import dataclass

from runbooks.engine.facts import Facts
from runbooks.engine.step import Answers, Kind, Question, State, Verdict, quote, shell
from runbooks.inventory.shape import Gpus as GpusWanted

SUPPORTED = {"debian": ("12", "13"), "ubuntu": ("22.04", "24.04", "26.04")}


@dataclass(frozen=True, kw_only=True)
class OperatingSystem:
    """One of the systems that the packages' names are known for."""

    facts: Facts
    id: str = "operating system"

    def questions(self) -> tuple[Question, ...]:
        return ()

    def plan(self, answers: Answers) -> Verdict:
        facts = self.facts
        name = f"{facts.os_id} {facts.os_version}"
        if facts.os_version not in SUPPORTED.get(facts.os_id, ()):
            known = "; ".join(f"{system} {', '.join(versions)}" for system, versions in SUPPORTED.items())
            return Verdict(ok=False, line=f"this is {name}; known are: {known}")
        if facts.arch != "x86_64":
            return Verdict(ok=False, line=f"this is {facts.arch}; NVIDIA's and SGLang's packages here are for x86_64")
        return Verdict(ok=True, line=f"{name}, kernel {facts.kernel}")


@dataclass(frozen=True, kw_only=True)
class DiskFree:
    """Room for `needed` bytes at a path, or at the nearest folder above it that exists."""

    path: str
    needed: float
    what: str

    @property
    def id(self) -> str:
        return f"disk space for {self.what}"

    def questions(self) -> tuple[Question, ...]:
        return (free_space(self.path),)

    def plan(self, answers: Answers) -> Verdict:
        free, mount = read_free_space(answers[free_space(self.path)])
        line = f"{human(self.needed)} for {self.what}, {human(free)} free on {mount}"
        mend = f"free some room on {mount} of the host"
        return Verdict(ok=free >= self.needed, line=line, next=mend, page="disk-full")


def free_space(path: str) -> Question:
    """One question a path: df on a dead mount hangs for ever, and must not take the others along."""
    return shell(f'p={quote(path)}\nwhile [ ! -e "$p" ]; do p=$(dirname -- "$p"); done\ndf -Pk -- "$p" | tail -n 1')


def read_free_space(state: State) -> tuple[int, str]:
    """Free bytes, and where the file system is mounted."""
    fields = str(state.get("out") or "").split()
    return (int(fields[3]) * 1024, " ".join(fields[5:])) if len(fields) > 5 and fields[3].isdigit() else (0, "?")


def human(size: float) -> str:
    """Bytes in powers of ten, as disks and the hub count them: 441.0 GB, 20 MB."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


SMI_FIELDS = ("index", "name", "memory.total", "driver_version")


def _smi_script(keys: object) -> str:
    query = f"nvidia-smi --query-gpu={','.join(SMI_FIELDS)} --format=csv,noheader,nounits"
    return f"command -v nvidia-smi >/dev/null || {{ echo absent; exit 0; }}\n{query} 2>&1"


def _smi_parse(output: str, keys: object) -> dict[str, State]:
    return {"gpus": {"out": output.strip()}}


SMI = Question(Kind("nvidia-smi", _smi_script, _smi_parse, 15.0, together=False), "gpus")
"""All cards, one line each. A card off the bus can hang nvidia-smi for ever: hence a deadline of its own."""


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """As many cards as the inventory says, with that name and memory, and all answering."""

    wanted: GpusWanted
    driver: str
    id: str = "GPUs"
    accepts_silence: bool = True

    def questions(self) -> tuple[Question, ...]:
        return (SMI,)

    def plan(self, answers: Answers) -> Verdict:
        if answers[SMI].get("no answer"):
            return self._no(
                "nvidia-smi does not answer: a card or its GSP firmware hangs", "journalctl -k | grep -i xid"
            )
        said = str(answers[SMI].get("out") or "").splitlines()
        if said == ["absent"]:
            return self._no("nvidia-smi is not installed", "invoke provision --tags driver")
        rows = [[cell.strip() for cell in line.split(",")] for line in said]
        cards = [row for row in rows if len(row) == len(SMI_FIELDS) and row[0].isdigit()]
        if not cards and any("version mismatch" in line for line in said):
            text = "the driver's library is not of the version of the module that is loaded"
            return self._no(text, "invoke provision --tags driver (reboots)", said, page="driver-mismatch")
        if not cards:
            return self._no("nvidia-smi shows no card", "journalctl -k | grep -iE 'nvrm|nvidia'", said)
        wrong = [self._misfit(row) for row in cards]
        if len(cards) != self.wanted.count or any(wrong):
            line = f"{len(cards)} of {self.wanted.count} cards"
            return self._no(line, "lspci -d 10de:", [text for text in wrong if text] + [x for x in said if "rror" in x])
        line = f"{len(cards)} x {self.wanted.name} of {self.wanted.memory_mib} MiB, driver and library {self.driver}"
        return Verdict(ok=True, line=line)

    def _misfit(self, row: list[str]) -> str:
        index, name, memory, driver = row
        texts = []
        if name != self.wanted.name:
            texts.append(f"is a {name}, not a {self.wanted.name}")
        if memory != str(self.wanted.memory_mib):
            texts.append(f"has {memory} MiB, not {self.wanted.memory_mib}")
        if driver != self.driver:
            texts.append(f"runs under driver {driver}, not {self.driver}")
        return f"card {index} {', '.join(texts)}" if texts else ""

    def _no(self, line: str, next: str, details: list[str] | None = None, page: str = "gpu-lost") -> Verdict:
        return Verdict(ok=False, line=line, details=tuple(details or ()), next=next, page=page)
