"""What the server says of itself: model names, context, the settings that decide which kernels run, and how busy it
is."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .client import Endpoint, get

SETTINGS: Mapping[str, tuple[str, ...]] = {
    "version": ("version", "sglang_version"),
    "attention_backend": ("attention_backend",),
    "prefill_backend": ("dsa_prefill_backend", "nsa_prefill_backend"),
    "decode_backend": ("dsa_decode_backend", "nsa_decode_backend"),
    "kv_cache_dtype": ("kv_cache_dtype",),
    "moe_runner_backend": ("moe_runner_backend",),
    "fp4_gemm_backend": ("fp4_gemm_runner_backend", "fp4_gemm_backend"),
    "quantization": ("quantization",),
    "speculative_algorithm": ("speculative_algorithm",),
    "disable_radix_cache": ("disable_radix_cache",),
    "disable_custom_all_reduce": ("disable_custom_all_reduce",),
    "tp_size": ("tp_size",),
    "cuda_graph_max_bs": ("cuda_graph_max_bs_decode", "cuda_graph_max_bs"),
    "enable_priority_scheduling": ("enable_priority_scheduling",),
    "standin": ("standin",),  # a simulated server says that it is one
    "schedule_low_priority_values_first": ("schedule_low_priority_values_first",),
}
"""Our name -> the names that versions of SGLang gave it (sglang #25821 renamed nsa to dsa)."""


METRICS: Mapping[str, tuple[str, ...]] = {
    "running": ("sglang:num_running_reqs", "vllm:num_requests_running", "llamacpp:requests_processing"),
    "queued": ("sglang:num_queue_reqs", "vllm:num_requests_waiting", "llamacpp:requests_deferred", "tgi_queue_size"),
    "kv_use": ("sglang:token_usage", "vllm:kv_cache_usage_perc", "llamacpp:kv_cache_usage_ratio"),
    "generated": ("sglang:generation_tokens_total", "vllm:generation_tokens_total", "llamacpp:tokens_predicted_total"),
    "cached": ("sglang:cached_tokens_total", "vllm:prefix_cache_hits_total"),
    "throughput": ("sglang:gen_throughput", "llamacpp:predicted_tokens_seconds"),
}
"""Our name -> the names of engines; a busy server is to be spared, whatever it is called."""


@dataclass(frozen=True)
class About:
    """None: the server did not say."""

    models: tuple[str, ...] = ()
    context: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    running: int | None = None
    queued: int | None = None
    kv_use: float | None = None
    generated: float | None = None  # tokens since the server started
    cached: float | None = None  # prompt tokens that a prefix hit answered, since the server started
    throughput: float | None = None  # tok/s, the server's own last figure

    @property
    def busy(self) -> bool:
        return bool(self.queued) or (self.running or 0) >= 4


def look(endpoint: Endpoint) -> About:
    """Ask for models, settings and metrics. A server that lacks one of them, or hangs on it, costs three seconds at
    most each."""
    models, context = _models(endpoint)
    # /server_info is the present name. The old one hangs for a minute on some versions, so it is asked only where the
    # new one is absent.
    info = document(endpoint, "/server_info", missing="/get_server_info")
    metrics = load(endpoint)
    settings = {ours: value for ours, theirs in SETTINGS.items() if (value := _first(info, theirs)) is not None}
    return About(models=models, context=context, settings=settings, **metrics)


def load(endpoint: Endpoint, *, timeout: float = 3.0) -> dict[str, Any]:
    """How busy the server is, from its Prometheus text; empty where it has none."""
    status, body = get(endpoint, "/metrics", timeout=timeout)
    if status != 200:
        return {}
    text = body.decode("utf-8", "replace")
    found = {ours: _first_metric(text, theirs) for ours, theirs in METRICS.items()}
    whole = {name: None if found[name] is None else int(found[name] or 0) for name in ("running", "queued")}
    return {**found, **whole}


def _first_metric(text: str, names: tuple[str, ...]) -> float | None:
    return next((value for name in names if (value := metric(text, name)) is not None), None)


def metric(text: str, name: str) -> float | None:
    """The largest sample of a metric over its labels (each tensor-parallel rank reports the same queue)."""
    found = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)", text, re.MULTILINE)
    values = []
    for value in found:
        try:
            values.append(float(value))
        except ValueError:
            continue
    return max(values, default=None)


def _models(endpoint: Endpoint) -> tuple[tuple[str, ...], int | None]:
    data = document(endpoint, "/v1/models").get("data")
    entries = [entry for entry in data if isinstance(entry, Mapping)] if isinstance(data, list) else []
    lengths = [entry["max_model_len"] for entry in entries if isinstance(entry.get("max_model_len"), int)]
    return tuple(str(entry.get("id")) for entry in entries), min(lengths, default=None)


def document(endpoint: Endpoint, path: str, missing: str | None = None, *, timeout: float = 3.0) -> Mapping[str, Any]:
    """What a path says in JSON; empty where it says nothing. `missing` is asked where there is no such path."""
    status, body = get(endpoint, path, timeout=timeout)
    if status == 404 and missing:
        status, body = get(endpoint, missing, timeout=timeout)
    if status != 200:
        return {}
    try:
        read = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, Mapping) else {}


def _first(info: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        if info.get(name) is not None:
            return info[name]
    return None
