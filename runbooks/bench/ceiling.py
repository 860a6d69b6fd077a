"""What the hardware allows: bytes that a decode step must move, and the time that this takes at the very least.

Units: bytes, seconds, tokens. `b` is the number of streams that decode at once, `ranks` the GPUs of one tensor-parallel
group. Formulas: expert coverage of a batch is 1-(1-k/E)^b; a ring all-reduce of S bytes over n ranks sends 2(n-1)/n * S
from each (nccl-tests, doc/PERFORMANCE.md); each layer has two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runbooks.inventory.shape import ModelShape


@dataclass(frozen=True)
class Gpu:
    """Peak figures of one card: memory bandwidth in B/s, dense FLOP/s of the narrowest format it computes in.

    `pcie`: such cards talk over PCIe alone, so its counters see all that they send. `decode_watts`: what a healthy
    decode draws, where somebody has published it.
    """

    name: str
    bandwidth: float
    flops: float
    source: str
    pcie: bool = False
    decode_watts: float | None = None


# The first whose name is part of what nvidia-smi says. A limit must not be too low, so where editions of a card differ
# the highest figure stands: RTX PRO 6000 Server Edition boards are published with less than these 1.792 TB/s.
GPUS = (
    Gpu("RTX PRO 6000 Blackwell", 1.792e12, 1.871e15, "aiconfigurator, systems/rtx_pro_6000_server.yaml", True, 300.0),
    Gpu("RTX 6000 Ada", 0.960e12, 0.728e15, "data sheet, FP8 dense", True),
    Gpu("B300", 8.0e12, 14.0e15, "data sheet, FP4 dense"),
    Gpu("B200", 8.0e12, 9.0e15, "data sheet, FP4 dense"),
    Gpu("H200", 4.8e12, 1.979e15, "data sheet, FP8 dense"),
    Gpu("H100", 3.35e12, 1.979e15, "data sheet, FP8 dense"),
    Gpu("A100", 2.039e12, 0.312e15, "data sheet, BF16 dense"),
    Gpu("L40S", 0.864e12, 0.733e15, "data sheet, FP8 dense", True),
)


def gpu_named(name: str) -> Gpu | None:
    """The figures of a card by nvidia-smi's name for it; None for one that is not in the table: no ceiling then."""
    return next((gpu for gpu in GPUS if gpu.name.lower() in name.lower()), None)


def coverage(shape: ModelShape, b: float) -> float:
    """The share of routed experts that a step of b tokens touches, for routing without preference."""
    if not shape.experts:
        return 0.0
    return float(1.0 - (1.0 - shape.experts_per_token / shape.experts) ** b)


def weight_bytes(shape: ModelShape, b: float) -> float:
    """Weights that one step of b tokens reads, over all ranks."""
    return coverage(shape, b) * shape.routed_expert_bytes + shape.other_weight_bytes


def memory_seconds(shape: ModelShape, gpu: Gpu, ranks: int, b: float, context: int) -> float:
    """Weights split over the ranks, and the KV of b contexts, which latent attention keeps whole on every rank."""
    read = context if shape.index_topk is None else min(context, shape.index_topk)
    return (weight_bytes(shape, b) / ranks + b * read * shape.kv_bytes_per_token) / gpu.bandwidth


def compute_seconds(shape: ModelShape, gpu: Gpu, ranks: int, b: float) -> float:
    return 2.0 * shape.active_params * b / ranks / gpu.flops


def message_bytes(shape: ModelShape, b: float) -> float:
    """One all-reduce of a step: the hidden states of b tokens."""
    return b * shape.hidden * shape.activation_bytes


def reductions(shape: ModelShape) -> int:
    """All-reduces of a step under tensor parallelism: one behind attention, one behind the MLP, each layer."""
    return 2 * shape.layers


def tensor_parallel_bytes(shape: ModelShape, ranks: int, b: float) -> float:
    """Sent by each GPU in one step of b tokens."""
    return reductions(shape) * message_bytes(shape, b) * 2 * (ranks - 1) / ranks


def expert_parallel_bytes(shape: ModelShape, ranks: int, b: float, *, without_local: bool = False) -> float:
    """The same with experts spread over the ranks: attention's all-reduce stays, and each MoE layer sends its tokens to
    k experts and back. `without_local` leaves out the 1/n that stays on its own GPU."""
    attention = shape.layers * message_bytes(shape, b) * 2 * (ranks - 1) / ranks
    away = (ranks - 1) / ranks if without_local else 1.0
    return attention + 2 * shape.moe_layers * message_bytes(shape, b) / ranks * shape.experts_per_token * away


@dataclass(frozen=True)
class Ceiling:
    """What one model can reach at best on these cards."""

    shape: ModelShape
    gpu: Gpu
    ranks: int
    context: int  # mean tokens of context while the window ran: prompt and half of the answer

    def memory(self, b: float) -> float:
        return memory_seconds(self.shape, self.gpu, self.ranks, b, self.context)

    def compute(self, b: float) -> float:
        return compute_seconds(self.shape, self.gpu, self.ranks, b)

    def floor(self, b: float) -> float:
        """Seconds that a step cannot be shorter than: memory and arithmetic may overlap, so the longer of the two."""
        return max(self.memory(b), self.compute(b))

    def tok_s(self, b: float) -> float:
        return b / self.floor(b)


# Measured by NVIDIA for exactly this case, at b = 1..64 (aiconfigurator, systems/data/rtx_pro_6000_server: 8-GPU NCCL
# 2.29.2 all-reduce, NVFP4 MoE of SGLang 0.5.14 with hidden 6144, inter 2048, 256 experts, top 8, and MLA):
# b -> (75 MoE layers ms, one all-reduce us, attention ms).
GLM5_KERNELS: Mapping[int, tuple[float, float, float]] = {
    1: (5.4, 27, 1.8),
    2: (6.5, 28, 1.8),
    4: (7.8, 32, 1.9),
    8: (14.8, 42, 1.9),
    16: (19.7, 69, 2.4),
    32: (25.7, 127, 3.4),
    64: (37.1, 142, 5.6),
}
GLM5_PROJECTIONS_MS = 2.7
GLM5_FIXED_MS = 5.7  # norms, router, sampling, launches: the one constant that is fitted, at b = 1


def healthy_step_ms(b: int) -> float:
    """A decode step of GLM-5-NVFP4 on a healthy node of eight RTX PRO 6000, composed from the tables above."""
    moe, reduce_us, attention = GLM5_KERNELS[b]
    return GLM5_FIXED_MS + moe + 156 * reduce_us / 1e3 + attention + GLM5_PROJECTIONS_MS
