"""Combinations of arguments that are known to fail, refused before anything is written, each with its source.

SGLang lets several of them through (memory fraction 1.2, TP 6, EP 3, two-batch overlap without a backend) and dies
minutes later, or answers garbage. A rule is a row: when it holds, why it fails, who says so, and what to do instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from runbooks.inventory.shape import Bench, Gpus, Model
from runbooks.sglang.flags import Value, version_key

Args = Mapping[str, Value]

NVFP4_BITS = 4.5  # four, and one FP8 scale for every sixteen


@dataclass(frozen=True)
class Setting:
    """All that a rule may look at: resolved canonical arguments, and what they meet on the host."""

    args: Args
    version: str
    model: Model
    gpus: Gpus
    bench: Bench

    def get(self, name: str) -> Value | None:
        return self.args.get(name)

    def number(self, name: str, default: int) -> int:
        value = self.args.get(name, default)
        return int(value) if isinstance(value, int | float) else default

    def on(self, name: str) -> bool:
        return self.args.get(name) is True

    def before(self, version: str) -> bool:
        return version_key(self.version) < version_key(version)

    @property
    def cuda(self) -> bool:
        return self.args.get("device", "cuda") == "cuda"

    @property
    def blackwell_workstation(self) -> bool:
        """SM120: RTX PRO 6000 and its kin, which lack the tensor memory that SM100 kernels need."""
        return self.cuda and self.gpus.arch.replace(".", "") in ("120", "121")

    @property
    def sparse(self) -> bool:
        """Whether the model's sparse attention serves: chosen, or left to SGLang for a model that has it."""
        backend = self.args.get("attention_backend")
        return backend in ("dsa", "nsa") or (backend is None and self.model.shape.index_topk is not None)

    @property
    def dsa(self) -> tuple[Value, ...]:
        chosen = (self.args.get("dsa_prefill_backend"), self.args.get("dsa_decode_backend"))
        return tuple(backend for backend in chosen if backend is not None)


@dataclass(frozen=True)
class Rule:
    id: str
    when: Callable[[Setting], bool]
    reason: str
    source: str
    instead: str


def broken(setting: Setting) -> list[Rule]:
    """Every rule that this setting breaks, in the order of the table."""
    return [rule for rule in RULES if rule.when(setting)]


def _memory_fraction(s: Setting) -> bool:
    value = s.get("mem_fraction_static")
    return isinstance(value, int | float) and not 0 < value < 1


def _tensor_parallel(s: Setting) -> bool:
    ranks = s.number("tp_size", 1) * s.number("pp_size", 1)
    return s.cuda and ranks != s.gpus.count * s.number("nnodes", 1)


def _expert_parallel(s: Setting) -> bool:
    return s.number("ep_size", 1) not in (1, s.number("tp_size", 1))


def _uneven(s: Setting) -> bool:
    """Heads are shared out over the ranks, and so is each expert's width; with expert parallelism their count."""
    ranks, shape = s.number("tp_size", 1), s.model.shape
    if ranks < 1:
        return True
    experts = shape.experts if s.number("ep_size", 1) > 1 else shape.moe_intermediate or shape.experts
    return any(count % ranks != 0 for count in (shape.heads or 0, experts or 0))


def _dead_letters(s: Setting) -> bool:
    """trtllm under FlashInfer's attention is left through: there the pair decides the layout of the FP8 cache."""
    return (
        bool(s.dsa) and not s.sparse and not (s.get("attention_backend") == "flashinfer" and set(s.dsa) == {"trtllm"})
    )


def _packed_cache(s: Setting) -> bool:
    dense = s.get("attention_backend") == "flashinfer" and s.model.shape.index_topk is not None
    fp8 = s.get("kv_cache_dtype") in (None, "auto", "fp8_e4m3")
    return s.blackwell_workstation and not s.before("0.5.17") and dense and fp8 and s.dsa != ("trtllm", "trtllm")


def _replaced_pair(s: Setting) -> bool:
    fp8 = s.get("kv_cache_dtype") in (None, "auto", "fp8_e4m3")
    this = not s.before("0.5.10") and s.before("0.5.11")
    return this and s.blackwell_workstation and s.sparse and fp8 and bool(set(s.dsa) - {"trtllm"})


def _quantization(s: Setting) -> bool:
    """The bits of a stored weight tell what the checkpoint is, whatever its folder is called."""
    chosen = s.get("quantization")
    nvfp4 = "nvfp4" in s.model.source.lower() or _bits(s.model) == NVFP4_BITS
    other = not nvfp4 and _bits(s.model) is not None
    return (nvfp4 and chosen not in (None, "modelopt", "modelopt_fp4", "modelopt_mixed")) or (
        other and chosen == "modelopt_fp4"
    )


def _bits(model: Model) -> float | None:
    """Bits of a routed expert's weight, to the half; None where the inventory does not say enough."""
    shape = model.shape
    weights = 3 * shape.hidden * (shape.moe_intermediate or 0) * shape.experts * shape.moe_layers
    return round(16 * shape.routed_expert_bytes / weights) / 2 if weights else None


def _graphs_too_small(s: Setting) -> bool:
    most = s.get("cuda_graph_max_bs_decode")
    graphs = not s.on("disable_cuda_graph") and s.get("cuda_graph_backend_decode") != "disabled"
    return graphs and isinstance(most, int) and most < _swept(s)


def _swept(s: Setting) -> int:
    return max(s.bench.concurrency, default=1)


def _running_too_few(s: Setting) -> bool:
    most = s.get("max_running_requests")
    return isinstance(most, int) and most < _swept(s)


def _speculates(s: Setting) -> bool:
    return str(s.get("speculative_algorithm")).upper() in ("EAGLE", "NEXTN")


RULES: tuple[Rule, ...] = (
    Rule(
        "memory fraction",
        _memory_fraction,
        "mem_fraction_static is a share of the GPU's memory, between 0 and 1; SGLang takes 1.2 and dies while loading",
        "sglang server_args.py: parsed as any float",
        "0.85 to 0.92",
    ),
    Rule(
        "tensor parallel size",
        _tensor_parallel,
        "tp_size times pp_size must be the number of GPUs: fewer leaves cards idle, more cannot start",
        "sglang server_args.py: not checked before the workers start",
        "leave tp_size out: it is the number of GPUs of the inventory",
    ),
    Rule(
        "uneven split",
        _uneven,
        "tp_size does not divide the attention heads or the experts evenly; SGLang takes it and fails while it loads",
        "sglang server_args.py: --tp-size 6 passes",
        "a power of two: 8",
    ),
    Rule(
        "expert parallel size",
        _expert_parallel,
        "ep_size must be 1 or tp_size; versions before 0.5.23 take any number",
        "sglang 0.5.23 server_args.py: 'expert parallel size must be 1 or the same as the tensor parallel size'",
        "ep_size: 1 or the number of GPUs",
    ),
    Rule(
        "two-batch overlap",
        lambda s: s.on("enable_two_batch_overlap") and s.get("moe_a2a_backend") in (None, "none"),
        "two-batch overlap hides the all-to-all of expert parallelism; without moe_a2a_backend there is none to hide",
        "sglang server_args.py: 'When enabling two batch overlap, moe_a2a_backend cannot be none'",
        "set moe_a2a_backend (and ep_size), or leave enable_two_batch_overlap out",
    ),
    Rule(
        "tilelang needs bf16 KV",
        lambda s: s.sparse and "tilelang" in s.dsa and str(s.get("kv_cache_dtype")).startswith("fp8"),
        "the tilelang DSA kernels take an fp8_e4m3 KV cache on ROCm only; on CUDA they need bfloat16",
        "https://github.com/sgl-project/sglang/issues/40286",
        "kv_cache_dtype: bf16",
    ),
    Rule(
        "FlashInfer sparse MLA needs fp8 KV",
        lambda s: (
            s.sparse and "flashinfer_sparse_mla" in s.dsa and s.get("kv_cache_dtype") not in (None, "auto", "fp8_e4m3")
        ),
        "flashinfer_sparse_mla reads the packed FP8 cache (656 bytes a token) and no other",
        "https://github.com/sgl-project/sglang/pull/26928",
        "kv_cache_dtype: fp8_e4m3, or tilelang with bf16",
    ),
    Rule(
        "FlashInfer sparse MLA needs pages of 64",
        lambda s: s.sparse and "flashinfer_sparse_mla" in s.dsa and s.number("page_size", 64) != 64,
        "flashinfer_sparse_mla requires page_size=64",
        "https://github.com/sgl-project/sglang/pull/26928",
        "page_size: 64, or leave it out",
    ),
    Rule(
        "DSA KV dtype",
        lambda s: s.sparse and s.get("kv_cache_dtype") not in (None, "auto", "bf16", "bfloat16", "fp8_e4m3"),
        "sparse attention takes a KV cache of bf16, bfloat16 or fp8_e4m3 only",
        "sglang dsa_backend.py: asserted at start",
        "kv_cache_dtype: fp8_e4m3",
    ),
    Rule(
        "DSA backend without DSA",
        _dead_letters,
        "dsa_prefill_backend and dsa_decode_backend choose kernels only under attention_backend: dsa",
        "https://github.com/sgl-project/sglang/pull/25821",
        "attention_backend: dsa, or take the two away (null)",
    ),
    Rule(
        "DSA pair that 0.5.10 replaces",
        _replaced_pair,
        "with FP8 KV 0.5.10 puts trtllm in the place of the DSA pair that was asked for; 0.5.11 keeps it",
        "sglang 0.5.10 server_args.py: _set_default_nsa_backends",
        "another version, kv_cache_dtype: bf16, or the pair at trtllm",
    ),
    Rule(
        "packed FP8 cache under dense attention",
        _packed_cache,
        "with FP8 KV the DSA pair is then flashinfer_sparse_mla, whose packed cache FlashInfer's dense attention "
        "misreads: one right token, then '!'",
        "https://github.com/Jiminator/sglang-rtx-pro-6000 models/GLM5.2/nvfp4/1k8k",
        "kv_cache_dtype: bf16, or the pair at trtllm",
    ),
    Rule(
        "quantization",
        _quantization,
        "the checkpoint's weights are stored otherwise than this quantization reads; SGLang takes it and fails later",
        "sglang model_config.py: 0.5.9 refuses a mismatch, later versions do not",
        "quantization: modelopt_fp4 for NVFP4 (4.5 bits a weight), none for another checkpoint",
    ),
    Rule(
        "trtllm before 0.5.9",
        lambda s: "trtllm" in s.dsa and s.before("0.5.9"),
        "trtllm is a choice of the DSA backends from 0.5.9 on",
        "https://github.com/sgl-project/sglang/pull/16758",
        "a runtime with SGLang 0.5.9 or newer",
    ),
    Rule(
        "speculation without an MTP layer",
        lambda s: _speculates(s) and not s.get("speculative_draft_model_path") and not s.model.shape.has_mtp_layer,
        "EAGLE and NEXTN draft with the model's own MTP layer, and this checkpoint has none: its load fails",
        "https://github.com/sgl-project/sglang/issues/19796",
        "a checkpoint with the MTP layer and has_mtp_layer: true, or no speculative_algorithm",
    ),
    Rule(
        "graphs below the swept concurrency",
        _graphs_too_small,
        "above cuda_graph_max_bs_decode decoding runs without CUDA graphs: the sweep's upper points would measure that",
        "https://github.com/sgl-project/sglang/issues/29580",
        "cuda_graph_max_bs_decode of at least the largest bench.concurrency, or disable_cuda_graph: true to mean it",
    ),
    Rule(
        "fewer running requests than streams",
        _running_too_few,
        "max_running_requests below the largest bench.concurrency: the sweep's upper points would measure the queue",
        "sglang scheduler: requests above the limit wait",
        "max_running_requests of at least the largest bench.concurrency",
    ),
    Rule(
        "torch.compile without padding",
        lambda s: s.on("enable_torch_compile") and s.on("disable_cuda_graph_padding"),
        "torch.compile and disable_cuda_graph_padding exclude each other",
        "sglang model_runner.py",
        "one of the two",
    ),
    Rule(
        "all-reduce fusion on SM120",
        lambda s: (
            s.blackwell_workstation
            and (
                s.on("enable_flashinfer_allreduce_fusion")
                or s.get("flashinfer_allreduce_fusion_backend") not in (None, "none", "disabled")
            )
        ),
        "FlashInfer's fused all-reduce exists for SM90 and SM10x, and needs NVLink",
        "sglang server_args.py: enabled for SM90 and SM100 only",
        "leave it out",
    ),
    Rule(
        "context longer than the model",
        lambda s: s.number("context_length", 0) > s.model.context_length,
        "context_length is longer than the model's; positions beyond it give garbage or stop the server",
        "https://github.com/sgl-project/sglang/issues/18980",
        "context_length of at most the model's",
    ),
)
