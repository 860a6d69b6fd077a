"""What the operating system and Paramiko say of a link, in words; a private key that holds none, with its file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path


def in_words(error: Exception) -> str:
    """The operating system's words, which Paramiko wraps when a name has several addresses."""
    inner = next(iter(getattr(error, "errors", {}).values()), error)
    if isinstance(inner, TimeoutError):
        return "timed out"
    return getattr(inner, "strerror", None) or str(inner) or type(inner).__name__


def unusable(
    error: Exception,
    key: Path | None,
    others: str | Sequence[str] | None,
    *,
    read: Callable[[str], object],
    locked: type[Exception],
) -> str:
    """The key's file, and what is wrong; "" where every key can be read. Paramiko itself does not say which it was.

    `key` is the inventory's; `others` are those that ssh_config named. `read` raises `locked` for one that has a
    passphrase, and whatever it trips over for one that is none.
    """
    named = [others] if isinstance(others, str) else list(others or ())
    bad: list[str] = []
    for file in [str(key)] if key is not None else named:
        try:
            read(file)
        except locked:
            continue
        except Exception:
            bad.append(file)
    where = "`key` in the inventory" if key is not None else "IdentityFile in ssh_config"
    return f"{', '.join(bad)} is no private key that can be read: {error} ({where})" if bad else ""
