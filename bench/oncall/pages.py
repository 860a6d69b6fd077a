"""Every block of every page, run against the fault that the page is about."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.oncall.faults import FAULTS, Fault
from bench.oncall.world import HOST, World
from runbooks import oncall
from runbooks.engine.errors import RunbookError
from runbooks.incident import command
from runbooks.oncall.blocks import FIRST, LAST, Block, blocks

GRACEFUL = (0, 1, 3)  # done, something is wrong (and said so), something would change
_BROKEN = re.compile(
    r"Traceback \(most recent|a bug in runbooks|there is no task|has no option|not found$|: not found|syntax error",
    re.M,
)
LONGEST = 420.0  # seconds for one line of a block


@dataclass(frozen=True)
class Ran:
    """One block. `code`: of its last command that failed, or 0; `ran`: it did what it is there for,
    whatever it found."""

    page: str
    block: str
    fault: str
    code: int
    ran: bool
    seconds: float
    said: str


def walk(world: World, names: Sequence[str] = ()) -> Iterator[Ran]:
    for page in names or oncall.names():
        fault = FAULTS[page]
        try:
            fault.make(world)
            looked = []
            for block in blocks(oncall.load(page).text):
                if act := fault.by_hand.get(block.name):
                    act(world)
                begun = time.monotonic()
                code, said = _run(world, block)
                ran = code in GRACEFUL and not _BROKEN.search(said)
                if block.section == LAST and fault.cured and block.name not in fault.beyond:
                    ran = ran and code in (0, 3)
                looked += [code] if block.section == FIRST and not block.changes else []
                yield Ran(page, block.name, fault.what, code, ran, time.monotonic() - begun, said)
            if looked and not any(looked) and not fault.quiet:
                yield Ran(page, "(first look)", fault.what, 0, False, 0.0, "it sees nothing of the fault")
        except (RunbookError, AssertionError) as error:
            yield Ran(page, "(the fault)", fault.what, 255, False, 0.0, str(error))
        finally:
            _mend(world, fault)


def _mend(world: World, fault: Fault) -> None:
    """A world that cannot be put right spoils the pages after it, and those tell; the pages before it stay told."""
    try:
        fault.mend(world)
    except (RunbookError, AssertionError) as error:
        print(f"       the world after '{fault.what}' is not right again: {str(error)[-300:]}", flush=True)


def _run(world: World, block: Block) -> tuple[int, str]:
    if block.on_host:
        return _on_host(world, block)
    worst, said = 0, ""
    env = {**os.environ, "RUNBOOKS_INVENTORY": str(world.inventory), "COLUMNS": "200"}
    for line in block.script.splitlines():
        words = command(line, [HOST], agreed=True)
        if not words:
            continue
        if "vm.console" in words:  # --hosts stands in the line itself
            words = words[: len(words) - 2]
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, env=env, cwd=world.lab.folder, timeout=LONGEST
        )
        worst, said = done.returncode or worst, said + done.stdout + done.stderr
    return worst, said


def _on_host(world: World, block: Block) -> tuple[int, str]:
    script = block.script.removesuffix("systemctl reboot")
    try:
        done = world.host.run(script, check=False, timeout=LONGEST)
        if script != block.script:
            world.host.reboot()
    except (RunbookError, subprocess.TimeoutExpired) as error:
        return 255, str(error)
    return done.returncode, done.stdout + done.stderr


def show(name: str = "", names: Sequence[str] = ()) -> int:
    from bench.oncall.world import world

    with world(name) as made:
        wrong = [one for one in told(made, names) if not one.ran]
    print("all ran" if not wrong else f"{len(wrong)} did not run")
    return int(bool(wrong))


def told(world: World, names: Sequence[str] = ()) -> Iterator[Ran]:
    """As `walk`, with a line printed for each block: why where its exit code is not 0, and all where it did not run."""
    for one in walk(world, names):
        mark = "ok   " if one.ran else "WRONG"
        why = f" | {_why(one.said)}" if one.code and one.ran else ""
        row = f"{mark}  {one.page:18} {one.block:12} exit {one.code}  {one.seconds:5.1f} s  {one.fault}{why}"
        print(row, flush=True)
        if not one.ran:
            print("\n".join(f"        | {line}" for line in one.said.splitlines()[-12:]), flush=True)
        yield one


def _why(said: str) -> str:
    """The first line that is marked as wrong, or else the last one that is no advice."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.strip().startswith("next:")]
    return next((line for line in lines if "✗" in line), lines[-1] if lines else "")[:100]
