"""The jobs that this run follows: what goes on where a person leaves with Ctrl-C. Every command imports it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_FOLLOWED: dict[tuple[str, str], bool] = {}  # host and job; may the same command attach to it?


@contextmanager
def followed(host: str, label: str, *, again: bool) -> Iterator[None]:
    """While inside, the job may be at work; a Ctrl-C does not end it. `again`: the same command attaches to it."""
    _FOLLOWED[host, label] = again
    try:
        yield
    except Exception:
        _FOLLOWED.pop((host, label), None)
        raise
    _FOLLOWED.pop((host, label), None)


def interrupted() -> str:
    """What is true after a Ctrl-C."""
    if not _FOLLOWED:
        return "interrupted; no job of this run goes on"
    names = ", ".join(f"{label} on {host}" for host, label in _FOLLOWED)
    text = f"interrupted; {names} goes on: `invoke jobs` lists it"
    return f"{text}, the same command attaches to it" if all(_FOLLOWED.values()) else text
