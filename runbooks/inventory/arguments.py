"""Names of SGLang's arguments in profiles, held against every version that there is a flag table of.

What some version has is a matter of the version, and waits for a deploy; what none has is a slip of the keyboard.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path as File

from runbooks.inventory.shape import Inventory, Profile, Variant
from runbooks.inventory.source import Document, Path, shown

FLAGS = File(__file__).parents[1] / "sglang" / "flags.json"
ELSEWHERE: Mapping[str, str] = {
    "enable_pcie_oneshot_allreduce": "only forks of SGLang have it; no published release does",
}
"""What people bring along from other builds, and no published version has ever had."""


def plain(option: str) -> str:
    """`--mem-fraction-static` -> `mem_fraction_static`."""
    return option.lstrip("-").replace("-", "_")


@cache
def _known() -> tuple[frozenset[str], str]:
    """Every name that an argument has had, and which versions were looked at."""
    data = json.loads(FLAGS.read_text())
    names = {plain(word) for line in data["arguments"] for word in (line["dest"], *line["options"])}
    return frozenset(names), f"{data['versions'][0]} to {data['versions'][-1]}"


def check_arguments(inventory: Inventory, document: Document) -> None:
    """Each name that no version has, with its line. What is expected may be no argument: there a near miss counts."""
    names, versions = _known()
    for path in _places(inventory):
        name = plain(str(path[-1]))
        if name in names:
            continue
        close = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.6 if path[-2] == "args" else 0.85)
        if path[-2] == "expect" and not close:
            continue
        close = close or [one for one in sorted(names) if one.startswith(name)][:1]
        why = ELSEWHERE.get(name)
        near = f"; did you mean {close[0]}?" if close else ""
        document.problem(
            path,
            f"no SGLang from {versions} has an argument {shown(name)!r}{f': {why}' if why else near}",
        )


def _places(inventory: Inventory) -> Iterator[Path]:
    for name, profile in inventory.profiles.items():
        layers: list[tuple[Path, Profile | Variant]] = [(("profiles", name), profile)]
        layers += [(("profiles", name, "before", version), one) for version, one in profile.before.items()]
        for path, layer in layers:
            yield from ((*path, "args", key) for key in layer.args)
            yield from ((*path, "expect", key) for key in layer.expect)
