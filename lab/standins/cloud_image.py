"""A stand-in for a cloud image: a file with a checksum. The disk that it becomes is the lab's base tree."""

from __future__ import annotations

import hashlib
from pathlib import Path

NAME = "debian-12-lab.qcow2"
CONTENT = b"A stand-in for a cloud image: the disk that it becomes is the lab's base tree.\n"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def write(out: Path) -> Path:
    path = out / NAME
    path.write_bytes(CONTENT)
    return path
