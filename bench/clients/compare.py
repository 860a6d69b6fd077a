"""`python -m bench.clients.compare [--json] [--rounds N] [--only NAME] [--traps | --trap NAME]`: clients side by side.

All drive the same server of this machine (pacer.py): 64 streams, a chunk a stream each 20 ms. Each runs as it is run by
people, as a whole process, which is watched from outside, all its children with it: how much CPU it used between the
moments at which the server had sent a tenth and nine tenths of all chunks. Neither its start nor its end count, which
take seconds. Of several rounds the cheapest counts, for every client: what else runs on the machine only adds to it.

    cpu_us_per_chunk   CPU while the load runs, by the chunks that the server sent meanwhile
    cpu_s_after        seconds of CPU from the last tenth of the load to the end: counting what was logged, a report
    ttft_ms, tpot_ms   as each client reports them: the truth is the server's
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
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.clients.peers import ROOT, Client, Ours, Told, Work, available
from bench.clients.traps import COUNTED, SPOILED, table

STREAMS, STEP_MS, TOKENS = 64, 20, 100
REQUESTS = 640
EVERY = 0.2  # seconds between two looks
BUSY = 10.0  # per cent of all cores that others may use
TICKS = os.sysconf("SC_CLK_TCK")
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


class Watch:
    """Looks at a process group and at the server's count while a client runs."""

    def __init__(self, count: Path) -> None:
        self.count = count
        self.seen: list[tuple[int, float]] = []  # chunks that the server sent, seconds of CPU that the client used

    def __call__(self, group: int) -> None:
        threading.Thread(target=self._look, args=(group,), daemon=True).start()

    def _look(self, group: int) -> None:
        while (used := used_by(group)) is not None:
            self.seen.append((int.from_bytes(self.count.read_bytes(), "little"), used))
            time.sleep(EVERY)

    def cost(self) -> Cost:
        """Raises ValueError for a load that was over between two looks."""
        first, last = self.seen[0][0], max(sent for sent, _ in self.seen)
        tenth = (last - first) / 10
        within = [one for one in self.seen if first + tenth <= one[0] <= last - tenth]
        if len(within) < 2 or within[0][0] == within[-1][0]:
            raise ValueError("too short a load to look at")
        (begun, before), (ended, after) = within[0], within[-1]
        return Cost((after - before) / (ended - begun) * 1e6, self.seen[-1][1] - after)


@dataclass(frozen=True)
class Cost:
    """Of one client: microseconds of CPU a chunk while the load runs, and seconds of CPU from then to its end."""

    a_chunk: float
    after: float


def used_by(group: int) -> float | None:
    """Seconds of CPU of all processes of a group and of those that they waited for; None when none is left."""
    used: float | None = None
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z":
                of_children = (int(fields[13]) + int(fields[14])) / TICKS
                used = (used or 0.0) + of_children + time.clock_gettime(_clock(int(file.parent.name)))
        except OSError:  # it ended meanwhile
            continue
    return used


def _clock(pid: int) -> int:
    """The clock of all that a process used, to the nanosecond: what clock_getcpuclockid(3) gives."""
    return ~pid << 3 | 2


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
    costs: dict[str, list[tuple[Cost, Told]]] = {}
    busy: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        count = Path(folder) / "count"
        with served(ROOT / "bench" / "clients" / "pacer.py", STEP_MS, "--count", str(count)) as url:
            work = Work(url, REQUESTS, STREAMS, 64, TOKENS, tokenizer)
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
    said = f"CPU {cost.a_chunk:6.2f} us a chunk, {cost.after:5.2f} s afterwards"
    return f"{said}  TTFT {told.ttft_ms or 0:6.1f} ms  TPOT {told.tpot_ms or 0:5.2f} ms  {told.tok_s or 0:6.0f} tok/s"


def summary(costs: dict[str, list[tuple[Cost, Told]]], busy: float) -> dict[str, Any]:
    cpu = {name: round(min(cost.a_chunk for cost, _ in each), 2) for name, each in costs.items()}
    after = {name: round(min(cost.after for cost, _ in each), 2) for name, each in costs.items()}
    result: dict[str, Any] = {"cpu_us_per_chunk": cpu, "cpu_s_after": after}
    for name in ("ttft_ms", "tpot_ms", "tok_s"):
        told = {client: [getattr(said, name) or 0.0 for _, said in each] for client, each in costs.items()}
        result[name] = {client: round(statistics.median(each), 2) for client, each in told.items()}
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
        result = measured(clients, tokenizer, options.rounds)
        for name, value in sorted(result["cpu_us_per_chunk"].items(), key=lambda item: item[1]):
            print(f"{name:<22} {value:7.1f} us CPU a chunk")
    if options.json:
        print(json.dumps(result | {"seconds": round(time.monotonic() - began)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
