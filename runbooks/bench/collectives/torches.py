"""The few things that are asked of torch, the same for GPUs and, where there is none, for a CPU."""

from __future__ import annotations

import importlib
import os
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

BATCHES = 10
GRAPH_CALLS = 10  # of one collective in a captured graph


def torch() -> Any:
    return importlib.import_module("torch")


def backend() -> str:
    """`nccl` where GPUs are seen. Raises RuntimeError for a torch that is none."""
    found = torch()
    if not hasattr(found, "distributed"):
        raise RuntimeError(f"this torch cannot compute: {getattr(found, '__doc__', None) or 'a stand-in'}")
    return "nccl" if found.cuda.is_available() else "gloo"


def join(rank: int, ranks: int, port: int, limit: float) -> Any:
    """Enter the process group over loopback; returns the device of this rank."""
    t = torch()
    name = backend()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    device = t.device("cuda", rank) if name == "nccl" else t.device("cpu")
    if name == "nccl":
        t.cuda.set_device(device)
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        t.set_num_threads(1)
    t.distributed.init_process_group(
        name, rank=rank, world_size=ranks, timeout=timedelta(seconds=limit), init_method="env://"
    )
    return device


def settle(device: Any) -> None:
    if device.type == "cuda":
        torch().cuda.synchronize(device)


def timed(call: Callable[[], Any], device: Any, calls: int, before: Callable[[], Any] | None = None) -> list[float]:
    """Microseconds a call, of BATCHES batches of `calls` calls; on a GPU by its own clock, launches pipelined."""
    found = []
    for _ in range(BATCHES):
        if before:
            before()
        settle(device)
        if device.type == "cuda":
            t = torch()
            begin, end = t.cuda.Event(enable_timing=True), t.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(calls):
                call()
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end) * 1e3 / calls)
        else:
            since = time.perf_counter_ns()
            for _ in range(calls):
                call()
            found.append((time.perf_counter_ns() - since) / 1e3 / calls)
    return found


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest, rounded to a nanosecond."""
    return {
        "us": round(statistics.median(values), 3),
        "us_low": round(min(values), 3),
        "us_high": round(max(values), 3),
    }


def captured(call: Callable[[], Any], device: Any, calls: int) -> Any:
    """A CUDA graph of `calls` calls, warmed up on a side stream as torch asks for."""
    t = torch()
    side = t.cuda.Stream(device)
    side.wait_stream(t.cuda.current_stream(device))
    with t.cuda.stream(side):
        for _ in range(3):
            call()
    t.cuda.current_stream(device).wait_stream(side)
    settle(device)
    graph = t.cuda.CUDAGraph()
    with t.cuda.graph(graph, capture_error_mode="thread_local"):  # NCCL's watchdog thread asks CUDA things meanwhile
        for _ in range(calls):
            call()
    return graph
