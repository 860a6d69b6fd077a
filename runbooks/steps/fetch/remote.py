"""Files of another host, over SSH: listed with what that host's own download verified, and read from any offset.

The command comes from FETCH_SSH, with its key and its known hosts; nobody is asked, and no host is trusted on sight.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import urllib.error
import urllib.parse

_LIST = """\
cd -- {folder} || exit 9
find . -name .runbooks -prune -o -name .git -prune -o -name .cache -prune -o -type f -printf '%s %P\\0'
printf '\\0'
cat .runbooks/verified.json 2>/dev/null || :"""


def entries(source: str) -> list[tuple[str, int, tuple[str, str] | None]]:
    """Path, size and digest of every file of `ssh://USER@HOST[:PORT]/FOLDER`. Raises URLError with ssh's own words."""
    folder = urllib.parse.unquote(urllib.parse.urlsplit(source).path)
    done = subprocess.run(_command(source, _LIST.format(folder=shlex.quote(folder))), capture_output=True, check=False)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise urllib.error.URLError(said[-1] if said else f"ssh ended with {done.returncode}")
    listed, _, notes = done.stdout.partition(b"\0\0")
    verified = json.loads(notes) if notes.strip() else {}
    found = []
    for line in filter(None, listed.split(b"\0")):
        size, _, name = line.decode().partition(" ")
        found.append((name, int(size), _digest(verified.get(name, ""), size)))
    return found


def _digest(state: str, size: str) -> tuple[str, str] | None:
    """`SIZE TIME DIGEST`, as the other host noted it; a git blob's hash has 40 digits, a SHA-256 has 64."""
    was, _, rest = state.partition(" ")
    digest = rest.rpartition(" ")[2]
    kind = {40: "git", 64: "sha256"}.get(len(digest))
    return (kind, digest) if kind and was == size else None


class Stream:
    """A file of the other host from `offset` on, with the methods of a response that are used."""

    status = 206

    def __init__(self, url: str, offset: int) -> None:
        path = urllib.parse.unquote(urllib.parse.urlsplit(url).path)
        script = f"exec tail -c +{offset + 1} -- {shlex.quote(path)}"
        self._process = subprocess.Popen(_command(url, script), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def read(self, count: int) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.read(count)


def _command(url: str, script: str) -> list[str]:
    place = urllib.parse.urlsplit(url)
    port = ["-p", str(place.port)] if place.port else []
    login = f"{place.username}@{place.hostname}" if place.username else str(place.hostname)
    return [*shlex.split(os.environ.get("FETCH_SSH", "ssh -o BatchMode=yes")), *port, "--", login, script]
