"""What SGLang makes of its arguments on eight RTX PRO 6000 (SM120): attention and KV choices, sizes, and the log
lines that say so.

The rules are those of server_args.py (0.5.8 to 0.5.18) and arg_groups/overrides.py (0.5.19 on) in the published wheels.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import release

DSA_MODELS = ("GlmMoeDsaForCausalLM", "DeepseekV32ForCausalLM")
SM = 12
CARD_GB = 97_887 / 1024  # GiB of one card: nvidia-smi says 97887 MiB
WEIGHTS_GB = 57.06 * 8  # of GLM-5-NVFP4; 57.06 GiB a card at TP8 in the log of the rtx6kpro deployment guide
OTHER_GB = 1.56  # that a card holds besides weights and KV, from the same log: 0.92 * 95.59 - 57.06 - 29.32
KV_BYTES = {"bfloat16": 100_152, "fp8_e4m3": 61_464}  # a token: (576 * 2 + 132) * 78 and (656 + 132) * 78


class Refused(Exception):
    """SGLang ends with a traceback and exit code 1; the text is its last line."""


@dataclass
class Resolved:
    """The settings that a server really runs with."""

    args: dict[str, Any]
    config: dict[str, Any]
    dsa: bool
    page_size: int
    kv_dtype: str
    context_length: int
    kv_tokens: int
    kv_gb: float
    weights_gb: float  # of one card
    graph_max_bs: int
    lines: list[str] = field(default_factory=list)

    @property
    def facts(self) -> dict[str, Any]:
        """What a knob's `fail_when` may ask for."""
        return {**self.args, "kv_cache_dtype": self.kv_dtype}

    @property
    def device(self) -> str:
        return str(self.args.get("device") or "cuda")

    @property
    def name(self) -> str:
        return str(self.args.get("served_model_name") or self.args["model_path"])

    @property
    def tp(self) -> int:
        return int(self.args.get("tp_size") or 1)

    @property
    def architecture(self) -> str:
        return str((self.config.get("architectures") or ["LlamaForCausalLM"])[0])

    @property
    def eos(self) -> int:
        """The token that ends an assistant's turn: <|user|>, the second of GLM's three."""
        found = self.config.get("eos_token_id", 0)
        return int(found[min(1, len(found) - 1)] if isinstance(found, list) else found)


def resolve(args: dict[str, Any], *, max_tokens: int | None = None, graph_max_bs: int | None = None) -> Resolved:
    """Raises Refused for what SGLang refuses at this point."""
    config = _config(str(args["model_path"]))
    cuda = (args.get("device") or "cuda") == "cuda"
    dsa = cuda and (config.get("architectures") or [""])[0] in DSA_MODELS
    lines: list[str] = []
    args = dict(args)
    args["tokenizer_path"] = args.get("tokenizer_path") or args["model_path"]
    args["served_model_name"] = args.get("served_model_name") or args["model_path"]
    if dsa:
        _attention(args, lines)
    if cuda and release.at_least("0.5.23") and args.get("ep_size", 1) not in (1, args.get("tp_size", 1)):
        raise Refused("AssertionError: The expert parallel size must be 1 or the same as the tensor parallel size")
    if (
        cuda
        and release.at_least("0.5.20")
        and args.get("moe_runner_backend") == "auto"
        and args.get("quantization") == "modelopt_fp4"
    ):
        args["moe_runner_backend"] = "flashinfer_cutlass"
    if cuda and args.get("mem_fraction_static") is None:
        args["mem_fraction_static"] = 0.833 if release.at_least("0.5.20") else 0.848
    if args.get("chunked_prefill_size") is None:
        args["chunked_prefill_size"] = 8192
    kv = (
        str(args["kv_cache_dtype"])
        if dsa
        else {"auto": "bfloat16", "bf16": "bfloat16"}.get(args["kv_cache_dtype"], args["kv_cache_dtype"])
    )
    weights, kv_gb, tokens = _memory(args, dsa, kv, max_tokens)
    args["page_size"] = 64 if dsa else args.get("page_size") or 1
    return Resolved(
        args=args,
        config=config,
        dsa=dsa,
        page_size=int(args["page_size"]),
        kv_dtype=kv,
        context_length=int(args.get("context_length") or config.get("max_position_embeddings") or 2048),
        kv_tokens=tokens,
        kv_gb=kv_gb,
        weights_gb=weights,
        graph_max_bs=graph_max_bs if graph_max_bs is not None else _graphs(args, cuda),
        lines=lines,
    )


def _config(path: str) -> dict[str, Any]:
    """What transformers says of a path that is no model is the last line of SGLang's traceback."""
    file = Path(path) / "config.json"
    if not Path(path).is_dir():
        raise Refused(
            f"OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{path}'. Use "
            f"`repo_type` argument if needed."
        )
    if not file.is_file():
        raise Refused(
            f"OSError: {path} does not appear to have a file named config.json. "
            f"Checkout 'https://huggingface.co/{path}/tree/main' for available files."
        )
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def _attention(args: dict[str, Any], lines: list[str]) -> None:
    new = release.at_least("0.5.13.post1")
    kind = "dsa" if new else "nsa"
    if args.get("attention_backend") is None:
        args["attention_backend"] = kind
        lines.append(f"Use {kind} attention backend for DeepSeek with DSA.")
    tp = int(args.get("tp_size") or 1)
    if tp > 1:
        dp = "attn_dp_size" if release.at_least("0.5.22") else "dp_size"
        lines.append(
            f"DSA with TP mode is active, {dp}=1, tp_size={tp}, attn_tp_size={tp}, attention weights "
            f"will be sharded across {tp} ranks."
        )
    lines.append("Setting page size to 64 for DeepSeek DSA.")
    prefill, decode = args.get("dsa_prefill_backend"), args.get("dsa_decode_backend")
    if (prefill or decode) and args["kv_cache_dtype"] == "auto":
        lines.append(
            f"When specifying --{kind}-prefill-backend or --{kind}-decode-backend, you should also "
            f"explicitly set --kv-cache-dtype "
            "(e.g., 'fp8_e4m3' or 'bfloat16'). DeepSeek V3.2 defaults to FP8 KV cache which may not be "
            "compatible with all backends."
        )
    if args["kv_cache_dtype"] == "auto":
        args["kv_cache_dtype"] = "fp8_e4m3"
        lines.append(f"Setting KV cache dtype to fp8_e4m3 for DeepSeek DSA on SM{SM} device.")
    kv = args["kv_cache_dtype"] = {"bf16": "bfloat16"}.get(args["kv_cache_dtype"], args["kv_cache_dtype"])
    if kv not in KV_BYTES:
        raise Refused("AssertionError: DeepSeek DSA only supports bf16/bfloat16 or fp8_e4m3 kv_cache_dtype")
    chosen = _defaults(kv)
    if kv == "fp8_e4m3" and release.at_least("0.5.10") and not release.at_least("0.5.11"):
        prefill = decode = None  # whatever was asked for: _set_default_nsa_backends of 0.5.10
    args["dsa_prefill_backend"], args["dsa_decode_backend"] = prefill or chosen[0], decode or chosen[1]
    if kv == "fp8_e4m3" and release.at_least("0.5.17"):
        # These releases print the default even where the command line says otherwise; what runs is what was asked for.
        lines.append(f"Set DSA backends for GLM FP8 KV Cache on SM120/SM121: prefill={chosen[0]}, decode={chosen[1]}.")
    else:
        shown = f"prefill={args['dsa_prefill_backend']}, decode={args['dsa_decode_backend']}"
        lines.append(f"Set {kind.upper()} backends for {kv} KV Cache: {shown}.")


def _defaults(kv: str) -> tuple[str, str]:
    """(prefill, decode) that the release picks on SM120."""
    if kv == "bfloat16":
        return ("flashmla_sparse", "trtllm")
    if release.at_least("0.5.17"):
        return ("flashinfer_sparse_mla", "flashinfer_sparse_mla")
    return ("trtllm", "trtllm") if release.at_least("0.5.10") else ("flashmla_auto", "flashmla_kv")


def _memory(args: dict[str, Any], dsa: bool, kv: str, max_tokens: int | None) -> tuple[float, float, int]:
    """GiB of weights and of KV on a card, and KV tokens. A size of its own has only the model whose sizes are known."""
    asked = max_tokens or args.get("max_total_tokens")
    if not dsa:
        return 0.0, 0.0, int(asked or 262_144)
    weights = WEIGHTS_GB / int(args.get("tp_size") or 1)
    room = CARD_GB * float(args["mem_fraction_static"]) - weights - OTHER_GB
    tokens = int(room * 2**30 / KV_BYTES[kv]) // 64 * 64
    if asked:
        tokens = min(tokens, int(asked))
    return weights, tokens * KV_BYTES[kv] / 2**30, tokens


def _graphs(args: dict[str, Any], cuda: bool) -> int:
    """The largest batch with a captured graph, 0 without any. 512 is what a 96 GB card gets by default."""
    off = (
        args.get("disable_cuda_graph")
        or args.get("disable_decode_cuda_graph")
        or args.get("cuda_graph_backend_decode") == "disabled"
    )
    if off or not cuda:
        return 0
    sizes = args.get("cuda_graph_bs_decode")
    return max(sizes) if sizes else int(args.get("cuda_graph_max_bs_decode") or 512)
