"""The command line: what is asked, whether the driver answers at all, and the faults that it may show."""

from __future__ import annotations

import getopt
import os
import signal
import sys
import time
from collections.abc import Sequence

from .cards import MAX_LIMIT, MIN_LIMIT, Card, cards
from .machine import Machine
from .query import Refused, apps_csv, gpu_csv, report
from .screens import link_rates, listing, nvml_version, peers, table, topology, versions

NOT_LOADED = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)
_LONG = (
    *("query-gpu=", "query-compute-apps=", "format=", "id=", "list-gpus", "query", "display=", "version", "help"),
    *("persistence-mode=", "power-limit=", "xml-format", "loop-ms="),
)
_SHORT_OF_LONG = {"--id": "-i", "--list-gpus": "-L", "--query": "-q", "--display": "-d", "--help": "-h"}
_SHORT_OF_LONG |= {"--persistence-mode": "-pm", "--power-limit": "-pl"}


def main(argv: Sequence[str], machine: Machine | None = None) -> int:
    """Print what was asked for; the exit codes are the real ones."""
    machine = machine or Machine()
    if machine.faults().get("hang"):
        _hang()
    while True:
        try:
            pause = _pause(argv)
            text, rc = _answer(list(argv), machine), 0
        except Refused as refused:
            text, rc, pause = refused.text, refused.rc, None
        try:
            print(text, flush=True)
        except BrokenPipeError:  # the reader of the pipe had enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return rc
        if pause is None:
            return rc
        time.sleep(pause)


def _pause(argv: Sequence[str]) -> float | None:
    """Seconds between two answers of a command that goes on until it is ended."""
    if list(argv[:3]) == ["dmon", "-s", "t"]:
        return float(argv[argv.index("-d") + 1]) if "-d" in argv else 1.0
    options, _ = _parse(list(argv))
    return float(options["--loop-ms"]) / 1e3 if "--loop-ms" in options else None


def _hang() -> None:
    """As after Xid 79 or 119, when the process waits in the kernel: only an uncatchable kill ends it."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(3600)


def _answer(argv: list[str], machine: Machine) -> str:
    if argv[:3] == ["dmon", "-s", "t"]:
        return link_rates(_attached(machine))
    options, words = _parse(argv)
    if "-h" in options:
        return f"NVIDIA System Management Interface -- v{machine.library_version()} (lab stand-in: no GPU is read)"
    if "--version" in options:
        return versions(machine)
    every = _attached(machine)
    chosen, errors = _choose(every, options.get("-i"))
    answer = _topology(chosen, words[1:], machine) if words else _query(options, chosen, len(every), machine)
    return "\n".join([*errors, answer])


def _attached(machine: Machine) -> list[Card]:
    """The cards, or what NVML says when it cannot begin: no module, another module, the wrong flavour, no card."""
    loaded = machine.loaded_version()
    if loaded is None:
        raise Refused(NOT_LOADED, 9)
    library = machine.library_version()
    if loaded != library:
        version = nvml_version(library)
        raise Refused(
            f"Failed to initialize NVML: Driver/library version mismatch\nNVML library version: {version}", 18
        )
    found = cards(machine)
    if not found or "GPL" not in machine.loaded_license():  # the proprietary module does not drive a Blackwell
        raise Refused("No devices were found", 6)
    return found


def _choose(every: list[Card], selectors: str | None) -> tuple[list[Card], list[str]]:
    """The cards asked for that answer, and a line for each that has fallen off the bus."""
    wanted = every
    if selectors is not None:
        wanted = [card for selector in selectors.split(",") for card in every if card.named_by(selector.strip())]
    lines = [
        f"Unable to determine the device handle for GPU{card.index}: {card.bus_id[4:]}: Unknown Error"
        for card in wanted
        if card.lost
    ]
    alive = [card for card in wanted if not card.lost]
    if not alive:
        raise Refused("\n".join([*lines, "No devices were found"]), 6)
    return alive, lines


def _query(options: dict[str, str], chosen: list[Card], attached: int, machine: Machine) -> str:
    form = options.get("--format", "csv")
    if "--query-gpu" in options:
        return gpu_csv(chosen, options["--query-gpu"], form)
    if "--query-compute-apps" in options:
        return apps_csv(chosen, options["--query-compute-apps"], form)
    if "-q" in options:
        return report(chosen, attached, machine, options.get("-d"))
    if "-L" in options:
        if "-i" in options:
            raise Refused("ERROR: Option -i is not valid for this command. Please run 'nvidia-smi -h' for help.\n")
        return listing(chosen)
    if "-pm" in options:
        return _set_persistence(chosen, options["-pm"], machine)
    if "-pl" in options:
        return _set_power(chosen, options["-pl"], machine)
    return table(chosen, machine)


def _topology(chosen: list[Card], words: list[str], machine: Machine) -> str:
    match words:
        case ["-m"] | ["--matrix"]:
            return topology(chosen, os.cpu_count() or 1)
        case ["-p2p", "r" | "w" | "n" | "a" | "p"]:
            return peers(chosen, str(machine.faults().get("p2p", "NS")))
    raise Refused("ERROR: Option is not recognized. Please run 'nvidia-smi topo -h'.\n", 255)


def _set_persistence(chosen: list[Card], value: str, machine: Machine) -> str:
    word = {"1": "Enabled", "ENABLED": "Enabled", "0": "Disabled", "DISABLED": "Disabled"}.get(value.upper())
    if word is None:
        raise Refused(f"ERROR: Invalid persistence mode: {value}\n")
    lines = []
    for card in chosen:
        before = card.values["persistence_mode"]
        same = f"Persistence mode is already {word} for GPU {card.bus_id}."
        lines.append(same if before == word else f"{word} persistence mode for GPU {card.bus_id}.")
    machine.set(persistence=word == "Enabled")
    return "\n".join([*lines, "All done."])


def _set_power(chosen: list[Card], value: str, machine: Machine) -> str:
    watts = float(value)
    limits = dict(machine.settings().get("power_limit", {}))
    lines = []
    for card in chosen:
        if not MIN_LIMIT <= watts <= MAX_LIMIT:
            span = f"{MIN_LIMIT:.2f} W and {MAX_LIMIT:.2f} W for GPU {card.bus_id}"
            raise Refused(
                f"Provided power limit {watts:.2f} W is not a valid power limit which should be between {span}\n"
                "Terminating early due to previous errors."
            )
        limits[str(card.index)] = watts
        was = card.values["power.limit"]
        lines.append(f"Power limit for GPU {card.bus_id} was set to {watts:.2f} W from {was}.")
    machine.set(power_limit=limits)
    return "\n".join([*lines, "All done."])


def _parse(argv: list[str]) -> tuple[dict[str, str], list[str]]:
    """Options and, for `topo`, the words. nvidia-smi's two-letter options are folded before getopt sees them."""
    if argv[:1] == ["topo"]:
        return {}, argv
    folded = [
        {"-pm": "--persistence-mode", "-pl": "--power-limit", "-lms": "--loop-ms"}.get(word, word) for word in argv
    ]
    try:
        found, rest = getopt.gnu_getopt(folded, "Lqxhi:d:", _LONG)
    except getopt.GetoptError as error:
        dash = "--" if len(error.opt) > 1 else "-"
        raise Refused(
            f"ERROR: Option {dash}{error.opt} is not recognized. Please run 'nvidia-smi -h'.\n", 255
        ) from None
    if rest:
        raise Refused(f"ERROR: Option {rest[0]} is not recognized. Please run 'nvidia-smi -h'.\n", 255)
    options = {_SHORT_OF_LONG.get(name, name): value for name, value in found}
    if "-x" in options or "--xml-format" in options:
        raise Refused("The lab stand-in of nvidia-smi does not write XML.", 255)
    return options, []
