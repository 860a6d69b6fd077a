"""Memory that the system has given before the loop wants it: a page fault there costs as much as a read."""

from __future__ import annotations

SIZE = 32 << 20  # bytes: some 80,000 reads of an ordinary stream; what comes beyond is given as it is wanted
BLOCK = 16 << 10  # small enough to come from the heap, where what is read will come from


def touched() -> object:
    """Keep what this returns for as long as the memory is to stay: it lies at the heap's end, and so holds it."""
    blocks = [b"\1" * BLOCK for _ in range(SIZE // BLOCK)]
    return blocks[-1]
