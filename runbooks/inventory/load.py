"""From a file to an inventory, and from patterns to hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from runbooks.engine.errors import UsageError
from runbooks.engine.secret import Secret, SecretSource
from runbooks.inventory.check import check
from runbooks.inventory.shape import Inventory, Model, Runtime, SecretRef
from runbooks.inventory.source import Document, Problem, near, read
from runbooks.paths import home

ALIKE = 3
LARGEST = 1_000_000  # bytes; the YAML reader takes seconds for as many


@dataclass(frozen=True)
class Loaded:
    """An inventory and the file it was read from. Paths in the inventory are relative to `folder`."""

    inventory: Inventory
    path: Path
    document: Document

    @property
    def folder(self) -> Path:
        return self.path.parent

    def place(self, *path: str | int) -> str:
        """`inventory.yaml:120`: where a value stands, for errors that are found later."""
        return f"{self.path}:{self.document.line(path)}"

    def secret(self, ref: SecretRef) -> Secret:
        """Read a secret now; nothing is written. Raises UsageError that names its source."""
        return self.source(ref).resolve()

    def source(self, ref: SecretRef) -> SecretSource:
        """Keys and tokens are sent in headers, which take ASCII alone."""
        inventory = self.inventory
        tokens = [one.token for one in inventory.models.values()] + [one.token for one in inventory.nodes.values()]
        return SecretSource(
            env=ref.env,
            file=ref.file,
            command=ref.command,
            generate=ref.generate,
            ascii=ref in (inventory.server.api_key, *tokens),
            base=self.folder,
        )

    def runtime_for(self, host: str) -> Runtime:
        return self.inventory.runtimes[self.inventory.hosts[host].runtime or self.inventory.runtime]

    def model_for(self, host: str) -> Model:
        return self.inventory.models[self.inventory.hosts[host].model or self.inventory.model]


def load(path: Path) -> Loaded:
    """Read and validate an inventory. Raises one UsageError with every problem of the file."""
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST + 1)  # a device has no end
        if len(raw) > LARGEST:
            raise UsageError(f"{path} is larger than {LARGEST // 10**6} MB: that is no inventory")
        text = raw.decode()
    except FileNotFoundError:
        raise UsageError(
            f"there is no inventory at {path}",
            next=f"cp {home('inventory.yaml')} my.yaml, edit it, then pass --inventory my.yaml",
        ) from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder, not an inventory file") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    document = read(text)
    inventory = check(document)
    if inventory is None:
        problems = _told(document.problems, path.name)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise UsageError(f"{path} cannot be used: {count}", details=problems)
    return Loaded(inventory, path, document)


def _told(problems: Sequence[Problem], file: str) -> list[str]:
    """A line each, by place; what is said more than ALIKE times in the same words, as of a name that many use, once."""
    alike: dict[str, list[Problem]] = {}
    for problem in sorted(set(problems)):
        alike.setdefault(problem.text, []).append(problem)
    told = [
        (one, f"   (the first of {len(same)} places)" if len(same) > ALIKE else "")
        for same in alike.values()
        for one in (same[:1] if len(same) > ALIKE else same)
    ]
    return [f"{problem.show(file)}{more}" for problem, more in sorted(told)]


def select(loaded: Loaded, patterns: Sequence[str] = ()) -> list[str]:
    """Host names in the order of the inventory.

    A pattern is a host, a group, or a wildcard over both; `!pattern` takes away; commas separate. None: every host.
    Raises UsageError for a pattern that matches nothing, and when nothing is left.
    """
    words = [word.strip() for pattern in patterns for word in pattern.split(",") if word.strip()]
    if patterns and not words:
        # An empty variable in a script must not mean the whole fleet.
        raise UsageError("hosts: nothing was named", details=[f"hosts: {', '.join(loaded.inventory.hosts)}"])
    wanted = [word for word in words if not word.startswith("!")]
    chosen = {name for word in wanted for name in _matches(loaded, word)} if wanted else set(loaded.inventory.hosts)
    for word in words:
        if word.startswith("!"):
            chosen -= _matches(loaded, word[1:])
    if not chosen:
        raise UsageError(
            f"no host is left of {' '.join(words)}", details=[f"hosts: {', '.join(loaded.inventory.hosts)}"]
        )
    return [name for name in loaded.inventory.hosts if name in chosen]


def _matches(loaded: Loaded, word: str) -> set[str]:
    hosts, groups = loaded.inventory.hosts, loaded.inventory.groups
    found = {name for name in hosts if fnmatchcase(name, word)}
    for name, group in groups.items():
        if fnmatchcase(name, word):
            found.update(group.hosts)
    if not found:
        raise UsageError(
            f"no host or group matches {word!r}{near(word, [*hosts, *groups])}",
            details=[f"hosts: {', '.join(hosts)}", *([f"groups: {', '.join(groups)}"] if groups else [])],
        )
    return found
