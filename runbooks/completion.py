"""What a shell may offer behind `--hosts`, `--profile` and the like; Invoke itself completes tasks and options.

source <(invoke --print-completion-script bash)      also zsh, fish
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from runbooks.engine.errors import RunbookError
from runbooks.paths import expand, home

Names = Callable[[Sequence[str]], list[str]]


def offer(words: Sequence[str]) -> list[str] | None:
    """Values for the last word, or behind it; None where it takes none of ours.

    `words` is the command line so far, `invoke` included. Whether a blank follows the last word is not told.
    """
    for at in (-1, -2):
        names = _VALUES.get(words[at]) if len(words) >= -at else None
        if names is not None:
            own = [words[at]] if at == -1 and not words[at].startswith("-") else []
            return own + names(words)
    return None


def _hosts(words: Sequence[str]) -> list[str]:
    return _from_inventory(words, "hosts") + _from_inventory(words, "groups")


def _profiles(words: Sequence[str]) -> list[str]:
    return _from_inventory(words, "profiles")


def _only_hosts(words: Sequence[str]) -> list[str]:
    return _from_inventory(words, "hosts")


def _pages(_words: Sequence[str]) -> list[str]:
    return sorted(path.stem for path in (Path(__file__).parent / "oncall").glob("*.md"))


def _from_inventory(words: Sequence[str], part: str) -> list[str]:
    """Names of a mapping of the inventory that this command would read; none when it cannot be read."""
    from runbooks.inventory import load
    from runbooks.session import DEFAULT_INVENTORY

    given = [after for word, after in itertools.pairwise(words) if word == "--inventory"]
    path = given[-1] if given else os.environ.get("RUNBOOKS_INVENTORY") or home(DEFAULT_INVENTORY)
    try:
        return list(getattr(load(expand(path)).inventory, part))
    except RunbookError:
        return []


_VALUES: Mapping[str, Names] = {"--hosts": _hosts, "--profile": _profiles, "runbook": _pages, "adopt": _only_hosts}
