"""python3 fetch.pyz --source hf:OWNER/NAME --hf …/hf --into /srv/models/NAME"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import hub
from .listing import FetchError, RemoteFile, list_files, resolve
from .shards import flaw, unlisted
from .transfer import fetch, is_right

SIDE_BY_SIDE = 6
RESERVE = 1024**3  # bytes of the file system that stay free


def main() -> int:
    parser = argparse.ArgumentParser(prog="fetch")
    parser.add_argument("--source", required=True)
    parser.add_argument("--revision", default="main")
    parser.add_argument("--into", required=True, type=Path)
    parser.add_argument("--token-file", type=Path)
    parser.add_argument(
        "--hf", type=Path, action="append", default=[], help="Hugging Face's CLI; the first that is there"
    )
    parser.add_argument("--identity", required=True, help="written when all is there")
    options = parser.parse_args()
    try:
        run(options.source, options.revision, options.into, options.token_file, options.identity, options.hf)
    except FetchError as error:
        print(f"fetch: {error}")
        return 1
    except (urllib.error.URLError, OSError) as error:
        print(f"fetch: {options.source}: {getattr(error, 'reason', None) or error}")
        return 1
    return 0


def run(source: str, revision: str, folder: Path, token_file: Path | None, identity: str, hf: list[Path]) -> None:
    """Make `folder` hold exactly what the source lists (more may lie in it), then write the marks."""
    token = token_file.read_text().strip() if token_file else None
    commit = resolve(source, revision, token)
    files = list_files(source, commit or revision, token)
    if not files:
        raise FetchError(f"{source} lists no file")
    notes = folder / ".runbooks"
    notes.mkdir(parents=True, exist_ok=True)
    meter = Meter(sum(file.size for file in files))
    verified = _read_verified(notes)
    missing = [file for file in files if not _is_whole(file, folder, verified, meter)]
    started = {file: _size(notes / "part" / file.path) for file in missing}
    _check_room(folder, sum(file.size - min(file.size, started[file]) for file in missing))
    if source.startswith("hf:"):
        whole = meter.begin()
        download = hub.Download(
            source.removeprefix("hf:"), commit, folder, token_file, lambda file: _note_verified(file, folder, verified)
        )
        if missing:
            download.run(hub.command(hf), missing, lambda there: meter.reach(whole + there))
    else:
        meter.add(sum(started.values()))
        meter.begin()
        _fetch_all(missing, folder, token, meter, verified)
    meter.end()
    _check_weights(files, folder)
    _write(notes / "commit", f"{commit}\n".encode())
    _write_marks(files, folder, notes, identity)


def _fetch_all(
    files: list[RemoteFile], folder: Path, token: str | None, meter: Meter, verified: dict[str, str]
) -> None:
    """Largest first, several side by side; after an error the others are let finish what they are at, no more."""
    failed = threading.Event()
    guard = threading.Lock()

    def one(file: RemoteFile) -> None:
        if failed.is_set():
            return
        try:
            fetch(file, folder, token, meter.add)
        except BaseException:
            failed.set()
            raise
        with guard:
            _note_verified(file, folder, verified)

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        results = [pool.submit(one, file) for file in sorted(files, key=lambda file: -file.size)]
    for result in results:
        result.result()


def _is_whole(file: RemoteFile, folder: Path, verified: dict[str, str], meter: Meter) -> bool:
    """There, of the right size, and verified before as it lies there now, or verified here."""
    path = folder / file.path
    if _size(path) != file.size or not path.is_file():
        return False
    if verified.get(file.path) != _state(file, path):
        print(f"fetch {file.path}: is there, checking its digest", flush=True)
        if not is_right(file, path):
            print(f"fetch {file.path}: its digest is wrong, it comes again", flush=True)
            path.unlink()
            return False
        _note_verified(file, folder, verified)
    meter.add(file.size)
    return True


def _check_weights(files: list[RemoteFile], folder: Path) -> None:
    """A digest tells that it is what the source has, not that the source has the weights."""
    names = [file.path for file in files]
    for name in names:
        wrong = flaw(folder / name) if name.endswith(".safetensors") else None
        if wrong:
            raise FetchError(f"{name} {wrong}")
    lost = unlisted(folder / "model.safetensors.index.json", names)
    if lost:
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        raise FetchError(f"the index names shards that the source does not have: {', '.join(lost[:3])}{more}")


def _check_room(folder: Path, needed: int) -> None:
    """Of the file system, and of quotas, which it does not tell: as many bytes are taken for a moment, unwritten."""
    stat = os.statvfs(folder)
    free = stat.f_bavail * stat.f_frsize
    to_come = f"{_human(needed)} are still to come"
    if needed and needed + min(RESERVE, needed) > free:
        raise FetchError(f"{to_come}, {_human(free)} are free at {folder}: invoke runbook disk-full")
    if not needed:
        return
    with tempfile.NamedTemporaryFile(dir=folder / ".runbooks", prefix="room-") as trial:
        argv = ["fallocate", "--keep-size", "--length", str(needed), trial.name]
        said = subprocess.run(argv, capture_output=True, text=True, check=False).stderr.strip()
    if any(word in said for word in ("No space", "quota")):  # other words: a file system that cannot do this
        said = said.rpartition(": ")[2]
        raise FetchError(f"{to_come}, and {folder} does not take them: {said}: invoke runbook disk-full")


def _human(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _state(file: RemoteFile, path: Path) -> str:
    """What was verified: these bytes on the disk (size and time), against that digest."""
    stat = path.stat()
    return f"{stat.st_size} {stat.st_mtime_ns} {file.digest[1] if file.digest else '-'}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read_verified(notes: Path) -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads((notes / "verified.json").read_text())
        return found
    except (OSError, ValueError):
        return {}


def _note_verified(file: RemoteFile, folder: Path, verified: dict[str, str]) -> None:
    """Kept after every file: a killed download does not read 400 GB again to find out what it had."""
    verified[file.path] = _state(file, folder / file.path)
    _write(folder / ".runbooks" / "verified.json", json.dumps(verified).encode())


def _write_marks(files: list[RemoteFile], folder: Path, notes: Path, identity: str) -> None:
    """`files`, `sizes` and `times` let a look tell with stat(1) if all is as it was checked: see steps/downloads.py."""
    ordered = sorted(files, key=lambda file: file.path)
    _write(notes / "files", b"".join(file.path.encode() + b"\0" for file in ordered))
    _write(notes / "sizes", b"".join(f"{file.size} {file.path}\n".encode() for file in ordered))
    times = ((int((folder / file.path).stat().st_mtime), file.path) for file in ordered)
    _write(notes / "times", b"".join(f"{when} {path}\n".encode() for when, path in times))
    _write(notes / "identity", identity.encode() + b"\n")


def _write(path: Path, data: bytes) -> None:
    new = path.with_name(path.name + ".new")
    new.write_bytes(data)
    new.replace(path)


class Meter:
    """Prints `fetch 12.3/441.0 GB 310 MB/s, 23 min left`, at most every two seconds."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._began = self._shown = time.monotonic()
        self._start = 0
        self._lock = threading.Lock()

    def begin(self) -> int:
        """The rate counts from here. Returns the bytes that are there."""
        self._began, self._start = time.monotonic(), self._done
        return self._done

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._show()

    def reach(self, done: int) -> None:
        with self._lock:
            self._done = done
            self._show()

    def _show(self) -> None:
        now = time.monotonic()
        if now - self._shown >= 2:
            self._shown = now
            self._print(now)

    def end(self) -> None:
        self._print(time.monotonic())

    def _print(self, now: float) -> None:
        rate = (self._done - self._start) / max(now - self._began, 1e-3)
        unit, name = (1e9, "GB") if self._total >= 1e9 else (1e6, "MB")
        todo = self._total - self._done
        left = f", {todo / rate / 60:.0f} min left" if rate > 1e5 and todo > 0 else ""
        amount = f"{self._done / unit:.1f}/{self._total / unit:.1f} {name}"
        print(f"fetch {amount} {rate / 1e6:.0f} MB/s{left}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
