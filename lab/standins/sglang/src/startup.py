"""The lines of a start, in order, each with the share of the start delay that passes before it."""

from __future__ import annotations

from collections.abc import Iterator

from . import release
from .resolve import CARD_GB, Resolved


def arguments_line(resolved: Resolved) -> str:
    """SGLang prints everything here, the API key included.

    From 0.5.22 on it is a dict, before that a ServerArgs(...).
    """
    if release.at_least("0.5.22"):
        return f"server_args={resolved.args!r}"
    return "server_args=ServerArgs(" + ", ".join(f"{key}={value!r}" for key, value in named(resolved)) + ")"


# Settings that older releases call otherwise, and the release that renamed them.
BEFORE = {
    "dsa_prefill_backend": ("nsa_prefill_backend", "0.5.13.post1"),
    "dsa_decode_backend": ("nsa_decode_backend", "0.5.13.post1"),
    "cuda_graph_max_bs_decode": ("cuda_graph_max_bs", "0.5.14"),
    "cuda_graph_bs_decode": ("cuda_graph_bs", "0.5.14"),
}


def named(resolved: Resolved) -> Iterator[tuple[str, object]]:
    """The settings under the names of this release."""
    for key, value in resolved.args.items():
        old, renamed = BEFORE.get(key, (key, "0"))
        yield (key if old == key or release.at_least(renamed) else old), value


def loading(resolved: Resolved, seconds: float) -> Iterator[tuple[float, str]]:
    """Scheduler lines from the first to the capture of the graphs.

    `seconds` is the whole delay, shown as elapsed times.
    """
    free = CARD_GB - 0.8 if resolved.device == "cuda" else 21.8
    yield 0.05, "Init parallel begin." if release.at_least("0.5.21") else "Init torch distributed begin."
    if resolved.device == "cuda" and resolved.tp > 1:
        yield 0.02, "sglang is using nccl==2.28.9"
    if release.at_least("0.5.21"):
        yield 0.05, f"Init parallel ends. elapsed={seconds * 0.05:.2f} s"
    else:
        yield 0.05, f"Init torch distributed ends. elapsed={seconds * 0.05:.2f} s, mem usage=0.80 GB"
    yield 0.03, f"Load weight begin. avail mem={free:.2f} GB"
    free -= resolved.weights_gb
    kind = "" if release.at_least("0.5.10") else "dtype=torch.bfloat16, "
    yield (
        0.3,
        f"Load weight end. elapsed={seconds * 0.3:.2f} s, type={resolved.architecture}, {kind}avail mem={free:.2f} GB, "
        f"mem usage={resolved.weights_gb:.2f} GB.",
    )


def pools(resolved: Resolved) -> Iterator[tuple[float, str]]:
    free = (CARD_GB - 0.8 if resolved.device == "cuda" else 21.8) - resolved.weights_gb - resolved.kv_gb
    dtype = {"bfloat16": "torch.bfloat16", "fp8_e4m3": "torch.float8_e4m3fn"}.get(
        resolved.kv_dtype, f"torch.{resolved.kv_dtype}"
    )
    lean = release.at_least("0.5.13.post1")
    if not lean:
        yield 0.01, f"Using KV cache dtype: {dtype}"
    size = (
        f"KV size: {resolved.kv_gb:.2f} GB"
        if resolved.dsa
        else f"K size: {resolved.kv_gb / 2:.2f} GB, V size: {resolved.kv_gb / 2:.2f} GB"
    )
    yield 0.02, f"KV Cache is allocated. {f'dtype: {dtype}, ' if lean else ''}#tokens: {resolved.kv_tokens}, {size}"
    yield 0.01, f"Memory pool end. avail mem={free:.2f} GB"


def graphs(resolved: Resolved, seconds: float) -> Iterator[tuple[float, str]]:
    if not resolved.graph_max_bs:
        return
    free = CARD_GB - 0.8 - resolved.weights_gb - resolved.kv_gb
    if release.at_least("0.5.14"):
        yield (
            0.01,
            f"Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, avail mem={free:.2f} GB",
        )
        sizes = [one for one in (1, 2, 4, 8, 12, 16, 24, *range(32, 513, 8)) if one <= resolved.graph_max_bs]
        yield (
            0.4,
            f"Capture target decode CUDA graph end. bs={sizes}, elapsed={seconds * 0.4:.2f} s, mem "
            f"usage=0.93 GB, avail mem={free - 0.93:.2f} GB.",
        )
    else:
        yield 0.01, f"Capture cuda graph begin. This can take up to several minutes. avail mem={free:.2f} GB"
        yield (
            0.4,
            f"Capture cuda graph end. Time elapsed: {seconds * 0.4:.2f} s. mem usage=0.93 GB. avail "
            f"mem={free - 0.93:.2f} GB.",
        )


def ready(resolved: Resolved, max_running: int) -> Iterator[tuple[float, str]]:
    free = (CARD_GB - 0.8 if resolved.device == "cuda" else 21.8) - resolved.weights_gb - resolved.kv_gb - 0.93
    memory = "available_cpu_mem" if resolved.device == "cpu" else "available_gpu_mem"
    yield (
        0.02,
        f"max_total_num_tokens={resolved.kv_tokens}, chunked_prefill_size={resolved.args['chunked_prefill_size']}, "
        f"max_prefill_tokens={resolved.args.get('max_prefill_tokens') or 16384}, max_running_requests={max_running}, "
        f"context_len={resolved.context_length}, {memory}={free:.2f} GB",
    )
