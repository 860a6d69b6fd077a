"""`python -m bench.engine.compare [--json] [--rounds N] [--hosts N] [--growth]`: the engine beside its peers.

Boots a lab of its own and takes it down again. All tools get the same play on the same guest, in alternating order, as
whole processes; times are medians, and only their ratios mean anything: the machine is whatever it is today.

    ansible        ansible-core with pipelining and ControlPersist
    mitogen        the same with Mitogen's strategy
    pyinfra        pyinfra -y
    ssh_limit      `ssh host sh <` the questions that ours asked: nobody who asks them can be faster
    shell_script   from scratch: the same commands as one shell script by hand, over ssh
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from bench.engine import peers
from bench.engine.delay import delayed
from bench.engine.play import Play
from lab.guest import Guest
from lab.lab import Lab

ROOT = Path(__file__).parents[2]
# As on any machine where people work, Python keeps what it compiled, of all tools alike.
COMPILED = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(peers.CACHE / "compiled")}
ROUND_TRIP = 0.1  # seconds: long beside what a run varies by, so that the difference counts round trips

Host = Mapping[str, str]
Tool = Callable[[], float]


def timed(argv: Sequence[str], *, env: Mapping[str, str] | None = None, stdin: Path | None = None) -> float:
    """Seconds of a whole process. Raises with its last lines when it fails."""
    with ExitStack() as stack:
        source = stack.enter_context(stdin.open("rb")) if stdin else subprocess.DEVNULL
        began = time.perf_counter()
        done = subprocess.run(
            argv,
            cwd=ROOT,
            env={**os.environ, **COMPILED, **(env or {})},
            stdin=source,
            capture_output=True,
            check=False,
        )
        took = time.perf_counter() - began
    if done.returncode != 0:
        raise RuntimeError(f"{argv[0]} ended with {done.returncode}:\n{(done.stdout + done.stderr).decode()[-2000:]}")
    return took


class Bench:
    def __init__(self, guests: Sequence[Guest], folder: Path) -> None:
        self.folder = folder
        self.guests = guests
        self.hosts: list[Host] = [
            {
                "name": guest.name,
                "address": guest.address,
                "key": str(guest.keys / "id_ed25519"),
                "known_hosts": str(guest.keys / "known_hosts"),
            }
            for guest in guests
        ]

    def ours(self, hosts: Sequence[Host], play: Play, *options: str) -> float:
        return timed(self._ours(hosts, play, *options))

    def our_memory(self, hosts: Sequence[Host], play: Play) -> float:
        """The process's largest resident size, in MiB."""
        done = subprocess.run(self._ours(hosts, play), cwd=ROOT, capture_output=True, text=True, check=True)
        return float(re.findall(r"(\d+) MiB at most", done.stdout)[-1])

    def _ours(self, hosts: Sequence[Host], play: Play, *options: str) -> list[str]:
        targets = self.folder / "targets.json"
        targets.write_text(json.dumps(hosts))
        return [sys.executable, "-m", "bench.engine.ours", str(targets), "--copies", str(play.copies), *options]

    def peer(self, name: str, hosts: Sequence[Host], play: Play) -> float:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        if name == "pyinfra":
            argv, env = peers.pyinfra(hosts, play, folder)
        else:
            argv, env = peers.ansible(hosts, play, folder, mitogen=name == "mitogen")
        took = timed(argv, env=env)
        for socket in folder.glob("cm-*"):  # each run is a whole one: its connection, too
            subprocess.run(["ssh", "-o", f"ControlPath={socket}", "-O", "exit", "x"], capture_output=True, check=False)
        return took

    def ssh(self, hosts: Sequence[Host], script: Path) -> float:
        """Side by side, one plain ssh a host."""
        argv = [
            f"ssh -F /dev/null -p {host.get('port', 22)} -i {host['key']} -o UserKnownHostsFile={host['known_hosts']}"
            f" root@{host['address']} sh <{script} >/dev/null &"
            for host in hosts
        ]
        return timed(["sh", "-c", "\n".join([*argv, "wait"])])

    def reset(self, play: Play) -> None:
        self.guests[0].run(play.reset, timeout=300)


def rounds(tools: Mapping[str, Tool], count: int, before: Callable[[], object] = lambda: None) -> dict[str, float]:
    """Medians, of runs in alternating order."""
    seen: dict[str, list[float]] = {name: [] for name in tools}
    for number in range(count):
        for name in list(tools) if number % 2 == 0 else reversed(list(tools)):
            before()
            seen[name].append(tools[name]())
            print(f"  {name} {seen[name][-1]:.2f} s", file=sys.stderr, flush=True)
    return {name: statistics.median(times) for name, times in seen.items()}


def converged(bench: Bench, count: int) -> tuple[dict[str, float], dict[str, float]]:
    """One host, nothing to do."""
    play, one = Play(), bench.hosts[:1]
    bench.ours(one, play)
    script = bench.folder / "questions.sh"
    bench.ours(one, play, "--record", str(script))
    tools: dict[str, Tool] = {"ours": lambda: bench.ours(one, play), "ssh_limit": lambda: bench.ssh(one, script)}
    for name in ("pyinfra", "mitogen", "ansible"):
        tools[name] = lambda name=name: bench.peer(name, one, play)  # type: ignore[misc]
        bench.peer(name, one, play)  # a first run may still change what the others did another way
    times = rounds(tools, count)
    return times, {
        "ansible_pipelining": times["ansible"] / times["ours"],
        "mitogen": times["mitogen"] / times["ours"],
        "pyinfra": times["pyinfra"] / times["ours"],
        "ssh_limit": times["ours"] / times["ssh_limit"],
    }


def from_scratch(bench: Bench, count: int) -> tuple[dict[str, float], dict[str, float]]:
    play, one = Play(), bench.hosts[:1]
    script = bench.folder / "by-hand.sh"
    script.write_text(play.shell_script)
    tools: dict[str, Tool] = {"ours": lambda: bench.ours(one, play), "shell_script": lambda: bench.ssh(one, script)}
    times = rounds(tools, count, before=lambda: bench.reset(play))
    return times, {"shell_script_first_run": times["ours"] / times["shell_script"]}


def far_away(bench: Bench, count: int) -> tuple[dict[str, float], dict[str, float]]:
    """A far link, in round trips that it adds: to ours, and to `ssh host true`, which connects, opens a channel
    and has one command answered, as we do before the two exchanges of a converged run.
    """
    play, near = Play(), bench.hosts[0]
    bench.ours([near], play)
    nothing, known = bench.folder / "nothing.sh", bench.folder / "known_hosts_far"
    nothing.write_text("true\n")
    with delayed((near["address"], 22), ROUND_TRIP / 2) as port:
        text = Path(near["known_hosts"]).read_text()
        known.write_text(text.replace(f"{near['address']} ", f"[127.0.0.1]:{port} "))
        far = {**near, "address": "127.0.0.1", "port": port, "known_hosts": str(known)}
        tools: dict[str, Tool] = {
            "ours": lambda: bench.ours([near], play),
            "ours, far": lambda: bench.ours([far], play),  # type: ignore[list-item]
            "ssh": lambda: bench.ssh([near], nothing),
            "ssh, far": lambda: bench.ssh([far], nothing),  # type: ignore[list-item]
        }
        times = rounds(tools, count)
    return times, {
        "round_trips": (times["ours, far"] - times["ours"]) / ROUND_TRIP,
        "round_trips_of_ssh_true": (times["ssh, far"] - times["ssh"]) / ROUND_TRIP,
    }


def growth(bench: Bench, count: int) -> tuple[dict[str, float], dict[str, float]]:
    one = bench.hosts[:1]
    bench.ours(one, Play(10))
    bench.ours(one, Play())
    tools: dict[str, Tool] = {
        "60 steps": lambda: bench.ours(one, Play()),
        "591 steps": lambda: bench.ours(one, Play(10)),
    }
    times = rounds(tools, count)
    return times, {"growth_10x": times["591 steps"] / times["60 steps"]}


def fleet(bench: Bench, count: int, *, slow: bool) -> tuple[dict[str, float], dict[str, float]]:
    play, script = Play(), bench.folder / "questions.sh"
    bench.ours(bench.hosts, play)
    bench.ours(bench.hosts[:1], play, "--record", str(script))
    tools: dict[str, Tool] = {
        "ours": lambda: bench.ours(bench.hosts, play),
        "ssh": lambda: bench.ssh(bench.hosts, script),
        "pyinfra": lambda: bench.peer("pyinfra", bench.hosts, play),
    }
    times = rounds(tools, count)
    more = len(bench.hosts) - 1
    ratios = {
        "fleet_ssh_limit": times["ours"] / times["ssh"],
        "fleet_pyinfra": times["pyinfra"] / times["ours"],
        "fleet_mib_a_host": (bench.our_memory(bench.hosts, play) - bench.our_memory(bench.hosts[:1], play)) / more,
    }
    if slow:  # once, with ours beside it: it takes many minutes
        beside = rounds({"ansible": lambda: bench.peer("ansible", bench.hosts, play), "ours": tools["ours"]}, 1)
        times |= {"ansible": beside["ansible"], "ours beside it": beside["ours"]}
        ratios["fleet_ansible"] = beside["ansible"] / beside["ours"]
    return times, ratios


def the_list(bench: Bench, count: int) -> tuple[dict[str, float], dict[str, float]]:
    """`invoke --list` against Invoke's own on an empty tasks file."""
    empty = bench.folder / "empty"
    empty.mkdir()
    (empty / "tasks.py").write_text("from invoke import task\n@task\ndef nothing(c):\n    'Nothing.'\n")
    invoke = str(Path(sys.executable).with_name("invoke"))
    tools: dict[str, Tool] = {
        "ours": lambda: timed([invoke, "--search-root", str(ROOT), "--list"]),
        "empty": lambda: timed([invoke, "--search-root", str(empty), "--list"]),
    }
    times = rounds(tools, 3 * count)
    return times, {"invoke_list": times["ours"] / times["empty"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one last line with the ratios")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hosts", type=int, default=1, help="above 1: also this many hosts side by side")
    parser.add_argument("--only", default="", help="a regex over: converged, scratch, far, growth, list, fleet")
    parser.add_argument("--fleet-ansible", action="store_true", help="Ansible on the whole fleet, too (minutes)")
    chosen = parser.parse_args()
    parts: dict[str, Callable[[Bench], tuple[dict[str, float], dict[str, float]]]] = {
        "list": lambda bench: the_list(bench, chosen.rounds),
        "converged": lambda bench: converged(bench, chosen.rounds),
        "far": lambda bench: far_away(bench, chosen.rounds),
        "scratch": lambda bench: from_scratch(bench, chosen.rounds),
        "growth": lambda bench: growth(bench, chosen.rounds),
    }
    if chosen.hosts > 1:
        parts["fleet"] = lambda bench: fleet(bench, chosen.rounds, slow=chosen.fleet_ansible)
    lab = Lab.open(f"bench-{os.getpid()}")
    ratios: dict[str, float] = {}
    table: list[str] = []
    with tempfile.TemporaryDirectory() as folder, _down(lab):
        bench = Bench(lab.up(hosts=chosen.hosts), Path(folder))
        needy = bench.guests if chosen.fleet_ansible else bench.guests[:1]
        with ThreadPoolExecutor(8) as pool:  # what Ansible's apt module needs
            script = "apt-get -q update && apt-get -q -y install python3-apt"
            list(pool.map(lambda guest: guest.run(script, timeout=600), needy))
        for name, part in parts.items():
            if re.search(chosen.only, name):
                print(name, file=sys.stderr, flush=True)
                times, found = part(bench)
                ratios |= found
                table += [f"{name:<10} {tool:<14} {seconds:8.2f} s" for tool, seconds in times.items()]
                table += [f"{name:<10} {ratio:<24} {value:6.2f}" for ratio, value in found.items()]
    print("\n".join(table))
    if chosen.json:
        print(json.dumps({"ratios": {name: round(value, 2) for name, value in ratios.items()}}))
    return 0


def _down(lab: Lab) -> AbstractContextManager[object]:
    stack = ExitStack()
    stack.callback(lab.down)
    return stack


if __name__ == "__main__":
    sys.exit(main())
