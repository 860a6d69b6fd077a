"""`python -m bench.clients.compare [--json] [--rounds N] [--only NAME] [--traps | --trap NAME]`: clients side by side.

All drive the same server of this machine (pacer.py): 64 streams, a chunk a stream each 20 ms. Each runs as it is run by
people, as a whole process, once with few and once with many requests; what the second needs more is divided by the
chunks that it read more, so that neither starts nor imports count. Of several rounds the cheapest counts, for every
client: what else runs on the machine only adds to it (caches, a core's other half), up to twice as much.

    cpu_us_per_chunk   CPU while the load runs. Ours: of the measuring loop, which is all that runs then; it reads and
                       counts its log afterwards, which `cpu_us_per_chunk_with_analysis` includes
    ttft_ms, tpot_ms   as each client reports them: the truth is the server's
    others_cpu_pct     what others used of this machine before each round, at most: over 10, look again when it is quiet

`--traps` instead: what each client says of the ways in which lab/traps.py misleads it (`--trap NAME`: of one way).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.clients.peers import ROOT, Client, Ours, Told, Work, available
from bench.clients.traps import COUNTED, SPOILED, table

STREAMS, STEP_MS, TOKENS = 64, 20, 100
FEW, MANY = 64, 384  # requests
BUSY = 10.0  # per cent of all cores that others may use
LIMIT = 240.0  # seconds of one run: some clients take one to start


@contextmanager
def served(program: Path, step: float) -> Iterator[str]:
    """The address of a server that takes so many milliseconds a step."""
    words = [sys.executable, str(program), "--step", str(step)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def run(client: Client, work: Work, limit: float = LIMIT) -> tuple[float, Told | str]:
    """Seconds of CPU of the whole process with its children, and what it says; a text when it says nothing."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        argv = client.argv(work, out)
        before = _cpu()
        environment = {**os.environ, **client.environment()}
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(argv, env=environment, cwd=folder, text=True, process_group=0, **pipes) as process:
            try:
                printed, errors = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # with all that it started
                process.communicate()
                return _cpu() - before, f"hangs (ended after {limit:.0f} s)"
        used = _cpu() - before
        try:
            return used, client.read(out, printed)
        except (OSError, ValueError, LookupError, StopIteration, TypeError) as error:
            last = ["", *(errors + printed).strip().splitlines()][-1][:80]
            return used, f"ended with {process.returncode}, no result ({type(error).__name__}: {last})"


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cost(client: Client, work: Work) -> dict[str, float] | str:
    """One round of one client."""
    chunks = (MANY - FEW) * (TOKENS + 2)  # the role and the ending are chunks, too
    first, few = run(client, replace(work, requests=FEW))
    second, many = run(client, replace(work, requests=MANY))
    if isinstance(few, str) or isinstance(many, str):
        return many if isinstance(many, str) else str(few)
    found = {"slope": (second - first) / chunks * 1e6, "ttft_ms": many.ttft_ms or 0.0, "tpot_ms": many.tpot_ms or 0.0}
    return found | {"tok_s": many.tok_s or 0.0, "tokens": many.tokens or 0.0}


def loop(work: Work) -> float:
    """Microseconds of CPU a chunk of our measuring loop, by its own account of the window."""
    with tempfile.TemporaryDirectory() as folder:
        client = Ours()
        words = client.argv(replace(work, requests=10**6), Path(folder))
        words[words.index("--window") + 1] = "10"
        done = subprocess.run(
            words, env={**os.environ, **client.environment()}, capture_output=True, text=True, check=True
        )
    point = next(e for e in map(json.loads, done.stdout.splitlines()) if e["event"] == "point")
    return float(point["client"]["cpu_us_per_read"])


def others() -> float:
    """Per cent of all cores that others use, over a second in which nothing of ours runs."""
    busy, all_ = _ticks()
    time.sleep(1.0)
    later, more = _ticks()
    return 100 * (later - busy) / max(1, more - all_)


def _ticks() -> tuple[int, int]:
    """Busy ones, and all, since the machine began."""
    told = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(told) - told[3] - told[4], sum(told)


def measured(clients: Sequence[Client], tokenizer: Path, rounds: int) -> dict[str, Any]:
    costs: dict[str, list[dict[str, float]]] = {}
    ours: list[float] = []
    busy: list[float] = []
    with served(ROOT / "bench" / "clients" / "pacer.py", STEP_MS) as url:
        work = Work(url, MANY, STREAMS, 64, TOKENS, tokenizer)
        for number in range(rounds):
            busy.append(others())
            for client in clients[:: -1 if number % 2 else 1]:
                found = cost(client, work)
                if isinstance(found, str):
                    print(f"round {number + 1}  {client.name:<22} {found}", flush=True)
                    continue
                costs.setdefault(client.name, []).append(found)
                if isinstance(client, Ours):
                    ours.append(loop(work))
                said = f"TTFT {found['ttft_ms']:6.1f} ms  TPOT {found['tpot_ms']:5.2f} ms  {found['tok_s']:6.0f} tok/s"
                more = f", of the loop {ours[-1]:5.1f}" if isinstance(client, Ours) else ""
                print(
                    f"round {number + 1}  {client.name:<22} {found['slope']:6.1f} us a chunk{more}  {said}", flush=True
                )
    whole = {name: round(min(one["slope"] for one in each), 1) for name, each in costs.items()}
    cpu = whole | ({Ours.name: round(min(ours), 2)} if ours else {})
    result: dict[str, Any] = {"cpu_us_per_chunk": cpu, "cpu_us_per_chunk_with_analysis": whole.get(Ours.name)}
    for name in ("ttft_ms", "tpot_ms", "tok_s"):
        result[name] = {client: round(statistics.median(o[name] for o in each), 2) for client, each in costs.items()}
    result["others_cpu_pct"] = round(max(busy, default=0.0), 1)
    if result["others_cpu_pct"] > BUSY:
        print(f"others use {result['others_cpu_pct']:.0f} % of this machine: the costs are too high, look again")
    peers = [value for name, value in cpu.items() if name != Ours.name]
    if peers and ours:
        result["best_peer_over_ours"] = round(min(peers) / cpu[Ours.name], 2)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", action="append", default=[], help="a client's name; repeatable")
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
            found = table(
                clients, lambda client, work, limit: run(client, work, limit)[1], url, tokenizer, options.trap
            )
        right = {name: sum(said.startswith("right") for said in each.values()) for name, each in found.items()}
        played = max((len(each) for each in found.values()), default=0)
        result: dict[str, Any] = {"traps": found, "right": right, "of": played}
        for name, count in right.items():
            print(f"{name:<22} right on {count} of {result['of']}")
    else:
        result = measured(clients, tokenizer, options.rounds)
        for name, value in sorted(result["cpu_us_per_chunk"].items(), key=lambda item: item[1]):
            print(f"{name:<22} {value:7.1f} us CPU a chunk")
    if options.json:
        print(json.dumps(result | {"seconds": round(time.monotonic() - began)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
