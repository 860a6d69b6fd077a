"""Weights that are none: a pointer in place of the file, a header that is cut off, a shard that the index names and
nobody listed."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path

LONGEST_HEADER = 100_000_000  # bytes; what the safetensors library takes
POINTER = b"version https://git-lfs.github.com/spec/"


def flaw(path: Path) -> str | None:
    """What is wrong with a .safetensors file by its own header, or None. Reads the header only."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        begin = stream.read(len(POINTER))
        if begin == POINTER:
            return f"is a Git LFS pointer of {size} bytes, not the file: the source was cloned without git-lfs"
        stream.seek(0)
        first = stream.read(8)
        if len(first) < 8:
            return f"has {size} bytes, too few for a header"
        (length,) = struct.unpack("<Q", first)
        if length > LONGEST_HEADER:  # what loaders call HeaderTooLarge
            return f"has no safetensors header (it says that its header has {length} bytes)"
        try:
            header = json.loads(stream.read(length))
            header.pop("__metadata__", None)
            end = max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
        except (ValueError, TypeError, KeyError, AttributeError):
            return "has a damaged safetensors header"
    if 8 + length + end != size:
        return f"has {size} bytes, and its header speaks of {8 + length + end}: it is cut off"
    return None


def unlisted(index: Path, listed: Iterable[str]) -> list[str]:
    """Shards that the index of the weights names, and the source does not have."""
    try:
        named = set(json.loads(index.read_text())["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError):
        return []
    return sorted(named - set(listed))
