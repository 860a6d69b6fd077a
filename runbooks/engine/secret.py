"""Values that must not be shown: where they come from, and a box that prints as ***."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runbooks.engine.errors import UsageError
from runbooks.paths import expand

MASK = "***"


class Secret:
    """A secret string: `str()`, `repr()` and format show ***; `reveal()` is the only way to the value."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __format__(self, _spec: str) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(("Secret", self._value))


@dataclass(frozen=True, kw_only=True)
class SecretSource:
    """Where a secret is read from when it is needed: one of an environment variable, a file (mode 0600), a command.

    `generate`: a file that is not there is written by `make`, with 256 random bits.
    """

    env: str | None = None
    file: str | None = None
    command: Sequence[str] | None = None
    generate: bool = False
    base: Path = field(default_factory=Path)

    @property
    def path(self) -> Path | None:
        return self.base / expand(self.file) if self.file is not None else None

    @property
    def unmade(self) -> bool:
        """A file that is to be generated, and was not yet."""
        return self.generate and self.path is not None and not self.path.exists()

    def resolve(self) -> Secret:
        """Read the secret. Raises UsageError that names the source, never its content."""
        if self.env is not None:
            if self.env not in os.environ:
                raise UsageError(f"secret: the environment variable {self.env} is not set")
            return Secret(os.environ[self.env])
        if self.path is not None:
            if self.unmade:
                raise UsageError(
                    f"secret: {self.path} is not there",
                    next="invoke deploy makes it or brings it from the host; a server without a key is `api_key: open`",
                )
            return Secret(_read_private(self.path))
        assert self.command is not None
        return Secret(_run(self.command))

    def make(self, secret: Secret | None = None) -> Secret:
        """Write the file that is not there yet, with this secret or a random one; what it holds then. Whole or not at
        all: of two runs at once, one wins for both.
        """
        assert self.path is not None
        _write_private(self.path, secret.reveal() if secret else f"sk-{secrets.token_urlsafe(32)}")
        return self.resolve()


def _read_private(path: Path) -> str:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise UsageError(f"secret: {path} has mode {mode:04o}; others can read it", next=f"chmod 0600 {path}")
        return path.read_text().rstrip("\n")
    except OSError as error:
        raise UsageError(f"secret: {path}: {error.strerror}") from None


def _write_private(path: Path, text: str) -> None:
    """What is there already stays."""
    staged = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{text}\n")
        with contextlib.suppress(FileExistsError):
            os.link(staged, path)
        staged.unlink()
    except OSError as error:
        raise UsageError(f"secret: {path} cannot be written: {error.strerror}") from None


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"secret: {command[0]} could not be run: {type(error).__name__}") from None
    if done.returncode != 0:
        raise UsageError(f"secret: {command[0]} ended with {done.returncode}: {done.stderr.strip()[-200:]}")
    return done.stdout.rstrip("\n")
