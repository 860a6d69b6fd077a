"""Words that several texts of the bench share."""

from __future__ import annotations


def streams(count: int) -> str:
    """`1 stream`, `64 streams`."""
    return f"{count} stream" if count == 1 else f"{count} streams"
