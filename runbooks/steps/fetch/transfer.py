"""One file: resumed where it was left, its digest checked, put in place by a rename."""

from __future__ import annotations

import hashlib
import http.client
import time
import urllib.error
from collections.abc import Callable
from pathlib import Path

from .listing import FetchError, RemoteFile, open_url

BLOCK = 1024 * 1024
ATTEMPTS = 8

Progress = Callable[[int], None]


def fetch(file: RemoteFile, folder: Path, token: str | None, progress: Progress) -> None:
    """Fetch a file below `folder`. `progress` gets counts of bytes, negative when some must come again."""
    target, part = folder / file.path, folder / ".runbooks" / "part" / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    wrong = False
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _continue(file, part, token, progress)
            if is_right(file, part):
                part.chmod(0o644)
                part.replace(target)
                return
            what = "its digest is wrong"
            progress(-part.stat().st_size)
            part.unlink()
            if wrong:
                raise FetchError(f"{file.path}: its digest is wrong, twice: the source has another file than it says")
            wrong = True
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in (28, 122, 30):  # no space, quota, read-only
                raise FetchError(f"{part}: {error.strerror}") from None
            what = str(error) or type(error).__name__
        if attempt < ATTEMPTS:
            print(f"fetch {file.path}: {what}; again ({attempt} of {ATTEMPTS})", flush=True)
            time.sleep(min(2.0 ** (attempt - 1), 30.0))
    raise FetchError(f"{file.path}: {what}, {ATTEMPTS} times")


def _continue(file: RemoteFile, part: Path, token: str | None, progress: Progress) -> None:
    have = part.stat().st_size if part.exists() else 0
    if have > file.size:
        progress(-have)
        part.unlink()
        have = 0
    if have == file.size and part.exists():
        return
    with open_url(file.url, token, {"Range": f"bytes={have}-"} if have else None) as response:
        if have and file.url.startswith("file:"):
            response.fp.seek(have)
        elif have and response.status != 206:  # a server without ranges sends the whole again
            progress(-have)
            have = 0
        with part.open("ab" if have else "wb") as out:
            while block := response.read(BLOCK):
                out.write(block)
                have += len(block)
                progress(len(block))
    if have != file.size:
        raise urllib.error.URLError(f"ended after {have} of {file.size} bytes")


def is_right(file: RemoteFile, path: Path) -> bool:
    """Size and digest. A file without a digest is held to its size."""
    size = path.stat().st_size
    if size != file.size or file.digest is None:
        return size == file.size
    kind, wanted = file.digest
    digest = hashlib.sha256() if kind == "sha256" else hashlib.sha1(b"blob %d\0" % size)
    with path.open("rb") as stream:
        while block := stream.read(8 * BLOCK):
            digest.update(block)
    return digest.hexdigest() == wanted
