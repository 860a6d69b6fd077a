"""`./dev demo`: the whole road on a fresh host, by the very commands that people type."""

from __future__ import annotations

import argparse
import itertools
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lab.guest import Bind
from lab.lab import Lab
from lab.machine import why_no_guests
from lab.proxmox.inventory import write_inventory
from lab.show import Progress, table
from runbooks.engine.errors import RunbookError

INVOKE = Path(sys.executable).with_name("invoke")
RESULTS = Path("results")


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    if options.report_only:
        return _type("bench.report")
    reason = why_no_guests()
    if reason:
        print(f"demo: {reason}; what runs without it: ./dev demo --report-only", file=sys.stderr)
        return 2
    lab = _free_lab()
    try:
        return _road(lab, options)
    except RunbookError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    finally:
        if not options.keep:
            lab.down()


def _free_lab() -> Lab:
    """A lab of our own: another demo that is up, kept for a look, is somebody's."""
    for number in itertools.count(1):
        lab = Lab.open("demo" if number == 1 else f"demo-{number}")
        if lab.exists and lab.dead:
            lab.down()
        if not lab.exists:
            return lab
    raise AssertionError("unreachable")


def _road(lab: Lab, options: argparse.Namespace) -> int:
    begun = time.monotonic()
    path = lab.inventory
    binds: list[Bind] = []
    with Progress() as progress:
        if options.engine == "sglang":
            from lab import engine  # gigabytes of the real thing, made once

            binds = engine.prepare(progress).binds
            path = lab.folder / engine.INVENTORY.name
        lab.up(0, progress=progress)
        lab.start_proxmox(binds=binds)
        path = write_inventory(lab, path)
    table(lab)
    print("the host is not there yet: `invoke provision` makes it, a VM with eight cards, through the API of that node")
    inventory = ["--inventory", str(path)]
    for command in (
        ["provision", *inventory, "--yes"],
        ["deploy", "--profile", "final", *inventory, "--yes", "--quick"],
        ["health", *inventory],
        ["canary", *inventory],
        ["bench", *inventory],
    ):
        code = _type(*command)
        if code != 0:
            print(
                f"\ndemo: invoke {command[0]} ended with {code}"
                + ("" if options.keep else "; with --keep the host stays up for a look"),
                file=sys.stderr,
            )
            return code
    _say_what_next(lab, path, options.keep, time.monotonic() - begun)
    return 0


def _type(*words: str) -> int:
    """Run `invoke` as people do, shown as they would type it."""
    print(f"\n{_bold(f'$ invoke {shlex.join(words)}')}", flush=True)
    begun = time.monotonic()
    code = subprocess.run([str(INVOKE), *words], check=False).returncode
    print(f"({time.monotonic() - begun:.1f} s)", flush=True)
    return code


def _bold(text: str) -> str:
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() else text


def _say_what_next(lab: Lab, inventory: Path, kept: bool, seconds: float) -> None:
    reports = sorted(RESULTS.glob("**/report.html"), key=lambda path: path.stat().st_mtime)
    print(f"\n{_bold(f'done in {seconds:.0f} s')}")
    if reports:
        print(f"the report: {reports[-1]}  (one file; open it in a browser)")
    again = f"--inventory {inventory}"
    tries = [
        (f"invoke provision --check --diff {again}", "nothing is left to change"),
        (f"invoke deploy --profile baseline {again} --yes", "another set of flags, gated and recorded"),
        (f"invoke rollback {again} --yes", "and back"),
        (f"invoke vm.status {again}", "the virtual machine, as Proxmox sees it"),
        (f"invoke lab.shell{lab.option}", "look around on the host"),
        (f"invoke lab.down{lab.option}", "when you are done"),
    ]
    print("what to try next:" if kept else "the host is gone again; ./dev demo --keep leaves it up, to try:")
    width = max(len(command) for command, _ in tries)
    if not shutil.which("invoke"):
        print(f"  source {_short(INVOKE.with_name('activate'))}")
    for command, why in tries:
        print(f"  {command:{width}}  {why}")
    print("and without a host: invoke runbook lists the on-call pages")


def _short(path: Path) -> str:
    """As it is typed where people stand: the demo begins in the checkout."""
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev demo", description="The whole road on a fresh lab host.")
    parser.add_argument(
        "--engine", choices=["sim", "sglang"], default="sim", help="simulated, or the real one on the CPU"
    )
    parser.add_argument("--keep", action="store_true", help="leave the host up afterwards")
    parser.add_argument("--report-only", action="store_true", help="the bundled example results, without a host")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
