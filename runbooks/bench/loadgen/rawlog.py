"""The raw log: what was sent when, and every read as (time, bytes). Length-prefixed blocks, each compressed by itself.

    file   = b"RBRAW1\\n" block*
    block  = u32 size, zlib(size bytes)
    inside = u32 size, JSON meta, u32 number of reads, (u64 time in ns, u32 length) each, then the bytes of all reads

Times are `time.perf_counter_ns()` of the host: one monotonic clock for all its processes. Files of several processes
are joined by appending their blocks.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

MAGIC = b"RBRAW1\n"

Reads = list[tuple[int, bytes]]
Block = tuple[dict[str, Any], Reads]


def encode(meta: dict[str, Any], reads: Sequence[tuple[int, bytes]] = ()) -> bytes:
    text = json.dumps(meta, sort_keys=True).encode()
    parts = [struct.pack("<I", len(text)), text, struct.pack("<I", len(reads))]
    parts += [struct.pack("<QI", at, len(data)) for at, data in reads]
    parts += [data for _, data in reads]
    packed = zlib.compress(b"".join(parts), 6)
    return struct.pack("<I", len(packed)) + packed


def decode(data: bytes) -> Iterator[Block]:
    """Every whole block. A file that was cut off in the middle gives what is whole."""
    if not data.startswith(MAGIC):
        raise ValueError("not a raw log of this load generator")
    at = len(MAGIC)
    while at + 4 <= len(data):
        (size,) = struct.unpack_from("<I", data, at)
        packed = data[at + 4 : at + 4 + size]
        if len(packed) < size:
            return
        yield _block(zlib.decompress(packed))
        at += 4 + size


def _block(inside: bytes) -> Block:
    (size,) = struct.unpack_from("<I", inside, 0)
    meta: dict[str, Any] = json.loads(inside[4 : 4 + size])
    (count,) = struct.unpack_from("<I", inside, 4 + size)
    at = 8 + size
    index = [struct.unpack_from("<QI", inside, at + 12 * i) for i in range(count)]
    at += 12 * count
    reads: Reads = []
    for when, length in index:
        reads.append((when, inside[at : at + length]))
        at += length
    return meta, reads


def write(path: Path, blocks: Iterable[Block]) -> None:
    with path.open("wb") as file:
        file.write(MAGIC)
        for meta, reads in blocks:
            file.write(encode(meta, reads))


def join(path: Path, point: dict[str, Any], parts: Iterable[Path]) -> None:
    """One log of a point: its own block first, then those of each process, whose files are taken away."""
    with path.open("wb") as file:
        file.write(MAGIC + encode(point))
        for part in parts:
            if part.exists():
                file.write(part.read_bytes()[len(MAGIC) :])
                part.unlink()
