"""What the collectives measured on a host say: a time for each size, its latency and its slope, what may be used."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runbooks.bench.ceiling import GLM5_KERNELS, Gpu, message_bytes
from runbooks.inventory.shape import ModelShape

FILE = "collectives.json"
FORMAT = 1
_USUAL: dict[str, Any] = {  # what a reader may ask for, and an older or broken-off measurement may lack
    "ranks": 0, "token_bytes": 0, "backend": "", "torch": "", "nccl": "", "cards": (), "granted": False,
    "environment": {}, "collectives": (), "errors": (), "ladder": {"word": "inconclusive", "why": ()},
}  # fmt: skip


@dataclass(frozen=True)
class Timing:
    """Seconds of one operation, and the range over its batches."""

    seconds: float
    low: float
    high: float


@dataclass(frozen=True)
class AlphaBeta:
    """t(S) = alpha + S * beta, seconds and seconds a byte, by relative least squares; both are at least zero."""

    alpha: float
    beta: float

    def latency_share(self, size: float) -> float:
        return self.alpha / (self.alpha + size * self.beta) if self.alpha or self.beta else 0.0


@dataclass(frozen=True)
class Collectives:
    """Measured on the serving GPUs, by the number of tokens b in a step.

    `all_reduce` has an entry only where its result was right; `all_to_all` counts only for a server that uses it.
    `best_known`: seconds of an all-reduce on a healthy machine of this kind. `word` is that of the ladder.
    """

    all_reduce: Mapping[int, Timing]
    all_to_all: Mapping[int, Timing]
    best_known: Mapping[int, float]
    line: AlphaBeta | None = None
    word: str = "healthy"
    why: tuple[str, ...] = ()
    graphs: bool = False


@dataclass(frozen=True)
class Unusable:
    """Measured, but not what this run needs."""

    reason: str


def read(folder: Path) -> dict[str, Any] | Unusable | None:
    """The document beside a run; None where there is none, Unusable where nothing of it can be believed."""
    try:
        told = json.loads((folder / FILE).read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        return Unusable(f"{FILE} cannot be read: the collectives count as not measured")
    return sound(told)


def sound(told: Any) -> dict[str, Any] | Unusable:
    """With every key that is read of it, whoever wrote it: one that failed before it had anything has next to none."""
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        return Unusable(f"{FILE} is none of ours: the collectives count as not measured")
    whole = _USUAL | {key: value for key, value in told.items() if value is not None}
    try:
        word, why = whole["ladder"]["word"], "; ".join(whole["ladder"]["why"])
        shown = [*rows(whole), *copy_rows(whole), *whole.get("writes", ())]
        times = [_timing(row) for row in whole["collectives"] if row["right"]]
        texts = [word, why, whole["backend"], *whole["cards"], *(error["text"] for error in whole["errors"])]
        sane = all(isinstance(text, str) for text in texts) and all(time.seconds > 0 for time in times)
        nothing = whole["ranks"] < 1 or (not shown and word not in ("wrong data", "hang"))
    except (LookupError, TypeError, ValueError, AttributeError):
        sane, nothing = False, False
    if nothing:
        return Unusable("the measurement of the collectives failed before it had anything: they count as not measured")
    return whole if sane else Unusable(f"{FILE} is damaged: the collectives count as not measured")


def collectives_of(
    told: Mapping[str, Any], shape: ModelShape, *, ranks: int, gpu: Gpu | None, graph_max: int | None, graphs_off: bool
) -> Collectives | Unusable:
    """What a run of `ranks` GPUs may use of it: with graphs where the server decodes with them, without elsewhere."""
    if told["ranks"] != ranks:
        return Unusable(f"the collectives were measured over {told['ranks']} GPUs, the server uses {ranks}")
    size = message_bytes(shape, 1)
    if told["token_bytes"] != size:
        return Unusable(
            f"the collectives were measured for {told['token_bytes']} bytes a token, the model has {size:.0f}"
        )
    if told["backend"] != "nccl" and gpu is not None:
        return Unusable(f"the collectives were measured with {told['backend']}, without GPUs")

    def graphs_at(b: int) -> bool:
        return not graphs_off and (graph_max is None or b <= graph_max)

    def timings(op: str) -> dict[int, Timing]:
        right = [row for row in told["collectives"] if row["op"] == op and row["right"]]
        with_graphs = {row["b"]: _timing(row) for row in right if row["graph"]}
        without = {row["b"]: _timing(row) for row in right if not row["graph"]}
        return without | {b: time for b, time in with_graphs.items() if graphs_at(b)}

    reduce = timings("all_reduce")
    sizes = {message_bytes(shape, b): timing.seconds for b, timing in reduce.items()}
    ladder = told["ladder"]
    return Collectives(
        reduce,
        timings("all_to_all"),
        best_known(shape, gpu, ranks),
        fit(sizes),
        ladder["word"],
        tuple(ladder["why"]),
        any(row["graph"] for row in told["collectives"]) and not graphs_off,
    )


def best_known(shape: ModelShape, gpu: Gpu | None, ranks: int) -> dict[int, float]:
    """Seconds of an all-reduce on a healthy node, where somebody has published it; {} elsewhere."""
    if gpu is None or ranks != 8 or "RTX PRO 6000" not in gpu.name or message_bytes(shape, 1) != 12_288:
        return {}
    return {b: micros * 1e-6 for b, (_, micros, _) in GLM5_KERNELS.items()}


def fit(times: Mapping[float, float]) -> AlphaBeta | None:
    """Over (bytes -> seconds); None below three sizes."""
    if len(times) < 3:
        return None
    points = [(1.0 / t, size / t) for size, t in times.items()]
    aa, ab, bb = (sum(one[i] * one[j] for one in points) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = (sum(one[i] for one in points) for i in (0, 1))
    determinant = aa * bb - ab * ab
    if determinant > 1e-12 * aa * bb:
        alpha, beta = (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant
        if alpha >= 0 and beta >= 0:
            return AlphaBeta(alpha, beta)
    only_alpha, only_beta = AlphaBeta(a / aa, 0.0), AlphaBeta(0.0, b / bb)
    return min(only_alpha, only_beta, key=lambda line: _miss(line, times))


def _miss(line: AlphaBeta, times: Mapping[float, float]) -> float:
    return sum(((line.alpha + size * line.beta) / t - 1.0) ** 2 for size, t in times.items())


def _timing(row: Mapping[str, Any]) -> Timing:
    return Timing(row["us"] * 1e-6, row["us_low"] * 1e-6, row["us_high"] * 1e-6)


COLUMNS = ("operation", "streams", "KiB", "us", "us in a graph", "bus GB/s")


def rows(told: Mapping[str, Any]) -> list[list[str]]:
    """One row an operation and size: without graphs, with graphs, and the rate of the better."""
    by_key: dict[tuple[str, int, int], dict[bool, Mapping[str, Any]]] = {}
    for row in told["collectives"]:
        by_key.setdefault((row["op"], row["b"], row["bytes"]), {})[row["graph"]] = row
    found = []
    for (op, b, size), both in sorted(by_key.items()):
        rates = [row["bus_gb_s"] for row in both.values() if row["right"] and row.get("bus_gb_s") is not None]
        cells = [_micros(both.get(graph)) for graph in (False, True)]
        found.append([op.replace("_", "-"), str(b), f"{size / 1024:g}", *cells, f"{max(rates):.2f}" if rates else "-"])
    return found


def copy_rows(told: Mapping[str, Any]) -> list[list[str]]:
    """Host and peer copies: from, to, small in us, large in GB/s, and whether what arrived was right."""
    found = []
    for row in told.get("host") or ():
        for way, names in (("to_gpu", ("host", f"GPU {row['gpu']}")), ("to_host", (f"GPU {row['gpu']}", "host"))):
            right = row["right_small"] and row["right_large"]
            found.append([*names, f"{row[f'{way}_small_us']:.1f}", f"{row[f'{way}_large_gb_s']:.1f}", _said(right)])
    written = {(row["from"], row["to"]): row["right"] for row in told.get("writes") or ()}
    for row in told.get("peers") or ():
        right = row["right_small"] and row["right_large"] and written.get((row["from"], row["to"])) is not False
        names = (f"GPU {row['from']}", f"GPU {row['to']}" + ("" if row["granted"] else ", through the host"))
        found.append([*names, f"{row['peer_small_us']:.1f}", f"{row['peer_large_gb_s']:.1f}", _said(right)])
    return found


COPY_COLUMNS = ("from", "to", "12 KiB us", "64 MiB GB/s", "arrived")


def _micros(row: Mapping[str, Any] | None) -> str:
    return "-" if row is None else f"{row['us']:.1f}" if row["right"] else "WRONG"


def _said(right: Any) -> str:
    return "right" if right else "WRONG"


def fitted_text(sizes: Sequence[float], line: AlphaBeta) -> str:
    """One sentence on what a message of this kind costs."""
    largest = max(sizes)
    rate = f"its bytes at {1e-9 / line.beta:.0f} GB/s" if line.beta else "no visible cost of bytes"
    share = line.latency_share(largest)
    kind = "latency" if share >= 0.5 else "bandwidth"
    return f"an all-reduce costs {line.alpha * 1e6:.0f} us and then {rate}: at {largest / 1024:.0f} KiB {kind} rules"
