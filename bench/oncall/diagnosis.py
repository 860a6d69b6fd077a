"""The diagnosis: each case of the tests, the cause that it should find, and where that stands among what was found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runbooks.diagnose.command import causes
from runbooks.diagnose.sources import from_file, from_text

DATA = Path(__file__).parents[2] / "tests/diagnose/data"
CASES = ("lines.tsv", "elsewhere.tsv")


@dataclass(frozen=True)
class Told:
    """One case. `rank` is 1 where the wanted cause came first, 0 where it was not found at all."""

    case: str
    wanted: str
    found: str
    rank: int

    @property
    def right(self) -> bool:
        return self.rank == 1


def table() -> list[Told]:
    told = []
    for where, wanted, text in cases():
        names = [cause.name for cause in causes(from_text(text))]
        told.append(Told(where, wanted, names[0], names.index(wanted) + 1 if wanted in names else 0))
    for file in sorted((DATA / "healthy").iterdir()):
        names = [cause.name for cause in causes(from_file(str(file)))]
        told.append(Told(f"healthy: {file.name}", "nothing", names[0], int(names[0] == "nothing")))
    return told


def cases() -> list[tuple[str, str, str]]:
    """Where it was seen, the cause, the text."""
    rows = [row.split("\t", 3) for row in _rows("lines.tsv")]
    found = [(f"field log {number}" if number != "-" else line[:40], cause, line) for number, cause, _, line in rows]
    for where, cause, line in (row.split("\t", 2) for row in _rows("elsewhere.tsv")):
        found.append((where, "nothing" if cause == "-" else cause, line.replace("\\n", "\n")))
    return found


def _rows(name: str) -> list[str]:
    return [line for line in (DATA / name).read_text().splitlines() if line and not line.startswith("#")]


def show() -> int:
    told = table()
    width = max(len(one.case) for one in told)
    for one in told:
        print(f"{'ok   ' if one.right else 'WRONG'}  {one.case:{width}}  {one.wanted:28} rank {one.rank or '-'}")
    wrong = [one for one in told if not one.right]
    alarms = [one for one in wrong if one.wanted == "nothing"]
    print(f"{len(told)} cases, {len(told) - len(wrong)} right, {len(alarms)} false alarms")
    return int(bool(wrong))
