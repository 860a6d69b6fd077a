"""All-reduce and all-to-all at the sizes of a decode step, with and without CUDA graphs, each result checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from . import torches
from .group import Emit

CALLS = 20  # a batch, for messages below a mebibyte


@dataclass(frozen=True)
class Sizes:
    """`token_bytes`: hidden states of one token; `sent_to`: experts that each token goes to."""

    batches: tuple[int, ...]
    token_bytes: int
    sent_to: int

    def all_reduce(self, b: int) -> int:
        return b * self.token_bytes

    def all_to_all(self, b: int, ranks: int) -> int:
        """Bytes that each rank sends: its share of the tokens, to every expert that they chose."""
        return max(1, round(b * self.sent_to / ranks)) * self.token_bytes


def measure(rank: int, ranks: int, port: int, sizes: Sizes, limit: float, emit: Emit) -> None:
    """One rank of the group. Emits a `collective` row for each operation, size and way of launching."""
    device = torches.join(rank, ranks, port, limit)
    dist = torches.torch().distributed
    for b in sizes.batches:
        _one(emit, "all_reduce", b, sizes.all_reduce(b), ranks, rank, device)
        _one(emit, "all_to_all", b, sizes.all_to_all(b, ranks), ranks, rank, device)
    dist.barrier()
    dist.destroy_process_group()


def _one(emit: Emit, op: str, b: int, size: int, ranks: int, rank: int, device: Any) -> None:
    call, refill, right = OPERATIONS[op](size, ranks, rank, device)
    dist = torches.torch().distributed
    for _ in range(3):
        call()
    refill()
    call()
    torches.settle(device)
    emit_row = {"op": op, "b": b, "bytes": size}
    calls = CALLS if size < 1 << 20 else CALLS // 4
    # Whoever got wrong data goes on with the others: a rank that left would hang them, and the word would be "hang".
    ok = right()
    times = torches.timed(call, device, calls if device.type == "cuda" else 5, dist.barrier)
    emit("collective", **emit_row, graph=False, right=ok, **torches.spread(times))
    if device.type != "cuda":
        return
    once = torches.captured(call, device, 1)
    refill()
    once.replay()
    torches.settle(device)
    ok = right()
    many = torches.captured(call, device, torches.GRAPH_CALLS)
    many.replay()
    times = [one / torches.GRAPH_CALLS for one in torches.timed(many.replay, device, 3, dist.barrier)]
    emit("collective", **emit_row, graph=True, right=ok, **torches.spread(times))


Operation = tuple[Callable[[], Any], Callable[[], Any], Callable[[], bool]]  # call, refill the input, is it right?


def values(count: int, rank: int, device: Any) -> Any:
    """Whole numbers up to 8, other ones for each of 30 ranks; sums over 28 are exact in BF16."""
    t = torches.torch()
    return ((t.arange(count, device=device) + 1) * (rank + 1) % 31 % 9).to(t.bfloat16)


def parcel(count: int, source: int, to: int, ranks: int, device: Any) -> Any:
    """What one rank sends another: other numbers for each pair of up to 15 ranks, exact in BF16."""
    t = torches.torch()
    return ((t.arange(count, device=device) + source * ranks + to) % 251).to(t.bfloat16)


def _all_reduce(size: int, ranks: int, rank: int, device: Any) -> Operation:
    t = torches.torch()
    count = size // 2
    buffer, mine = values(count, rank, device), values(count, rank, device)
    expected = sum(values(count, other, device).float() for other in range(ranks)).to(t.bfloat16)

    def right() -> bool:
        ok = bool(t.equal(buffer, expected))
        buffer.zero_()  # the timed calls add nothing up
        return ok

    return lambda: t.distributed.all_reduce(buffer), lambda: buffer.copy_(mine), right


def _all_to_all(size: int, ranks: int, rank: int, device: Any) -> Operation:
    t = torches.torch()
    part = max(1, size // 2 // ranks)
    mine = t.cat([parcel(part, rank, to, ranks, device) for to in range(ranks)])
    out = t.zeros_like(mine)
    expected = t.cat([parcel(part, source, rank, ranks, device) for source in range(ranks)])

    def call() -> None:
        t.distributed.all_to_all_single(out, mine)

    return call, out.zero_, lambda: bool(t.equal(out, expected))


OPERATIONS: dict[str, Callable[[int, int, int, Any], Operation]] = {
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
}


def merged(rows: Sequence[dict[str, Any]], ranks: int) -> list[dict[str, Any]]:
    """One row an operation, size and way of launching: the slowest rank's time, and right only where all were.

    `bus_gb_s` is the rate that each rank's link must carry: algorithm bytes by (n-1)/n, twice for an all-reduce.
    """
    kept: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["kind"] == "collective":
            kept.setdefault((row["op"], row["b"], row["bytes"], row["graph"]), []).append(row)
    found = []
    for (op, b, size, graph), group in kept.items():
        ok = all(one["right"] for one in group)
        if len(group) < ranks and ok:
            continue  # the group ended before every rank had told
        row = {"op": op, "b": b, "bytes": size, "graph": graph, "right": ok}
        if row["right"]:
            slowest = max(group, key=lambda one: float(one["us"]))
            row |= {name: slowest[name] for name in ("us", "us_low", "us_high")}
            share = (2 if op == "all_reduce" else 1) * (ranks - 1) / ranks
            row["bus_gb_s"] = round(size * share / slowest["us"] / 1e3, 3) if slowest["us"] else None
        found.append(row)
    return found
