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
SHORTEST = 4  # characters; hiding a shorter one would blank half of every line
LARGEST = 100_000  # bytes; a private key has some thousand
PATIENCE = 60.0  # seconds for a command: a password manager may ask a person


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

    `generate`: a file that is not there is written by `make`, with 256 random bits. `ascii`: it goes into a header.
    """

    env: str | None = None
    file: str | None = None
    command: Sequence[str] | None = None
    generate: bool = False
    ascii: bool = False
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
            return self._fit(os.environ[self.env], f"the environment variable {self.env}")
        if self.path is not None:
            if self.unmade:
                raise UsageError(
                    f"secret: {self.path} is not there",
                    next="invoke deploy makes it or brings it from the host; a server without a key is `api_key: open`",
                )
            return self._fit(_read_private(self.path), str(self.path))
        assert self.command is not None
        return self._fit(_run(self.command, self.base), f"what {self.command[0]} printed")

    def _fit(self, text: str, where: str) -> Secret:
        """One line that can be sent and hidden, or a private key; what is wrong is said without showing it."""
        text = text.rstrip("\r\n")
        key = text.startswith("-----BEGIN ")
        if not text:
            raise UsageError(f"secret: {where} is empty")
        if len(text) < SHORTEST:
            raise UsageError(f"secret: {where} is shorter than {SHORTEST} characters, and could not be hidden")
        if not text.translate({ord("\n"): "-", ord("\r"): "-"} if key else {}).isprintable():
            raise UsageError(f"secret: {where} is not one line of text, nor a private key")
        if self.ascii and not (text.isascii() and " " not in text):
            raise UsageError(
                f"secret: {where} is sent in a header: letters, digits and signs of ASCII, without a space"
            )
        return Secret(text)

    def make(self, secret: Secret | None = None) -> Secret:
        """Write the file that is not there yet, with this secret or a random one; what it holds then. Whole or not at
        all: of two runs at once, one wins for both.
        """
        assert self.path is not None
        _write_private(self.path, secret.reveal() if secret else f"sk-{secrets.token_urlsafe(32)}")
        return self.resolve()


def _read_private(path: Path) -> str:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"secret: {path} is no file")  # a pipe would be waited for
        mode = stat.S_IMODE(found.st_mode)
        if mode & 0o077:
            raise UsageError(f"secret: {path} has mode {mode:04o}; others can read it", next=f"chmod 0600 {path}")
        if found.st_size > LARGEST:
            raise UsageError(f"secret: {path} has {found.st_size:,} bytes: that is no secret")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"secret: {path} is not UTF-8 text") from None
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


def _run(command: Sequence[str], folder: Path) -> str:
    """Its output. What it left running does not keep us waiting, though it may hold the pipe."""
    name = command[0]
    try:
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder
        ) as child:
            try:
                out, errors = child.communicate(timeout=PATIENCE)
            except BaseException:
                child.kill()
                raise
    except subprocess.TimeoutExpired:
        raise UsageError(f"secret: {name} did not end within {PATIENCE:.0f} s") from None
    except OSError as error:
        raise UsageError(f"secret: {name} could not be run: {error.strerror}") from None
    if child.returncode != 0:
        last = errors.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        raise UsageError(f"secret: {name} ended with {child.returncode}: {ascii(last[0][-200:])[1:-1]}")
    try:
        return out.decode()
    except UnicodeDecodeError:
        raise UsageError(f"secret: what {name} printed is not UTF-8 text") from None
