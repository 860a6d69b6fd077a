"""Copies by the copy engines, and the ladder that peer-to-peer has to climb before it is believed.

Inside a virtual machine peer-to-peer can be granted, and be fast in every bandwidth test, while what is written never
arrives: the writes land in a private mirror (NVIDIA/nccl issue 2335). So each rung reads on the DESTINATION card:

    1  the driver grants peer access                       can_device_access_peer
    2  the copy engine writes, the destination reads       all ordered pairs
    3  a kernel writes (NCCL send), the destination reads  all ordered pairs, time-limited
    4  an all-reduce over all cards has the right sum      reduce.py, time-limited
"""

from __future__ import annotations

import itertools
from typing import Any

from . import torches
from .group import Emit

SMALL, LARGE = 12_288, 64 << 20  # bytes: one token's hidden states, and enough for full speed


def look(emit: Emit) -> None:
    """What torch sees: versions, cards, and which pairs the driver grants peer access."""
    t = torches.torch()
    name = torches.backend()
    count = t.cuda.device_count() if name == "nccl" else 0
    nccl = ".".join(map(str, t.cuda.nccl.version())) if name == "nccl" else None
    cards = [t.cuda.get_device_name(i) for i in range(count)]
    granted = [[i, j] for i, j in _pairs(count) if t.cuda.can_device_access_peer(i, j)]
    emit("look", backend=name, torch=str(t.__version__), nccl=nccl, cards=cards, granted=granted)


def host_copies(emit: Emit) -> None:
    """Pinned memory to each card and back, small and large: latency, and the link's rate."""
    t = torches.torch()
    for index in range(t.cuda.device_count()):
        device = t.device("cuda", index)
        t.cuda.set_device(device)
        row: dict[str, Any] = {"gpu": index}
        for size, name in ((SMALL, "small"), (LARGE, "large")):
            host = t.arange(size // 4, dtype=t.int32).pin_memory()
            card = t.empty(size // 4, dtype=t.int32, device=device)
            back = t.zeros_like(host).pin_memory()
            down = torches.timed(lambda h=host, c=card: c.copy_(h, non_blocking=True), device, 10)  # type: ignore[misc]
            up = torches.timed(lambda c=card, b=back: b.copy_(c, non_blocking=True), device, 10)  # type: ignore[misc]
            torches.settle(device)
            row[f"right_{name}"] = bool(t.equal(host, back))
            row |= _rates("to_gpu", name, size, torches.spread(down)["us"])
            row |= _rates("to_host", name, size, torches.spread(up)["us"])
        emit("host", **row)


def peer_copies(emit: Emit) -> None:
    """Rung 2, and how fast: every ordered pair, written from one side and read on the other."""
    t = torches.torch()
    for i, j in _pairs(t.cuda.device_count()):
        row: dict[str, Any] = {"from": i, "to": j, "granted": bool(t.cuda.can_device_access_peer(i, j))}
        emit("peer_begin", **{"from": i, "to": j})
        there, here = t.device("cuda", j), t.device("cuda", i)
        for size, name in ((SMALL, "small"), (LARGE, "large")):
            source = _pattern(size, i, j, here)
            target = t.zeros(size // 4, dtype=t.int32, device=there)
            t.cuda.set_device(here)
            target.copy_(source)
            torches.settle(here)
            torches.settle(there)
            t.cuda.set_device(there)
            row[f"right_{name}"] = bool(t.equal(target, _pattern(size, i, j, there)))  # a kernel of the destination
            t.cuda.set_device(here)
            times = torches.timed(lambda s=source, g=target: g.copy_(s, non_blocking=True), here, 10)  # type: ignore[misc]
            row |= _rates("peer", name, size, torches.spread(times)["us"])
        emit("peer", **row)


def kernel_writes(rank: int, ranks: int, port: int, limit: float, emit: Emit) -> None:
    """Rung 3: NCCL's kernels send from each card to each other, and the destination compares."""
    device = torches.join(rank, ranks, port, limit)
    t = torches.torch()
    kind = t.int32
    for i, j in _pairs(ranks):
        if rank == i:
            t.distributed.send(_pattern(SMALL, i, j, device), j)
        elif rank == j:
            target = t.zeros(SMALL // 4, dtype=kind, device=device)
            t.distributed.recv(target, i)
            torches.settle(device)
            emit("write", **{"from": i, "to": j}, right=bool(t.equal(target, _pattern(SMALL, i, j, device))))
    torches.settle(device)
    t.distributed.barrier()
    t.distributed.destroy_process_group()


def _pattern(size: int, i: int, j: int, device: Any) -> Any:
    """Other numbers for each pair: what an earlier pair left behind is not taken for an arrival."""
    t = torches.torch()
    return (t.arange(size // 4, device=device) * 2654435761 % 1000003 + 1009 * i + j).to(t.int32)


def _rates(way: str, name: str, size: int, us: float) -> dict[str, float]:
    return {f"{way}_{name}_us": us, f"{way}_{name}_gb_s": round(size / us / 1e3, 3)}


def _pairs(count: int) -> list[tuple[int, int]]:
    return list(itertools.permutations(range(count), 2))
