"""The eight cards as values of nvidia-smi's own fields, read from fields.tsv and the state of the machine."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .machine import MODEL_MIB, Machine

TOTAL_MIB = 97887
RESERVED_MIB = 638
DEFAULT_LIMIT, MIN_LIMIT, MAX_LIMIT = 600.0, 300.0, 600.0  # watts


@dataclass(frozen=True)
class Field:
    name: str
    unit: str
    value: str

    @property
    def header(self) -> str:
        return f"{self.name} [{self.unit}]" if self.unit else self.name


@cache
def fields() -> Mapping[str, Field]:
    """Every name that --query-gpu takes, other names included."""
    table = {}
    for line in Path(__file__).with_name("fields.tsv").read_text().splitlines():
        if not line.startswith("#"):
            name, aliases, unit, value = line.split("\t")
            field = Field(name, "" if unit == "-" else unit, value)
            table.update(dict.fromkeys([name, *aliases.replace("-", "").split()], field))
    return table


@dataclass(frozen=True)
class Card:
    index: int
    lost: bool
    values: Mapping[str, str]
    processes: tuple[tuple[int, str, int], ...] = ()  # pid, name, MiB

    @property
    def bus_id(self) -> str:
        return self.values["pci.bus_id"]

    def named_by(self, selector: str) -> bool:
        """`-i` takes an index, a UUID or a bus id, with or without the domain's leading zeros."""
        selector = selector.lower()
        return selector in (str(self.index), self.values["uuid"].lower()) or (
            ":" in selector and self.bus_id.lower().endswith(selector)
        )


def cards(machine: Machine) -> list[Card]:
    faults = machine.faults()
    count = int(faults.get("count", 8))
    lost = faults.get("lost", [])
    lost_indices = {lost} if isinstance(lost, int) else set(lost)
    overrides = faults.get("fields", {})
    return [
        Card(
            index=index,
            lost=index in lost_indices,
            values={**_values(machine, index, count), **overrides.get("all", {}), **overrides.get(str(index), {})},
            processes=tuple((pid, name, MODEL_MIB) for pid, name in machine.servers()),
        )
        for index in range(count)
    ]


def _values(machine: Machine, index: int, count: int) -> dict[str, str]:
    bus = index + 1
    settings = machine.settings()
    limit = float(settings.get("power_limit", {}).get(str(index), DEFAULT_LIMIT))
    persistent = settings.get("persistence", machine.persistenced_runs())
    now = time.time()
    stamp = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(now))
    return {
        **{field.name: field.value for field in fields().values()},
        **_load(machine, index, limit),
        "timestamp": f"{stamp}.{int(now * 1000) % 1000:03}",
        "driver_version": machine.loaded_version() or "",
        "count": str(count),
        "index": str(index),
        "serial": f"16500000000{index:02}",
        "uuid": f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'runbooks lab stand-in {index}')}",
        "pci.bus_id": f"00000000:{bus:02X}:00.0",
        "pci.bus": f"0x{bus:02X}",
        "persistence_mode": "Enabled" if persistent else "Disabled",
        "power.limit": f"{limit:.2f} W",
        "enforced.power.limit": f"{limit:.2f} W",
        # not fields of --query-gpu; the full report shows them
        "pdi": f"0x{0x562BAFE66559FF00 + index:x}",
        "board_id": f"0x{bus:x}00",
    }


def _load(machine: Machine, index: int, limit: float) -> dict[str, str]:
    """Idle about 30 W, a loaded model 80 W, requests in work about 300 W; each card a little different."""
    loaded = bool(machine.servers())
    busy = loaded and machine.running_requests() > 0
    watts = min(limit, (300.0 if busy else 80.0 if loaded else 30.0) + 1.7 * index)
    used = MODEL_MIB if loaded else 0
    # All-reduces of the simulated speed: 3,355 KB a token, its rate by the number of requests, prompts twice as long.
    link = round(3_355 * 50.4 * max(1.0, machine.running_requests()) ** 0.72 * 3) if busy else 0
    clock = 2430 if busy else 2310 if loaded else 180
    degrees = (61 if busy else 38 if loaded else 28) + index % 3
    return {
        "pstate": "P0" if loaded else "P8",
        "memory.used": f"{used} MiB",
        "memory.free": f"{TOTAL_MIB - RESERVED_MIB - used} MiB",
        "utilization.gpu": f"{98 if busy else 0} %",
        "utilization.memory": f"{47 if busy else 0} %",
        "temperature.gpu": str(degrees),
        "temperature.gpu.tlimit": str(90 - degrees),
        "power.draw": f"{watts:.2f} W",
        "power.draw.average": f"{watts:.2f} W",
        "power.draw.instant": f"{watts + 0.4:.2f} W",
        "clocks.current.graphics": f"{clock} MHz",
        "clocks.current.sm": f"{clock} MHz",
        "clocks.current.memory": f"{12481 if loaded else 405} MHz",
        "clocks.current.video": f"{clock * 85 // 100} MHz",
        "clocks_event_reasons.active": f"0x{0 if busy else 1:016X}",
        "clocks_event_reasons.gpu_idle": "Not Active" if busy else "Active",
        "tx": str(link + 37_000 if busy else 940),  # KB/s
        "rx": str(link if busy else 592),
    }
