"""A part of the depot: files built from sources, built again only when the sources have changed."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

Progress = Callable[[str], None]
SCRATCH = ".part-"


@dataclass(frozen=True)
class Part:
    """`build(out, progress)` fills an empty folder; its files then stand in `folder` below the root.

    `sources` are files and folders whose content decides the result, `also` decides it as well (versions, the kernel).
    """

    name: str
    folder: str
    sources: Sequence[Path]
    build: Callable[[Path, Progress], None]
    also: str = ""

    def key(self) -> str:
        digest = hashlib.sha256(self.also.encode())
        for path in _files(self.sources):
            digest.update(f"\0{path.name}\0{oct(path.stat().st_mode)}\0".encode() + path.read_bytes())
        return digest.hexdigest()

    def ensure(self, root: Path, progress: Progress) -> None:
        target, stamp = root / self.folder, root / ".built" / f"{self.name}.json"
        built = json.loads(stamp.read_text()) if stamp.exists() else {"key": None, "files": []}
        key = self.key()
        if built["key"] == key and all((target / name).exists() for name in built["files"]):
            return
        progress(f"depot: {self.name}")
        target.mkdir(parents=True, exist_ok=True)
        stamp.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=root) as scratch:
            self.build(Path(scratch), progress)
            names = sorted(str(path.relative_to(scratch)) for path in Path(scratch).rglob("*") if path.is_file())
            for name in names:
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                (Path(scratch) / name).replace(target / name)
        for name in set(built["files"]) - set(names):
            (target / name).unlink(missing_ok=True)
        stamp.write_text(json.dumps({"key": key, "files": names}))


def _files(sources: Sequence[Path]) -> list[Path]:
    found = []
    for source in sources:
        found += [source] if source.is_file() else sorted(source.rglob("*"))
    return [path for path in found if path.is_file() and "__pycache__" not in path.parts]
