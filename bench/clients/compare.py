"""`python -m bench.clients.compare [--json] [--rounds N] [--only NAME] [--traps | --trap NAME]`: clients side by side.

All drive the same server of this machine (pacer.py): N streams, a chunk a stream each 20 ms. Each runs as it is run by
people, as a whole process, which is watched from outside, all its children with it: how much CPU it used between the
moments at which the server had sent a tenth and nine tenths of all chunks. Neither its start nor its end count, which
take seconds. Of several rounds the cheapest counts, for every client: what else runs on the machine only adds to it.

Twice: with 64 streams, where every client has time to spare (and each chunk finds it asleep, its caches cold: most of
ours is then the kernel's), and with 256, where what a client costs decides what it measures. The latter is the result.

    cpu_us_per_chunk   CPU while the load runs, by the chunks that the server sent meanwhile
    cpu_s_after        seconds of CPU from the last tenth of the load to the end: counting what was logged, a report
    ttft_late_ms       how much longer a first token took by the client's account than by the server's own clock
    ttft_ms, tpot_ms   as each client reports them; a chunk comes every 20 ms
    others_cpu_pct     what others used of this machine before each round, at most: over 10, look again when it is quiet

`--traps` instead: what each client says of the ways in which lab/traps.py misleads it (`--trap NAME`: of one way).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.clients.peers import ROOT, Client, Ours, Told, Work, available
from bench.clients.traps import COUNTED, SPOILED, table
from bench.clients.watch import Cost, Watch, others

STREAMS, STEP_MS, TOKENS = (64, 256), 20, 100
TURNS = 8  # requests of each stream, of 2 s each
BUSY = 10.0  # per cent of all cores that others may use
LIMIT = 240.0  # seconds of one run: some clients take one to start


@contextmanager
def served(program: Path, step: float, *options: str) -> Iterator[str]:
    """The address of a server that takes so many milliseconds a step."""
    words = [sys.executable, str(program), "--step", str(step), *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def run(
    client: Client, work: Work, limit: float = LIMIT, watch: Callable[[int], object] = lambda _: None
) -> Told | str:
    """What a client says, run as a whole process; a text when it says nothing. `watch` gets its process group."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        argv = client.argv(work, out)
        environment = {**os.environ, **client.environment()}
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(argv, env=environment, cwd=folder, text=True, process_group=0, **pipes) as process:
            watch(process.pid)
            try:
                printed, errors = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # with all that it started
                process.communicate()
                return f"hangs (ended after {limit:.0f} s)"
        try:
            return client.read(out, printed)
        except (OSError, ValueError, LookupError, StopIteration, TypeError) as error:
            last = ["", *(errors + printed).strip().splitlines()][-1][:80]
            return f"ended with {process.returncode}, no result ({type(error).__name__}: {last})"


def measured(clients: Sequence[Client], tokenizer: Path, rounds: int, streams: Sequence[int]) -> dict[str, Any]:
    """Of each number of streams; the last one's is the result, with all of them in it."""
    found: dict[str, dict[str, Any]] = {}
    for count in streams:
        found[str(count)] = _measured(clients, tokenizer, rounds, count)
        for name, value in sorted(found[str(count)]["cpu_us_per_chunk"].items(), key=lambda item: item[1]):
            late = found[str(count)]["ttft_late_ms"][name]
            print(f"{count:4} streams  {name:<22} {value:7.1f} us CPU a chunk, TTFT off by {late:+7.1f} ms", flush=True)
    return {"streams": streams[-1], **found[str(streams[-1])], "by_streams": found}


def _measured(clients: Sequence[Client], tokenizer: Path, rounds: int, streams: int) -> dict[str, Any]:
    costs: dict[str, list[tuple[Cost, Told]]] = {}
    busy: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        count = Path(folder) / "count"
        with served(ROOT / "bench" / "clients" / "pacer.py", STEP_MS, "--count", str(count)) as url:
            work = Work(url, TURNS * streams, streams, 64, TOKENS, tokenizer)
            for number in range(rounds):
                busy.append(others())
                for client in clients[:: -1 if number % 2 else 1]:
                    watch = Watch(count)
                    told = run(client, work, watch=watch)
                    said = told
                    if isinstance(told, Told):
                        costs.setdefault(client.name, []).append((watch.cost(), told))
                        said = line(*costs[client.name][-1])
                    print(f"round {number + 1}  {client.name:<22} {said}", flush=True)
    return summary(costs, max(busy, default=0.0))


def line(cost: Cost, told: Told) -> str:
    said = f"CPU {cost.a_chunk:6.2f} us a chunk, {cost.after:5.2f} s afterwards  TTFT {told.ttft_ms or 0:6.1f} ms"
    said += f", by the server {cost.ttft_ms:5.1f}"
    return f"{said}  TPOT {told.tpot_ms or 0:5.2f} ms  {told.tok_s or 0:6.0f} tok/s"


def summary(costs: dict[str, list[tuple[Cost, Told]]], busy: float) -> dict[str, Any]:
    cpu = {name: round(min(cost.a_chunk for cost, _ in each), 2) for name, each in costs.items()}
    result: dict[str, Any] = {"cpu_us_per_chunk": cpu}

    def of(of_one: Callable[[Cost, Told], float]) -> dict[str, float]:
        return {name: round(statistics.median(of_one(*one) for one in each), 2) for name, each in costs.items()}

    result["cpu_s_after"] = of(lambda cost, told: cost.after)
    result["ttft_late_ms"] = of(lambda cost, told: (told.ttft_ms or 0.0) - cost.ttft_ms)
    result["ttft_ms"] = of(lambda cost, told: told.ttft_ms or 0.0)
    result["tpot_ms"] = of(lambda cost, told: told.tpot_ms or 0.0)
    result["tok_s"] = of(lambda cost, told: told.tok_s or 0.0)
    result["others_cpu_pct"] = round(busy, 1)
    if busy > BUSY:
        print(f"others use {busy:.0f} % of this machine: the costs are too high, look again")
    peers = [value for name, value in cpu.items() if name != Ours.name]
    if peers and Ours.name in cpu:
        result["best_peer_over_ours"] = round(min(peers) / cpu[Ours.name], 2)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", action="append", default=[], help="a client's name; repeatable")
    parser.add_argument("--streams", type=int, action="append", help="how many at once; repeatable")
    parser.add_argument("--traps", action="store_true", help="the table of traps instead (minutes)")
    parser.add_argument(
        "--trap", action="append", default=[], choices=sorted({*COUNTED, *SPOILED} - {""}), metavar="NAME"
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON at the end")
    options = parser.parse_args()
    clients, tokenizer = available(options.only)
    began = time.monotonic()
    if options.traps or options.trap:
        with served(ROOT / "lab" / "traps.py", 5.0) as url:
            found = table(clients, run, url, tokenizer, options.trap)
        right = {name: sum(said.startswith("right") for said in each.values()) for name, each in found.items()}
        played = max((len(each) for each in found.values()), default=0)
        result: dict[str, Any] = {"traps": found, "right": right, "of": played}
        for name, count in right.items():
            print(f"{name:<22} right on {count} of {result['of']}")
    else:
        result = measured(clients, tokenizer, options.rounds, options.streams or STREAMS)
    if options.json:
        print(json.dumps(result | {"seconds": round(time.monotonic() - began)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
