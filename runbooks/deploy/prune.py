"""Which releases and runtimes may go. What a kept release names is kept, and so is what the inventory names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from runbooks import paths
from runbooks.deploy.releases import Release
from runbooks.engine.step import quote
from runbooks.engine.transport import Connection

KEPT = 10
"""The newest releases are kept, failed ones too: they say what was tried."""

WAYS_BACK = 3
"""And, however old, the newest that were good: what a rollback goes to, twice over."""


def spare(releases: Iterable[Release], *, serving: Collection[int]) -> list[Release]:
    """Pure: the releases that may go, oldest first. `serving`: the current one, and the one that the unit runs."""
    newest = sorted(releases, key=lambda release: -release.number)
    good = [release.number for release in newest if release.verdict == "promoted"]
    kept = {*serving, *(release.number for release in newest[:KEPT]), *good[:WAYS_BACK]}
    return [release for release in reversed(newest) if release.number not in kept]


def spare_runtimes(
    there: Iterable[str], releases: Iterable[Release], going: Iterable[Release], *, wanted: Collection[str]
) -> list[str]:
    """Pure: the folders of runtimes that no kept release names and the inventory does not either."""
    gone = {release.number for release in going}
    named = {release.runtime for release in releases if release.number not in gone} | set(wanted)
    return sorted(folder for folder in there if folder not in named)


def runtimes(conn: Connection) -> list[str]:
    """The runtimes on a host, half-built ones left out: a build may be at work there."""
    out = conn.ask(f"for r in {paths.RUNTIMES}/*/built; do [ -e $r ] && echo ${{r%/built}}; done; :").out
    return [line for line in out.splitlines() if line.startswith(paths.RUNTIMES)]


def remove(conn: Connection, folders: Sequence[str]) -> None:
    """Each goes out of sight by one rename before its files go, so that half a folder is never taken for a whole."""
    lines = []
    for folder in folders:
        parent, _, name = folder.rpartition("/")
        away = quote(f"{parent}/.gone-{name}")
        lines.append(f"rm -rf -- {away}; mv -T -- {quote(folder)} {away} && rm -rf -- {away}")
    if lines:
        conn.ask("\n".join(lines), deadline=600)
