"""What people read: the bare table, the list, the versions, the topology."""

from __future__ import annotations

import time
from collections.abc import Sequence

from .cards import Card
from .machine import CUDA_OF_BRANCH, Machine

_RULE = "+-----------------------------------------+------------------------+----------------------+"
_WIDE = "+-----------------------------------------------------------------------------------------+"
_HEADS = (
    "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
    "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
    "|                                         |                        |               MIG M. |",
    "|=========================================+========================+======================|",
)
_PROCESS_HEADS = (
    "| Processes:                                                                              |",
    "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |",
    "|        ID   ID                                                               Usage      |",
    "|=========================================================================================|",
)
_UNDERLINED, _PLAIN = "\033[4m", "\033[0m"  # the real one writes these even into a pipe


def cuda_version(driver: str) -> str:
    return CUDA_OF_BRANCH.get(driver.split(".")[0], "13.0")


def nvml_version(driver: str) -> str:
    return ".".join(driver.split(".")[:2])


def listing(cards: Sequence[Card]) -> str:
    return "\n".join(f"GPU {card.index}: {card.values['name']} (UUID: {card.values['uuid']})" for card in cards)


def versions(machine: Machine) -> str:
    library = machine.library_version()
    driver = machine.loaded_version() or "Not loaded"
    return (
        f"NVIDIA-SMI version  : {library}\nNVML version        : {nvml_version(library)}\n"
        f"DRIVER version      : {driver}\nCUDA Version        : {cuda_version(library)}\n"
        "This is the lab stand-in of nvidia-smi: no GPU is read"
    )


def table(cards: Sequence[Card], machine: Machine) -> str:
    library = machine.library_version()
    head = (
        f"NVIDIA-SMI {library:<22} Driver Version: {machine.loaded_version():<14} CUDA Version: {cuda_version(library)}"
    )
    lines = [f"{time.ctime():<31}", _WIDE, f"| {head:<87} |", _RULE, *_HEADS]
    for card in cards:
        lines += [*_rows(card), _RULE]
    lines += ["", _WIDE, *_PROCESS_HEADS, *_process_rows(cards), _WIDE]
    return "\n".join(lines)


def _rows(card: Card) -> list[str]:
    value = card.values
    name = value["name"] if len(value["name"]) <= 27 else value["name"][:24] + "..."
    persistence = "On" if value["persistence_mode"] == "Enabled" else "Off"
    watts, limit = (f"{float(value[key].split()[0]):.0f}W" for key in ("power.draw", "power.limit"))
    used, total = (value[key].replace(" ", "") for key in ("memory.used", "memory.total"))
    errors = value["ecc.errors.uncorrected.volatile.total"] if value["ecc.mode.current"] == "Enabled" else "Off"
    power = f"{watts} / {limit:>5}"
    memory = f"{used:>10} / {total:>9}"
    use = value["utilization.gpu"].replace(" ", "")
    heat = f"{value['temperature.gpu']:>4}C    {value['pstate']}"
    return [
        f"| {card.index:>3}  {name:<27}{persistence:>6}  |   {card.bus_id} Off | {errors:>20} |",
        f"| N/A {heat}{power:>24} | {memory:>22} |{use:>8}{'Default':>13} |",
        f"|{'':41}|{'':24}|{value['mig.mode.current']:>21} |",
    ]


def _process_rows(cards: Sequence[Card]) -> list[str]:
    rows = [
        f"|{card.index:>5}   N/A  N/A{pid:>16}{'C':>7}   {name:<30.30}{f'{mib}MiB':>16} |"
        for card in cards
        for pid, name, mib in card.processes
    ]
    return rows or [f"|  {'No running processes found':<87}|"]


def topology(cards: Sequence[Card], cores: int) -> str:
    """A guest of Proxmox sees a flat tree of emulated root ports: every pair PHB."""
    names = [f"GPU{card.index}" for card in cards]
    head = "\t".join(
        ["", f"{_UNDERLINED}{names[0]}", *names[1:], "CPU Affinity", "NUMA Affinity", f"GPU NUMA ID{_PLAIN}"]
    )
    lines = [head]
    for row in names:
        links = ["\t".join([" X " if column == row else "PHB" for column in names])]
        lines.append("\t".join([row, *links, f"0-{cores - 1}", "0", "", "N/A"]))
    return "\n".join([*lines, "", "Legend:", "", *_TOPOLOGY_LEGEND])


_TOPOLOGY_LEGEND = (
    "  X    = Self",
    "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)",
    "  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node",
    "  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)",
    "  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)",
    "  PIX  = Connection traversing at most a single PCIe bridge",
    "  NV#  = Connection traversing a bonded set of # NVLinks",
)


def peers(cards: Sequence[Card], status: str) -> str:
    """`topo -p2p`. NS everywhere in a VM: the driver's table does not know the emulated chipset."""
    names = [f"GPU{card.index}" for card in cards]
    lines = [f" \t{_UNDERLINED}" + "\t".join(names) + f"\t{_PLAIN}"]
    for row in names:
        lines.append(f" {row}\t" + "\t".join("X" if column == row else status for column in names) + "\t")
    return "\n".join([*lines, "", "Legend:", "", *_PEER_LEGEND])


_PEER_LEGEND = (
    "  X    = Self",
    "  OK   = Status Ok",
    "  CNS  = Chipset not supported",
    "  GNS  = GPU not supported",
    "  TNS  = Topology not supported",
    "  NS   = Not supported",
    "  U    = Unknown",
)


def link_rates(chosen: Sequence[Card]) -> str:
    """One beat of `nvidia-smi dmon -s t`: MB/s that each card received and sent over PCIe."""
    rows = [
        f"{card.index:>5}{int(card.values['rx']) // 1000:>9}{int(card.values['tx']) // 1000:>9} " for card in chosen
    ]
    return "\n".join(["# gpu    rxpci    txpci ", "# Idx     MB/s     MB/s ", *rows])
