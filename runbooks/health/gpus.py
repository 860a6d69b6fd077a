"""The GPUs: all there, sound, and working. Spinning at 140 W is not working."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from runbooks.health.look import Part
from runbooks.inventory.shape import Gpus

Entry = tuple[str, Literal["ok", "warn", "fail"], str, str, str]

HOT = 90  # °C
SPINNING = 0.35
"""Share of the power limit below which a GPU at 100 % does no work: a hung collective holds RTX PRO 6000 at about 140
of 600 W,
decoding takes about 300 W, prefill 400 to 600 W (local-inference-lab/rtx6kpro, gpu-configs.md)."""

SLOWED = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Bits of clocks_event_reasons.active that mean a fault. Idle (0x1) and the software power cap (0x4) are everyday."""

_XID = re.compile(r"Xid \(([^)]*)\): (\d+)(.*)")
HARMLESS_XIDS = {"13", "31", "43", "45"}  # faults of one process, after which the card goes on
REQUIRED_FIELDS = 12


@dataclass(frozen=True)
class Gpu:
    """One card. None: the driver does not say ([N/A]). Watts, MHz, MiB, °C."""

    index: int
    name: str
    temperature: float | None
    power: float | None
    power_limit: float | None
    clock: float | None
    clock_max: float | None
    utilisation: float | None
    memory_used: float | None
    memory_total: float | None
    reasons: int
    ecc: float | None

    @property
    def spins(self) -> bool:
        if self.utilisation is None or self.power is None or not self.power_limit:
            return False
        return self.utilisation >= 90 and self.power < SPINNING * self.power_limit


def read_gpus(text: str) -> list[Gpu]:
    """Lines of `nvidia-smi --query-gpu=... --format=csv,noheader,nounits`; lines that are something else are left
    out."""
    gpus = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != REQUIRED_FIELDS or not fields[0].isdigit():
            continue
        numbers = [_number(field) for field in fields[2:10]]
        reasons = int(fields[10], 16) if re.fullmatch(r"0x[0-9A-Fa-f]+", fields[10]) else 0
        temperature, power, limit, clock, clock_max, use, used, total = numbers
        gpus.append(
            Gpu(
                index=int(fields[0]),
                name=fields[1],
                temperature=temperature,
                power=power,
                power_limit=limit,
                clock=clock,
                clock_max=clock_max,
                utilisation=use,
                memory_used=used,
                memory_total=total,
                reasons=reasons,
                ecc=_number(fields[11]),
            )
        )
    return gpus


def gpu_checks(part: Part, kernel: Part, wanted: Gpus, host: str, *, working: bool | None) -> Iterator[Entry]:
    """`working`: tokens flow (True), requests wait and none flow (False), idle or unknown (None)."""
    driver = f"invoke provision --hosts {host} --tags driver"
    if part.hung:
        yield "gpus", "fail", "nvidia-smi hangs: a card or its driver is gone", "", "gpu-lost"
    elif part.missing:
        yield "gpus", "fail", "nvidia-smi is not installed", driver, "driver-mismatch"
    elif not (gpus := read_gpus(part.text)):
        page = "driver-mismatch" if "mismatch" in part.text or "NVML" in part.text else "gpu-lost"
        yield "gpus", "fail", f"nvidia-smi: {part.text.strip()[:120] or 'says nothing'}", driver, page
    else:
        yield _count(gpus, wanted)
        yield _state(gpus)
        yield _work(gpus, working)
    yield _xids(kernel)


def _count(gpus: list[Gpu], wanted: Gpus) -> Entry:
    names = sorted({gpu.name for gpu in gpus})
    if len(gpus) != wanted.count:
        return "gpus", "fail", f"{len(gpus)} of {wanted.count} are there", "", "gpu-lost"
    if names != [wanted.name]:
        return "gpus", "fail", f"{', '.join(names)} instead of {wanted.name}", "", "gpu-lost"
    used = [gpu.memory_used for gpu in gpus if gpu.memory_used is not None]
    span = f", {_span(used)} MiB used" if used else ""
    return "gpus", "ok", f"{len(gpus)} x {wanted.name}{span}", "", ""


def _state(gpus: list[Gpu]) -> Entry:
    bad = []
    for gpu in gpus:
        slowed = [word for bit, word in SLOWED.items() if gpu.reasons & bit]
        if gpu.ecc:
            bad.append(f"GPU {gpu.index}: {gpu.ecc:.0f} uncorrected memory errors")
        if slowed:
            bad.append(f"GPU {gpu.index}: {', '.join(slowed)} at {_shown(gpu.clock)} MHz")
        if (gpu.temperature or 0) >= HOT:
            bad.append(f"GPU {gpu.index}: {gpu.temperature:.0f} °C")
    if bad:
        lost = any("memory errors" in line for line in bad)
        return "gpu state", "fail" if lost else "warn", "; ".join(bad), "", "gpu-lost" if lost else "slow-throughput"
    hottest = max((gpu.temperature for gpu in gpus if gpu.temperature is not None), default=None)
    return "gpu state", "ok", f"hottest {_shown(hottest)} °C, no slowdown, no memory errors", "", ""


def _work(gpus: list[Gpu], working: bool | None) -> Entry:
    watts = [gpu.power for gpu in gpus if gpu.power is not None]
    busy = [gpu.utilisation for gpu in gpus if gpu.utilisation is not None]
    said = f"{_span(busy)} % at {_span(watts)} W"
    spinning = [gpu for gpu in gpus if gpu.spins]
    if len(spinning) > len(gpus) // 2 and working is not True:
        return (
            "gpu work",
            "fail",
            f"{said}: spinning, not working (a hung collective)",
            "systemctl restart sglang",
            "server-down",
        )
    if working is False:
        return "gpu work", "warn", f"{said}, and requests wait", "", "server-down"
    return "gpu work", "ok", said, "", ""


def _xids(kernel: Part) -> Entry:
    found = _XID.findall(kernel.text)
    serious = [entry for entry in found if entry[1] not in HARMLESS_XIDS]
    if serious:
        where, number, text = serious[-1]
        return "kernel", "fail", f"{len(serious)} Xid since boot, last {number} at {where}{text[:80]}", "", "gpu-lost"
    if found:
        return (
            "kernel",
            "warn",
            f"{len(found)} Xid since boot, of single processes: {', '.join(sorted({n for _, n, _ in found}))}",
            "",
            "",
        )
    return "kernel", "ok", "no Xid since boot", "", ""


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _span(values: list[float]) -> str:
    return " to ".join(dict.fromkeys(f"{end(values):.0f}" for end in (min, max))) if values else "?"


def _shown(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"
