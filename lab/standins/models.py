"""A model folder in the shape of GLM-5-NVFP4, a few MB instead of 410 GB: real file names and formats, tensors of
zeros.

`config.json` has the published values of GLM-5 (zai-org/GLM-5-FP8, config.json), so that whatever reads it computes
with the real shape.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

NAME = "glm-5-nvfp4"
SHARDS = 4
SHARD_BYTES = 2 << 20  # of tensor data in each
STAND_IN = "lab stand-in: no real weights"

EOS = [154_820, 154_827, 154_829]
SPECIAL = {
    "<|endoftext|>": 154_820,
    "[MASK]": 154_821,
    "[gMASK]": 154_822,
    "[sMASK]": 154_823,
    "<sop>": 154_824,
    "<eop>": 154_825,
    "<|system|>": 154_826,
    "<|user|>": 154_827,
    "<|assistant|>": 154_828,
    "<|observation|>": 154_829,
    "<think>": 154_841,
    "</think>": 154_842,
}

CONFIG: dict[str, Any] = {
    "_comment": STAND_IN,
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "dtype": "bfloat16",
    "num_hidden_layers": 78,
    "hidden_size": 6144,
    "intermediate_size": 12288,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "n_group": 1,
    "topk_group": 1,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 1,
    "rope_theta": 1_000_000,
    "rms_norm_eps": 1e-05,
    "hidden_act": "silu",
    "q_lora_rank": 2048,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 192,
    "qk_head_dim": 256,
    "v_head_dim": 256,
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "index_topk": 2048,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "indexer_rope_interleave": True,
    "vocab_size": 154_880,
    "max_position_embeddings": 202_752,
    "eos_token_id": EOS,
    "pad_token_id": EOS[0],
    "transformers_version": "5.0.2.dev0",
    "quantization_config": {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "group_size": 16,
        "ignore": ["lm_head", "*self_attn*"],
    },
}

CHAT_TEMPLATE = (
    "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>\n"
    "{{ m.content if m.content is string else (m.content | map(attribute='text') | join('')) }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def write(out: Path) -> Path:
    """Write the folder and its manifest below `out`, always the same bytes. Returns the folder."""
    folder = out / NAME
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": _pretty(CONFIG),
        "generation_config.json": _pretty(
            {"eos_token_id": EOS, "pad_token_id": EOS[0], "temperature": 1.0, "top_p": 0.95}
        ),
        "hf_quant_config.json": _pretty(
            {
                "producer": {"name": "modelopt", "version": STAND_IN},
                "quantization": {
                    "quant_algo": "NVFP4",
                    "kv_cache_quant_algo": None,
                    "group_size": 16,
                    "exclude_modules": ["lm_head"],
                },
            }
        ),
        "tokenizer.json": _pretty(_tokenizer()),
        "tokenizer_config.json": _pretty(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|endoftext|>",
                "pad_token": "<|endoftext|>",
                "chat_template": CHAT_TEMPLATE,
            }
        ),
        **_weights(),
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    listed = [
        {"path": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in sorted(files.items())
    ]
    (folder / "manifest.json").write_bytes(_pretty({"comment": STAND_IN, "files": listed}))
    return folder


def _pretty(value: object) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def _weights() -> dict[str, bytes]:
    """Shards with the first experts' names, and the index that a loader reads."""
    shards: dict[str, bytes] = {}
    places: dict[str, str] = {}
    for number in range(1, SHARDS + 1):
        name = f"model-{number:05d}-of-{SHARDS:05d}.safetensors"
        tensors = {
            f"model.layers.{number + 2}.mlp.experts.0.down_proj.weight": ("U8", [1024, SHARD_BYTES // 1024 - 1]),
            f"model.layers.{number + 2}.mlp.experts.0.down_proj.weight_scale": ("U8", [1, 1024]),
        }
        shards[name] = safetensors(tensors)
        places.update(dict.fromkeys(tensors, name))
    total = sum(SHARD_BYTES for _ in range(SHARDS))
    index = {"metadata": {"total_size": total, "comment": STAND_IN}, "weight_map": places}
    return {**shards, "model.safetensors.index.json": _pretty(index)}


def safetensors(tensors: dict[str, tuple[str, list[int]]]) -> bytes:
    """A safetensors file of zeros: eight bytes of header length, a JSON header padded with blanks, the data.

    U8 only: a byte an element.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt", "comment": STAND_IN}}
    at = 0
    for name, (dtype, shape) in tensors.items():
        size = 1
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(at)


def _tokenizer() -> dict[str, Any]:
    """A byte-level BPE without merges, in the format of the tokenizers library: id 0 is '!', as in GLM's vocabulary."""
    letters = _byte_letters()
    vocabulary = {letter: index for index, letter in enumerate(sorted(letters, key=lambda one: (one != "!", one)))}
    added = [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for token, index in SPECIAL.items()
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }


def _byte_letters() -> list[str]:
    """The 256 printable letters that byte-level BPE writes bytes with."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [256 + place for place in range(256 - len(plain))]
    return [chr(one) for one in (*plain, *others)]
