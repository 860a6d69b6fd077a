"""`python -m bench.loadgen.compare [--json]`: what one SSE chunk costs a client, ours beside two well-known loops.

Each reads the same null server (64 streams, one chunk a stream each 20 ms), one after the other, several rounds in
alternating order, so that ratios are of one run on one machine. CPU is the process's own, imports excluded. Clients
that are not installed are left out: `pip install aiohttp httpx` for all of them.

    aiohttp   `content` line by line, json.loads a chunk: the loop of SGLang's and vLLM's benchmarks
    httpx     aiter_lines, json.loads a chunk: the loop of guidellm
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from runbooks.bench.loadgen.nullserver import judge, start
from runbooks.bench.loadgen.point import null_run

STREAMS, RATE, SECONDS = 64, 3200.0, 2.0

Counts = tuple[int, float]  # chunks, microseconds of CPU for each


def ours(port: int) -> Counts:
    with tempfile.TemporaryDirectory() as folder:
        told = judge(null_run(STREAMS, port, Path(folder)), STREAMS, RATE, SECONDS)
    return told["caught"], told["cpu_us_per_chunk"]


def through_aiohttp(port: int) -> Counts:
    aiohttp = import_module("aiohttp")  # not one of our dependencies

    async def streams(url: str) -> int:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, read_bufsize=10 * 1024**2) as session:

            async def one() -> int:
                seen = 0
                async with session.post(url, json={}) as answer:
                    async for line in answer.content:
                        seen += _parse(line.strip())
                return seen

            return sum(await asyncio.gather(*(one() for _ in range(STREAMS))))

    return in_child(streams, port)


def through_httpx(port: int) -> Counts:
    httpx = import_module("httpx")

    async def streams(url: str) -> int:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(limits=limits, timeout=30) as client:

            async def one() -> int:
                seen = 0
                async with client.stream("POST", url, json={}) as answer:
                    async for line in answer.aiter_lines():
                        seen += _parse(line.encode())
                return seen

            return sum(await asyncio.gather(*(one() for _ in range(STREAMS))))

    return in_child(streams, port)


def _parse(line: bytes) -> int:
    if not line.startswith(b"data: "):
        return 0
    json.loads(line[6:])
    time.perf_counter()
    return 1


def in_child(streams: Callable[[str], Awaitable[int]], port: int) -> Counts:
    """CPU of a process of its own, as for ours."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            begin = time.process_time()
            seen = asyncio.run(_awaited(streams(f"http://127.0.0.1:{port}/v1/chat/completions")))
            os.write(writer, json.dumps([seen, (time.process_time() - begin) / max(1, seen) * 1e6]).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as answer:
        seen, cost = json.loads(answer.read())
    return seen, cost


async def _awaited(work: Awaitable[int]) -> int:
    return await work


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one line of JSON at the end")
    options = parser.parse_args()
    clients: dict[str, Callable[[int], Counts]] = {"runbooks": ours}
    for name, client in (("aiohttp", through_aiohttp), ("httpx", through_httpx)):
        if find_spec(name):
            clients[name] = client
    costs: dict[str, list[float]] = {name: [] for name in clients}
    for round_number in range(options.rounds):
        for name in list(clients)[:: -1 if round_number % 2 else 1]:
            port, server = start(STREAMS, RATE, SECONDS)
            try:
                seen, cost = clients[name](port)
            finally:
                os.kill(server, signal.SIGKILL)
                os.waitpid(server, 0)
            costs[name].append(cost)
            print(f"round {round_number + 1}  {name:<10} {seen:>6} chunks  {cost:6.1f} us CPU a chunk", flush=True)
    middle = {name: statistics.median(values) for name, values in costs.items()}
    for name, cost in middle.items():
        print(f"{name:<10} {cost:6.1f} us  {cost / middle['runbooks']:5.1f} x ours")
    if options.json:
        result: dict[str, Any] = {"cpu_us_per_chunk": {name: round(cost, 2) for name, cost in middle.items()}}
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
