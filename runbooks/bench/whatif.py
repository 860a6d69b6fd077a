"""`invoke ceiling`: what the cards allow at each concurrency, what each known option could change, which claims hold.

The step of a healthy node is composed from measured kernel tables (ceiling.py) with one constant that is fitted at one
stream; it is held against the inventory's reference sweep, and its mean error is told. The options are predicted for
that healthy node; a run's own report predicts them for what was measured there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runbooks.bench import ceiling as roof
from runbooks.bench import measured
from runbooks.bench.ceiling import GLM5_FIXED_MS, GLM5_KERNELS, Ceiling, coverage, gpu_named, healthy_step_ms
from runbooks.bench.charts import number
from runbooks.bench.fit import decompose
from runbooks.bench.gains import MTP
from runbooks.bench.results import named, reading
from runbooks.engine.errors import UsageError
from runbooks.engine.report import Reporter
from runbooks.inventory import Loaded
from runbooks.inventory.shape import ModelShape

if TYPE_CHECKING:
    from runbooks.session import Session

# Experts spread over the eight cards, composed from the same tables: 78 attention all-reduces, 3 of dense layers,
# 150 NCCL all-to-alls. tok/s at b = 1..64.
EXPERT_PARALLEL: Mapping[int, float] = dict(
    zip((1, 2, 4, 8, 16, 32, 64), (53.0, 97.4, 150.1, 221.4, 372.6, 603.9, 921.8), strict=True)
)
FP4_SCALES = 0.5625  # bytes a weight: four bits, and one FP8 scale for sixteen weights
STORY_BYTES = 0.625  # what 453 GB charges: five bits
WITHOUT_P2P = (
    1.47  # times slower, published once: 65 to 44 tok/s with NCCL_P2P_DISABLE=1 (sgl-project/sglang pull 29580)
)

COLUMNS = ("streams", "experts read", "weights GB", "floor ms", "ceiling tok/s", "healthy tok/s", "reference", "error")


@dataclass(frozen=True)
class Claim:
    """A figure that people told, and what the formulas say of it."""

    figure: str
    holds: str  # yes, no, or with what condition
    why: str


def ceiling_task(session: Session, *, run: str = "", as_json: bool = False) -> int:
    """Print the tables for the inventory's model and cards; `run`: with the collectives that it measured."""
    told = measured.read(named(run)) if run else None
    if run and not isinstance(told, dict):
        why = f"no {measured.FILE} in it" if told is None else told.reason
        raise UsageError(f"{run}: {why}", next="invoke bench.collectives")
    known = told if isinstance(told, dict) else None
    with reading(named(run)) if known else nullcontext():
        result = tables(session.loaded, known)
    if as_json:
        session.report.close()
        print(json.dumps(result, sort_keys=True))
        return 0
    show(result, session.report)
    return 0


def tables(loaded: Loaded, told: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Everything as plain values. Raises UsageError for cards without known figures."""
    inventory, model = loaded.inventory, loaded.model_for(next(iter(loaded.inventory.hosts)))
    gpu = gpu_named(inventory.gpus.name)
    if gpu is None:
        raise UsageError(f"gpus.name: no figures are known for {inventory.gpus.name!r}", details=list(_known()))
    context = inventory.bench.input_len + inventory.bench.output_len // 2
    ceiling = Ceiling(model.shape, gpu, inventory.gpus.count, context)
    healthy = bool(measured.best_known(model.shape, gpu, ceiling.ranks))
    reference = dict(inventory.bench.reference)
    points = [_point(ceiling, b, healthy, reference.get(b)) for b in inventory.bench.concurrency]
    errors = [abs(point["error"]) for point in points if point["error"] is not None]
    fitted = decompose({b: b / rate * 1e3 for b, rate in reference.items()}, lambda b: coverage(model.shape, b))
    return {
        "model": model.served_name,
        "gpu": {"name": gpu.name, "count": ceiling.ranks, "bandwidth": gpu.bandwidth, "source": gpu.source},
        "context": context,
        "points": points,
        "reference_error_pct": round(100 * sum(errors) / len(errors), 2) if errors else None,
        "fit_rms_pct": round(100 * fitted.rms, 2) if fitted else None,
        "bytes": [_wire(ceiling, b) for b in inventory.bench.concurrency],
        "options": _options(ceiling) if healthy else [],
        "claims": [vars(claim) for claim in claims(model.shape, ceiling)] if healthy else [],
        "collectives": measured.rows(told) if told else [],
    }


def _known() -> Sequence[str]:
    return [f"known: {', '.join(gpu.name for gpu in roof.GPUS)}"]


def _point(ceiling: Ceiling, b: int, healthy: bool, reference: float | None) -> dict[str, Any]:
    predicted = b / healthy_step_ms(b) * 1e3 if healthy and b in GLM5_KERNELS else None
    return {
        "streams": b,
        "coverage": coverage(ceiling.shape, b),
        "weight_bytes": roof.weight_bytes(ceiling.shape, b),
        "memory_ms": ceiling.memory(b) * 1e3,
        "compute_ms": ceiling.compute(b) * 1e3,
        "ceiling_tok_s": ceiling.tok_s(b),
        "healthy_tok_s": predicted,
        "reference_tok_s": reference,
        "error": predicted / reference - 1 if predicted and reference else None,
    }


def _wire(ceiling: Ceiling, b: int) -> dict[str, Any]:
    """Bytes that each GPU sends in one step, tensor parallel against expert parallel."""
    shape, ranks = ceiling.shape, ceiling.ranks
    return {
        "streams": b,
        "tensor_parallel": roof.tensor_parallel_bytes(shape, ranks, b),
        "expert_parallel": roof.expert_parallel_bytes(shape, ranks, b),
        "expert_parallel_without_local": roof.expert_parallel_bytes(shape, ranks, b, without_local=True),
    }


def _options(ceiling: Ceiling) -> list[dict[str, Any]]:
    """For a healthy node at the two ends of the sweep: times the throughput at most, or as published."""
    found = []
    for name, factor, why in OPTIONS:
        found.append({"option": name, "at_1": factor(1), "at_64": factor(64), "why": why})
    return found


def _without(b: int, ms: float) -> float:
    step = healthy_step_ms(b)
    return step / (step - ms)


def _reduce_ms(b: int) -> float:
    return 156 * GLM5_KERNELS[b][1] / 1e3


OPTIONS: tuple[tuple[str, Callable[[int], float], str], ...] = (
    (
        "torch compile",
        lambda b: _without(b, GLM5_FIXED_MS),
        "at most: norms, routing, sampling and launches for nothing",
    ),
    ("overlapped scheduling", lambda b: _without(b, GLM5_FIXED_MS), "at most: the same fixed part, not in addition"),
    ("two batches overlapped", lambda b: _without(b, _reduce_ms(b) / 2), "at most: half of communication hidden"),
    ("schedule policy", lambda b: 1.0, "the order of a queue, and at a held concurrency there is none"),
    (
        "expert parallelism",
        lambda b: EXPERT_PARALLEL[b] / (b / healthy_step_ms(b) * 1e3),
        "from measured all-to-alls of eight such cards",
    ),
    ("MTP", lambda b: MTP[b], "published: 93.6 for 50.4 and 1,425 for 1,011 tok/s (rtx6kpro, models/glm5.md)"),
    ("peer-to-peer off", lambda b: 1 / WITHOUT_P2P, "published once, another model; yours: invoke bench.collectives"),
    ("links of no cost", lambda b: _without(b, _reduce_ms(b)), "at most: every all-reduce for nothing"),
)


def claims(shape: ModelShape, ceiling: Ceiling) -> list[Claim]:
    """The figures of the story behind this project, computed again."""
    tensor, expert = (f(shape, 8, 32) / 1e6 for f in (roof.tensor_parallel_bytes, roof.expert_parallel_bytes))
    away = roof.expert_parallel_bytes(shape, 8, 32, without_local=True) / 1e6
    stored = shape.routed_expert_bytes / 1e9
    charged = stored * STORY_BYTES / FP4_SCALES
    wire = tensor * 1e6 / 16e9
    narrow = 40e9 * 0.5 / 8 / ceiling.gpu.bandwidth  # its own 40 B active, half a byte each
    impossible = 32 / (wire + narrow)
    missing = 156 * (1447 - 142) / 1e3
    told = (
        ("12 KiB a message", "yes", f"the hidden state of one token: {roof.message_bytes(shape, 1):,.0f} bytes"),
        ("107 MB a step", "yes", f"TP8 at 32 streams: {tensor:.2f} MB sent by each GPU"),
        ("113 MB a step", "yes", f"EP8, its own 1/8 counted: {expert:.2f} MB; {away:.2f} MB without"),
        ("453 GB of experts", "no", f"5 bits a weight make {charged:.1f} GB; FP4 with FP8 scales is {stored:.1f} GB"),
        ("too big for one card", "yes", f"{stored:.0f} GB are more than 96 GB either way"),
        (
            "communication 4.8 x compute",
            "no",
            f"{wire / narrow:.2f} needs 16 GB/s and one token's weights for 32: {impossible:,.0f} tok/s, never seen",
        ),
        ("+20 % with compute for nothing", "if 4.8 held", f"5.8 / 4.8 is {5.8 / 4.8 - 1:+.1%}"),
        ("+10 % with compute halved", "if 4.8 held", f"5.8 / 5.3 is {5.8 / 5.3 - 1:+.1%}"),
        (
            "bound by PCIe",
            "not proven",
            f"236 tok/s needs all-reduces of 1,447 us, healthy are 142: {missing:.0f} ms to find; "
            "`invoke bench.collectives` decides",
        ),
    )
    return [Claim(*one) for one in told]


def show(result: Mapping[str, Any], report: Reporter) -> None:
    gpu = result["gpu"]
    report.heading(f"{result['model']} on {gpu['count']} x {gpu['name']}, {result['context']} tokens of context")
    report.table("limits by memory bandwidth, and a healthy node", COLUMNS, [_row(point) for point in result["points"]])
    report.note(f"bandwidth {gpu['bandwidth'] / 1e12:.3f} TB/s a card: {gpu['source']}")
    if result["reference_error_pct"] is not None:
        text = f"mean error against the reference sweep {result['reference_error_pct']:.1f} %, one constant fitted"
        report.note(f"{text}; the sweep's own decomposition fits it to {result['fit_rms_pct']:.1f} % rms")
    wire = [[str(row["streams"]), *(f"{row[name] / 1e6:.2f}" for name in WIRE)] for row in result["bytes"]]
    report.table("MB that each GPU sends in a step", ("streams", "TP", "EP", "EP, without its own"), wire)
    options = [
        [one["option"], f"x {one['at_1']:.2f}", f"x {one['at_64']:.2f}", one["why"]] for one in result["options"]
    ]
    told = [[one["figure"], one["holds"], one["why"]] for one in result["claims"]]
    for name, columns, lines in (
        ("options, on a healthy node", ("option", "at 1", "at 64", "why"), options),
        ("claims", ("figure", "holds", "why"), told),
        ("collectives, measured", measured.COLUMNS, result["collectives"]),
    ):
        if lines:
            report.table(name, columns, lines)


WIRE = ("tensor_parallel", "expert_parallel", "expert_parallel_without_local")


def _row(point: Mapping[str, Any]) -> list[str]:
    known = [number(point[name]) if point[name] else "-" for name in ("healthy_tok_s", "reference_tok_s")]
    error = f"{point['error']:+.0%}" if point["error"] is not None else "-"
    weights = f"{point['weight_bytes'] / 1e9:.0f}"
    floor, top = f"{max(point['memory_ms'], point['compute_ms']):.1f}", number(point["ceiling_tok_s"])
    return [str(point["streams"]), f"{point['coverage']:.1%}", weights, floor, top, *known, error]
