"""The first cause of a failure, from the unit's journal, the kernel log and systemd's own fields."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from runbooks.diagnose.about import About, read
from runbooks.diagnose.signature import WARNING, Signature
from runbooks.diagnose.signatures import HARMLESS, SIGNATURES

_PREFIX = re.compile(
    r"^\w{3} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)? \S+ [^:\[]+(?:\[\d+\])?: "  # short
    r"|^\d{4}-\d\d-\d\dT[\d:.+\-Z]+ \S+ [^:\[]+(?:\[\d+\])?: "  # short-iso
    r"|^\[[\d\- :.]+(?: (?:DP|TP|EP|PP)\d+)*\] "  # SGLang's own stamp, and dmesg's
    r"|^[\w.-]+ +\| |^\d{4}-\d\d-\d\dT[\d:.]+Z (?:std(?:out|err) F )?"  # a container's
    r"|^\(\w+ pid=\d+\) (?:[A-Z]+ [\d\- :]+ \[[\w.:]+\] )?"  # a worker's of vLLM or Ray
)
_STAMP = re.compile(
    r"\[[^\]]*\d[^\]]*\]|\w{3} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?|\d{4}-\d\d-\d\d[T ][\d:.]+(?:Z|[+-][\d:]+)?"
)
_ATTEMPT = re.compile(r"systemd\[\d+\]: (?:Starting|Started) |: Starting sglang|^Starting sglang", re.MULTILINE)
_HARMLESS = re.compile("|".join(HARMLESS))
_TELLING = re.compile(r"error|exception|fail|killed|abort|fatal|cannot|denied|refused", re.IGNORECASE)
_FAILURE = re.compile(
    r"^\w*(?:Error|Exception)\b|\w(?:Error|Exception): |^Traceback|\b(?:fatal|panic|BUG:|aborted|abort trap)\b|^E: "
    r"|Failed with result|Main process exited|exited with (?:code|status) [1-9]|\berror:|: ERROR\b|\bfailed to\b"
    r"|\bgiving up\b"
    r"|command not found|\bpermission denied\b|\] Error \d+$|\btimed out\b|\bfailed!?$",
    re.IGNORECASE,
)
LONGEST = 240  # characters of a line that are looked at for display
LAYERS = 4
MOST = 5  # causes that are told
OFTEN = 200  # so many lines that differ in their numbers alone and say nothing, and the next ones are not asked
_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True)
class Cause:
    """`certain` is False where only an echo of the failure was found, or nothing at all; `evidence` are the lines
    that say so."""

    name: str
    text: str
    next: str
    page: str
    source: str
    evidence: tuple[str, ...]
    certain: bool = True


@dataclass(frozen=True)
class _Hit:
    signature: Signature
    line: _Line
    match: re.Match[str]


def classify(journal: str, kernel: str = "", unit: Mapping[str, str] | None = None) -> Cause:
    """The cause that stands nearest to the beginning of the crash chain. `unit` are fields of `systemctl show`."""
    return rank(journal, kernel, unit)[0]


def rank(
    journal: str, kernel: str = "", unit: Mapping[str, str] | None = None, about: str = "", *, api: bool = True
) -> tuple[Cause, ...]:
    """Every cause that was found, the first of the chain first; never empty, at most MOST. `about`: more text that
    names the version and the settings, and in which no failure is looked for. `api`: what Proxmox' API says may be in
    it; never where `unit` was asked, since that is a host's own text.

    The last attempt to start is looked at first: an older failure that was mended must not be blamed.
    """
    attempts, known = _attempts(journal), read(f"{about}\n{journal}")
    for text in (attempts[-1], journal) if len(attempts) > 1 else (journal,):
        hits = _hits(text, kernel, known, api=api and not unit)
        if hits:
            # What a death leaves behind it (a killed process, a restart) explains nothing beside its reason.
            grave = [hit for hit in hits if hit.signature.rank < WARNING] or hits
            return tuple(_cause(hit, text) for hit in grave[:MOST])
    return (_unknown(journal, kernel, unit or {}),)


def _attempts(journal: str) -> list[str]:
    starts = [match.start() for match in _ATTEMPT.finditer(journal)]
    if not starts:
        return [journal]
    edges = [0, *starts[1:], len(journal)]
    return [journal[begin:end] for begin, end in pairwise(edges)]


def _hits(journal: str, kernel: str, about: About, *, api: bool) -> list[_Hit]:
    """The first line of each signature that is there, by rank, then by place. One line counts for its gravest only."""
    whole, fits = f"{kernel}\n{journal}", dict[str, bool]()

    def able(signature: Signature) -> bool:
        """Asked only of those whose line was met: it may read the whole text."""
        if signature.name not in fits:
            fits[signature.name] = signature.fits(whole, about)
        return fits[signature.name]

    found: dict[str, _Hit] = {}
    for where, text in (("kernel", kernel), ("journal", journal)):
        lines = list(_lines(text))
        told: dict[str, int] = {}  # by its shape, how often a line said nothing
        for number, line in enumerate(lines, 1):
            shape = _NUMBERS.sub("0", line)
            if told.get(shape, 0) >= OFTEN and number < len(lines):
                continue
            matches = [
                (signature, match)
                for signature in SIGNATURES
                if (signature.where in ("any", where) or (api and signature.where == "api"))
                and (number == len(lines) or not signature.last)
                and (match := signature.search(line))
                and able(signature)
            ]
            if not matches:
                told[shape] = told.get(shape, 0) + 1
            else:
                signature, match = min(matches, key=lambda entry: entry[0].rank)
                found.setdefault(signature.name, _Hit(signature, line, match))
    return sorted(found.values(), key=lambda hit: hit.signature.rank)


class _Line(str):
    """A line without what stands before it; `stamp` is what of that a person needs: when, and which rank."""

    stamp: str = ""

    @property
    def shown(self) -> str:
        return f"{self.stamp}{self[:LONGEST]}"


def _lines(text: str) -> Iterator[_Line]:
    for line in text.splitlines():
        if line.strip() and not _HARMLESS.search(line):
            yield _bare(line)


def _bare(line: str) -> _Line:
    """Without what journals, containers and loggers put before a line; they do it in layers, and the innermost stamp
    is the program's own."""
    stamp = ""
    for _ in range(LAYERS):
        shorter = _PREFIX.sub("", line, count=1)
        if shorter == line:
            break
        if told := _STAMP.match(line):
            stamp = f"{told[0].strip()} "
        line = shorter
    bare = _Line(line.strip()[:4000])
    bare.stamp = stamp
    return bare


def _cause(hit: _Hit, journal: str) -> Cause:
    signature, line = hit.signature, hit.line
    detail = next((group for group in hit.match.groups() if group), hit.match[0])
    evidence = [line.shown]
    if signature.rank >= WARNING:
        evidence += [other for other in telling(journal, 4) if other != line.shown]
    text = signature.text.format(detail[:LONGEST])
    certain = signature.rank < WARNING
    return Cause(signature.name, text, signature.fix, signature.page, signature.source, tuple(evidence), certain)


def _unknown(journal: str, kernel: str, unit: Mapping[str, str]) -> Cause:
    if unit.get("ActiveState") in ("active", "activating") and unit.get("Result", "success") == "success":
        lines = tuple(line.shown for line in list(_lines(journal))[-3:])
        text = "it runs and has not said anything wrong yet: still starting, or slow"
        return Cause("starting", text, "invoke health", "start-slow", "", lines, certain=False)
    quiet = not failures(journal) and not failures(kernel)
    if unit.get("LoadState") == "not-found":
        return _down("not-deployed", "sglang.service is not installed on this host", "invoke deploy --profile final")
    if quiet and unit.get("ActiveState") == "inactive" and unit.get("Result") == "success":
        text = (
            "it does not run, and nothing failed: stopped earlier than these logs reach, or not started since the boot"
        )
        return _down("not-running", text, "systemctl start sglang; and invoke diagnose --since 2d for what was before")
    if not unit and quiet:
        text = "nothing in it speaks of a failure"
        return Cause("nothing", text, "invoke health, then invoke canary", "", "", (), certain=False)
    how = " ".join(f"{field}={unit[field]}" for field in ("Result", "ExecMainCode", "ExecMainStatus") if field in unit)
    text = f"no known signature ({how or 'systemd says nothing'}); these lines tell most"
    fix = "journalctl -u sglang -e, and journalctl -k -e for the kernel's side"
    lines = tuple(failures(journal)[-6:] or telling(journal, 6) or failures(kernel)[-6:])
    return Cause("unknown", text, fix, "server-down", "", lines, certain=False)


def _down(name: str, text: str, fix: str) -> Cause:
    page = "deploy-failed" if name == "not-deployed" else "server-down"
    return Cause(name, text, fix, page, "systemctl show sglang", (), certain=name == "not-deployed")


def failures(text: str) -> list[str]:
    """Lines that say that something failed, whatever it was."""
    return [line.shown for line in _lines(text) if _FAILURE.search(line)]


def telling(journal: str, most: int) -> list[str]:
    """The last lines that speak of an error; where there are none, the last lines."""
    lines = list(_lines(journal))
    found = [line.shown for line in lines if _TELLING.search(line)]
    return (found or [line.shown for line in lines])[-most:]
