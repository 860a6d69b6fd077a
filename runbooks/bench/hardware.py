"""What the cards did while a point was measured: the sampler's rows within the point's window, as a few figures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

FILE = "hardware.jsonl"

# NVML's nvmlClocksEventReason bits (nvml.h). The others are no fault: idle, application clocks, display clocks.
REASONS = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
SEEN = 0.05  # of the samples: a reason seen less often is a spike


def read(folder: Path) -> list[list[Any]]:
    """Every whole row of a run, in order; [] where nothing was sampled."""
    try:
        lines = (folder / FILE).read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:  # the last line of a sampler that was killed
            continue
        if isinstance(row, list) and len(row) == {"card": 9, "link": 5}.get(row[0]):
            found.append(row)
    return found


def within(rows: Sequence[Sequence[Any]], windows: Sequence[tuple[int, int]]) -> dict[str, Any] | None:
    """Of the windows of a point (perf_counter_ns): means over time and cards, sums over cards where it says total.

    `watts` and `link_mb_s` (received and sent) are totals over all cards; `sm_mhz`, `sm_mhz_low` (the slowest card),
    `memory_mhz`, `busy` (0 to 1), `degrees` (the hottest) are of a card; `throttled` is reason -> share of samples.
    """
    within = [row for row in rows if any(begin <= row[1] <= end for begin, end in windows)]
    cards = [row for row in within if row[0] == "card"]
    if not cards:
        return None
    links = [row for row in within if row[0] == "link"]
    busy = _mean(row[7] for row in cards)
    masks = [row[8] for row in cards if row[8] is not None]
    shares = {name: sum(bool(mask & bit) for mask in masks) / len(masks) for bit, name in REASONS.items() if masks}
    return {
        "cards": len({row[2] for row in cards}),
        "samples": len(cards),
        "watts": _total(cards, 3),
        "sm_mhz": _mean(row[4] for row in cards),
        "sm_mhz_low": min((low for low in _of_each(cards, 4).values() if low is not None), default=None),
        "memory_mhz": _mean(row[5] for row in cards),
        "degrees": max((row[6] for row in cards if row[6] is not None), default=None),
        "busy": None if busy is None else busy / 100,
        "throttled": {name: round(share, 3) for name, share in shares.items() if share >= SEEN},
        "link_mb_s": _sum(_total(links, 3), _total(links, 4)) if links else None,
    }


def _of_each(rows: Sequence[Sequence[Any]], column: int) -> dict[int, float | None]:
    """Card -> its mean."""
    return {index: _mean(row[column] for row in rows if row[2] == index) for index in sorted({row[2] for row in rows})}


def _total(rows: Sequence[Sequence[Any]], column: int) -> float | None:
    means = [mean for mean in _of_each(rows, column).values() if mean is not None]
    return round(sum(means), 2) if means else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 2) if known else None


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else round(one + other, 2)
