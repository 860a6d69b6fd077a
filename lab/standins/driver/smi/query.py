"""`--query-gpu` and `--query-compute-apps` as CSV, and the full report of `-q`."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

from .cards import Card, fields
from .machine import Machine
from .screens import cuda_version

_APP_FIELDS = {  # name or other name -> header
    "timestamp": "timestamp",
    "gpu_name": "gpu_name",
    "gpu_bus_id": "gpu_bus_id",
    "gpu_serial": "gpu_serial",
    "gpu_uuid": "gpu_uuid",
    "pid": "pid",
    "process_name": "process_name",
    "name": "process_name",
    "used_gpu_memory": "used_gpu_memory [MiB]",
    "used_memory": "used_gpu_memory [MiB]",
}
_SECTIONS = {  # -d NAME -> the headings of the report that it shows
    "MEMORY": ("FB Memory Usage", "BAR1 Memory Usage", "Conf Compute Protected Memory Usage"),
    "UTILIZATION": ("Utilization",),
    "ECC": ("ECC Mode", "ECC Errors"),
    "TEMPERATURE": ("Temperature", "GPU Current Temp"),
    "POWER": ("GPU Power Readings", "GPU Memory Power Readings", "Module Power Readings"),
    "CLOCK": (
        *("Clocks", "Applications Clocks", "Default Applications Clocks", "Deferred Clocks"),
        *("Max Clocks", "Max Customer Boost Clocks", "Clock Policy"),
    ),
    "COMPUTE": ("Compute Mode",),
    "PIDS": ("Processes",),
    "PERFORMANCE": (
        "Performance State",
        "Clocks Event Reasons",
        "Clocks Event Reasons Counters",
        "Sparse Operation Mode",
    ),
    "PAGE_RETIREMENT": ("Retired Pages",),
    "ROW_REMAPPER": ("Remapped Rows",),
    "GSP_FIRMWARE_VERSION": ("GSP Firmware Version",),
}


class Refused(Exception):
    """What the real program says and exits with when it does not understand."""

    def __init__(self, text: str, rc: int = 2) -> None:
        super().__init__(text)
        self.text, self.rc = text, rc


def gpu_csv(cards: Sequence[Card], names: str, form: str) -> str:
    chosen = []
    for name in names.split(","):
        if name.strip() not in fields():
            raise Refused(f'Field "{name.strip()}" is not a valid field to query.\n')
        chosen.append(fields()[name.strip()])
    rows = [[card.values[field.name] for field in chosen] for card in cards]
    return _csv([field.header for field in chosen], rows, form)


def apps_csv(cards: Sequence[Card], names: str, form: str) -> str:
    chosen = [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in _APP_FIELDS:
            raise Refused(f'Field "{name}" is not a valid field to query.\n')
    rows = []
    for card in cards:
        for pid, process, mib in card.processes:
            known = {
                "timestamp": card.values["timestamp"],
                "gpu_name": card.values["name"],
                "gpu_bus_id": card.bus_id,
                "gpu_serial": card.values["serial"],
                "gpu_uuid": card.values["uuid"],
                "pid": str(pid),
                "process_name": process,
                "used_gpu_memory [MiB]": f"{mib} MiB",
            }
            rows.append([known[_APP_FIELDS[name]] for name in chosen])
    return _csv([_APP_FIELDS[name] for name in chosen], rows, form)


def _csv(header: Sequence[str], rows: Sequence[Sequence[str]], form: str) -> str:
    parts = [part.strip() for part in form.split(",")]
    if not set(parts) <= {"csv", "noheader", "nounits"}:
        raise Refused("Format modifier is not recognized.")
    if "nounits" in parts:
        rows = [[re.sub(r"^([\d.]+) (?:MiB|%|W|MHz|us|ms)$", r"\1", value) for value in row] for row in rows]
    lines = [] if "noheader" in parts else [", ".join(header)]
    return "\n".join([*lines, *(", ".join(row) for row in rows)])


def report(cards: Sequence[Card], attached: int, machine: Machine, display: str | None) -> str:
    """The full report, or the sections that `-d` names."""
    driver = machine.loaded_version() or ""
    head = [
        "",
        "==============NVSMI LOG==============",
        "",
        _line("Timestamp", time.ctime()),
        _line("Driver Version", driver),
        _line("CUDA Version", cuda_version(driver)),
        "",
        _line("Attached GPUs", str(attached)),
    ]
    template = Path(__file__).with_name("report.txt").read_text()
    return "\n".join(head) + "\n" + "\n".join(_sections(_fill(template, card), display) for card in cards)


def _line(label: str, value: str, indent: int = 0) -> str:
    return f"{' ' * indent + label:<55}: {value}"


def _fill(template: str, card: Card) -> str:
    known = {**card.values, "processes": _processes(card)}
    return re.sub(r"\{([\w.]+)\}", lambda match: known[match[1]].strip("[]"), template)


def _processes(card: Card) -> str:
    if not card.processes:
        return _line("Processes", "None", 4)
    lines = [" " * 4 + "Processes"]
    for pid, name, mib in card.processes:
        lines += [
            _line("GPU instance ID", "N/A", 8),
            _line("Compute instance ID", "N/A", 8),
            _line("Process ID", str(pid), 8),
        ]
        lines += [_line("Type", "C", 12), _line("Name", name, 12), _line("Used GPU Memory", f"{mib} MiB", 12)]
    return "\n".join(lines)


def _sections(text: str, display: str | None) -> str:
    if display is None:
        return text
    wanted: set[str] = set()
    for name in display.upper().split(","):
        if name.strip() not in _SECTIONS:
            raise Refused(f"Display type is not recognized: {name}. Please run 'nvidia-smi -h'.\n")
        wanted.update(_SECTIONS[name.strip()])
    shown, keep = [], True
    for line in text.splitlines():
        if line.startswith("    ") and line[4] != " ":
            keep = re.split(r"\s*:|\s{2,}|\s*$", line[4:])[0] in wanted
        if keep:
            shown.append(line)
    return "\n".join(shown) + "\n"
