"""GLM-5's layers with random weights, cut for tensor parallelism, and a decode step as one CUDA graph a batch size.

Each rank holds its share of the heads and of every expert's width: the class is built with 1/n of them, and what the
attention and the MLP of a layer give is summed over the ranks. Weights that all ranks hold are drawn from one seed.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

SHARED_OUT = re.compile(r"q_b_proj|kv_b_proj|o_proj|\.experts\.|shared_experts|mlp\.(gate|up|down)_proj")
BATCHES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Scale:
    """What is built. `small` replaces sizes, for a try on a CPU."""

    layers: int
    length: int  # tokens of context that a slot can hold
    small: dict[str, int] | None = None


class SlotCache:
    """Keys and values of every slot, as transformers' attention asks for them; where to write is set beforehand."""

    def __init__(self, layers: int, slots: int, length: int) -> None:
        self.slots, self.length = slots, length
        self.parts: dict[tuple[str, int], torch.Tensor] = {}
        self.batch = 0  # slots of a decode step; 0: a prefill
        self.slot = 0
        self.positions = torch.zeros(0, dtype=torch.long)
        self.is_compileable = False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def _put(self, kind: str, layer: int, new: torch.Tensor) -> torch.Tensor:
        """`new`: [batch, heads, tokens, size]."""
        whole = self.parts.get((kind, layer))
        if whole is None:
            shape = (self.slots, new.shape[1], self.length, new.shape[3])
            whole = self.parts[kind, layer] = torch.zeros(shape, dtype=new.dtype, device=new.device)
        if not self.batch:
            whole[self.slot, :, : new.shape[2]] = new[0]
            return new
        rows = torch.arange(self.batch, device=new.device)
        whole[rows, :, self.positions[: self.batch]] = new[:, :, 0]
        return whole[: self.batch]

    def update(self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        return self._put("key", layer_idx, key), self._put("value", layer_idx, value)

    def update_indexer(self, key: torch.Tensor, layer_idx: int) -> torch.Tensor:
        return self._put("index", layer_idx, key.unsqueeze(1)).squeeze(1)


class Engine:
    """One rank: `prefill(slot, tokens)` and `decode(batch)`, called in the same order on every rank."""

    def __init__(self, rank: int, ranks: int, scale: Scale, slots: int, device: torch.device) -> None:
        self.rank, self.ranks, self.scale, self.device = rank, ranks, scale, device
        self.model = build(rank, ranks, scale, device)
        self.kind = self.model.config.layer_types[0]
        self.cache = SlotCache(scale.layers, slots, scale.length)
        self.tokens = torch.zeros(slots, dtype=torch.long, device=device)
        self.positions = torch.zeros(slots, dtype=torch.long, device=device)
        self.cache.positions = self.positions
        self.places = torch.arange(scale.length, device=device)
        self.graphs: dict[int, Any] = {}

    def prefill(self, slot: int, tokens: list[int]) -> int:
        """Fill a slot; returns its first output token."""
        ids = torch.tensor([tokens], device=self.device)
        places = self.places[: len(tokens)]
        mask = (places[None, :] <= places[:, None])[None, None]
        self.cache.batch, self.cache.slot = 0, slot
        with torch.inference_mode():
            self.tokens[slot : slot + 1] = self._run(ids, places[None], mask)
            self.positions[slot] = len(tokens)
        return int(self.tokens[slot])

    def decode(self, batch: int) -> list[int]:
        """One token more in the first `batch` slots."""
        with torch.inference_mode():
            if batch in self.graphs:
                self.graphs[batch].replay()
            else:
                self._step(batch)
        tokens: list[int] = self.tokens[:batch].tolist()
        return tokens

    def capture(self, batches: tuple[int, ...]) -> None:
        for batch in batches:
            with torch.inference_mode():
                for _ in range(3):
                    self._step(batch)
                torch.cuda.synchronize(self.device)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    self._step(batch)
            self.graphs[batch] = graph

    def _step(self, batch: int) -> None:
        self.cache.batch = batch
        at = self.positions[:batch]
        mask = (self.places[None, :] <= at[:, None])[:, None, None, :]
        self.tokens[:batch] = self._run(self.tokens[:batch, None], at[:, None], mask)
        self.positions[:batch] = (at + 1).clamp(max=self.scale.length - 1)

    def _run(self, ids: torch.Tensor, places: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The next token of each row, drawn at temperature 1 by the first rank."""
        hidden = self.model.model(
            input_ids=ids,
            position_ids=places,
            attention_mask={self.kind: mask},
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state[:, -1]
        shares = torch.softmax(self.model.lm_head(hidden).float(), -1)
        drawn = (shares / torch.empty_like(shares).exponential_(1.0).clamp_(min=1e-10)).argmax(-1)
        if self.ranks > 1:
            dist.broadcast(drawn, 0)
        return drawn


def build(rank: int, ranks: int, scale: Scale, device: torch.device) -> Any:
    from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM

    sizes = {"num_attention_heads": 64, "intermediate_size": 12288, "moe_intermediate_size": 2048}
    sizes |= {name: value for name, value in (scale.small or {}).items() if name in sizes}
    cut = {name: value // ranks for name, value in sizes.items()}
    other = {name: value for name, value in (scale.small or {}).items() if name not in sizes}
    config = GlmMoeDsaConfig(
        num_hidden_layers=scale.layers,
        first_k_dense_replace=1,
        num_key_value_heads=cut["num_attention_heads"],
        index_topk_freq=1,
        **cut,
        **other,
    )
    config._attn_implementation = "sdpa"
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = GlmMoeDsaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model = model.to_empty(device=device).eval()
    generator = torch.Generator(device)
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            torch.nn.init.zeros_(weight) if name.endswith("bias") else torch.nn.init.ones_(weight)
            continue
        own = rank if SHARED_OUT.search(name) else 0
        generator.manual_seed(zlib.crc32(name.encode()) * 16 + own)
        with torch.no_grad():
            for part in weight if weight.ndim == 3 else (weight,):  # a whole layer's experts at once would need floats
                part.normal_(0.0, 0.02, generator=generator)
    rotary = model.model.rotary_emb
    for name in ("inv_freq", "original_inv_freq"):
        setattr(rotary, name, rotary.compute_default_rope_parameters(config)[0].to(device))
    for name, value in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            value.zero_()
    if ranks > 1:
        for layer in model.model.layers:
            layer.self_attn.register_forward_hook(_summed)
            layer.mlp.register_forward_hook(_summed)
    return model


def _summed(_: Any, __: Any, out: Any) -> Any:
    first = out[0] if isinstance(out, tuple) else out
    dist.all_reduce(first)
    return out
