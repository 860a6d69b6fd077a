"""How a look reads: a row a host, its cards below it, then the lines of its journal that matter. Pure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runbooks.diagnose import classify
from runbooks.engine.report import span
from runbooks.health.gpus import HOT, SPINNING

if TYPE_CHECKING:
    from rich.console import RenderableType

POWER_LIMIT = 600  # watts; the look does not ask for it
VERDICT_STYLES = {"healthy": "green", "degraded": "yellow", "nan": "bold red", "dead": "bold red"}
OLD = 3600  # seconds after which a verdict says little


@dataclass(frozen=True)
class Row:
    """One host: the last look, the one before it, and why there is none."""

    name: str
    seen: dict[str, Any] | None
    before: dict[str, Any] | None
    error: str = ""

    @property
    def rate(self) -> float | None:
        """Tokens a second between the last two looks; None at first, and after a restart of the server."""
        if self.seen is None or self.before is None:
            return None
        now, then = self.seen["tokens"], self.before["tokens"]
        seconds = self.seen["t"] - self.before["t"]
        return None if now is None or then is None or now < then or seconds <= 0 else (now - then) / seconds

    @property
    def server(self) -> str:
        assert self.seen is not None
        active, restarts = self.seen["unit"]
        said = "serves" if self.seen["ready"] else f"{active or '?'}, port closed"
        many = "" if restarts == "1" else "s"
        return f"{said}, {restarts} restart{many}" if restarts not in ("", "0") else said

    @property
    def stuck(self) -> bool:
        return bool(self.seen and self.seen["run"]) and self.rate == 0

    @property
    def canary(self) -> str:
        said = self.seen["canary"] if self.seen else None
        if said and said[0] == "not run yet":
            return "installed, not run yet"
        return "not installed" if said is None else f"{said[0]}, {span(said[1])} ago"

    @property
    def cards(self) -> str:
        """`8 GPUs   98 97 98 … %   301 298 … W   hottest 61 °C`: each card in its place: one that
        differs shows."""
        gpus = self.seen["gpus"] if self.seen else None
        if not gpus:
            return "nvidia-smi does not answer"
        use, watts, heat = (" ".join(_shown(card[at]) for card in gpus) for at in (0, 1, 2))
        hottest = max((card[2] for card in gpus if card[2] is not None), default=None)
        said = f"{len(gpus)} GPUs   {use} %   {watts} W   hottest {_shown(hottest)} °C"
        if (hottest or 0) >= HOT:
            said += f", too hot: {heat}"
        return f"{said}   SPINNING: busy and cold" if self.spins else said

    @property
    def spins(self) -> bool:
        gpus = (self.seen and self.seen["gpus"]) or []
        limit = SPINNING * POWER_LIMIT
        cold = [use for use, watts, _ in gpus if (use or 0) >= 90 and watts is not None and watts < limit]
        return len(cold) > len(gpus) // 2

    @property
    def lines(self) -> list[str]:
        """The journal's, oldest first, and what they mean."""
        if self.seen is None or not self.seen["lines"]:
            return []
        said = [f"{span(age)} ago: {text}" for age, text in self.seen["lines"]]
        cause = classify("\n".join(text for _, text in self.seen["lines"]))
        meant = [f"-> {cause.text}; page: invoke runbook {cause.page}"] if cause.certain and cause.page else []
        return [*said, *meant]


def plain_lines(row: Row) -> list[str]:
    """For a pipe or a log: all of a look in a line, the journal below it."""
    if row.error or row.seen is None:
        return [row.error or "no look yet"]
    seen = row.seen
    stuck = "  STUCK: requests run, no token comes" if row.stuck else ""
    parts = [
        row.server,
        f"{_number(row.rate)} tok/s",
        f"{_number(seen['run'])} running",
        f"{_number(seen['queue'])} waiting",
        f"KV {_percent(seen['kv'])}",
        f"canary {row.canary}",
        row.cards,
    ]
    return ["  ".join(parts) + stuck, *row.lines]


def draw(rows: Sequence[Row], every: float) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table("host", "server", "tok/s", "running", "waiting", "KV", "canary", box=None, pad_edge=False)
    below: list[RenderableType] = []
    for row in rows:
        if row.error or row.seen is None:
            table.add_row(row.name, Text(row.error or "connecting", style="red" if row.error else "dim"))
        else:
            table.add_row(row.name, *_cells(row))
        if row.seen is not None:
            below.append(Text(f"{row.name}  {row.cards}", style="bold red" if row.spins else ""))
            below += [
                Text(f"{row.name}  {line}", style="yellow", no_wrap=True, overflow="ellipsis") for line in row.lines
            ]
    head = Text(f"{time.strftime('%H:%M:%S UTC', time.gmtime())}   every {every:g} s   Ctrl-C leaves", style="dim")
    return Group(head, Text(), table, Text(), *below)


def changed(before: Sequence[str], now: Sequence[str]) -> str:
    """What makes the one screen the other: only lines that differ, each cleared to its end. `before` empty: anew."""
    rows = [f"\x1b[{at + 1}H{line}\x1b[K" for at, line in enumerate(now) if [line] != before[at : at + 1]]
    below = f"\x1b[{len(now) + 1}H\x1b[J" if len(before) > len(now) else ""
    return ("" if before else "\x1b[2J") + "".join(rows) + below


def _cells(row: Row) -> list[RenderableType]:
    from rich.text import Text

    assert row.seen is not None
    verdict = row.seen["canary"][0] if row.seen["canary"] else ""
    old = row.seen["canary"] and row.seen["canary"][1] > OLD
    return [
        Text(row.server, style="green" if row.seen["ready"] else "bold red"),
        Text("STUCK" if row.stuck else _number(row.rate), style="bold red" if row.stuck else ""),
        _number(row.seen["run"]),
        Text(_number(row.seen["queue"]), style="yellow" if row.seen["queue"] else ""),
        Text(_percent(row.seen["kv"]), style="yellow" if (row.seen["kv"] or 0) > 0.95 else ""),
        Text(row.canary, style="yellow" if old else VERDICT_STYLES.get(verdict, "yellow")),
    ]


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"


def _percent(value: float | None) -> str:
    return "?" if value is None else f"{value:.0%}"


def _shown(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"
