"""What runs is read from real log lines and a real /server_info, and held against what was expected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runbooks.sglang.readback import compare, observe

DATA = Path(__file__).parent / "data"


def _journal(version: str) -> list[str]:
    return (DATA / f"journal-{version}-cpu.txt").read_text().splitlines()


def test_a_real_journal_of_0_5_10() -> None:
    observed = observe(_journal("0.5.10.post1"))
    assert observed["attention_backend"] == "torch_native"
    assert observed["kv_cache_dtype"] == "float16"
    assert observed["max_total_num_tokens"] == 4096
    assert observed["max_running_requests"] == 2048
    assert observed["mem_fraction_static"] == 0.05
    assert "cuda_graph_max_bs_decode" not in observed  # "Cuda graph is disabled because ..."
    assert "api_key" not in observed


def test_a_real_journal_of_0_5_23_logs_a_dict() -> None:
    observed = observe(_journal("0.5.23"))
    assert observed["attention_backend"] == "torch_native"
    assert observed["page_size"] == 1
    assert observed["kv_cache_dtype"] == "float16"
    assert observed["disable_radix_cache"] is True


def test_a_real_server_info_of_0_5_23() -> None:
    info = json.loads((DATA / "server-info-0.5.23-cpu.json").read_text())
    observed = observe([], info)
    assert observed["max_total_num_tokens"] == 4096
    assert "kv_cache_dtype" not in observed  # "auto" says that SGLang decides, not what
    assert "cuda_graph_max_bs_decode" not in observed  # its decode graphs are disabled
    info["cuda_graph_config"]["decode"].update(backend="full", max_bs=64)
    assert observe([], info)["cuda_graph_max_bs_decode"] == 64


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("Use dsa attention backend for DeepSeek with DSA.", "attention_backend", "dsa"),
        ("Use nsa attention backend for DeepSeek NSA.", "attention_backend", "dsa"),
        (
            "Set NSA backends for bfloat16 KV Cache: prefill=flashmla_sparse, decode=trtllm.",
            "dsa_decode_backend",
            "trtllm",
        ),
        ("Set DSA backends for GLM FP8 KV Cache on SM120/SM121: prefill=a, decode=b.", "dsa_prefill_backend", "a"),
        ("Setting page size to 64 for DeepSeek DSA.", "page_size", 64),
        ("KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 478848", "kv_cache_dtype", "fp8_e4m3"),
        ("Using KV cache dtype: torch.bfloat16", "kv_cache_dtype", "bfloat16"),
        ("Capture cuda graph bs [1, 2, 4, 8]", "cuda_graph_max_bs_decode", 8),
        ("Capture target decode CUDA graph end. bs=[1, 2, 64], elapsed=0.40 s", "cuda_graph_max_bs_decode", 64),
    ],
)
def test_one_line(line: str, name: str, value: str | int) -> None:
    assert observe([f"[2026-11-29 17:24:28 TP0] {line}"])[name] == value


def test_server_info_counts_more_than_a_log_line_that_is_wrong() -> None:
    line = "Set DSA backends for GLM FP8 KV Cache on SM120/SM121: prefill=flashinfer_sparse_mla, decode=x."
    info = {"dsa_prefill_backend": "trtllm", "nsa_decode_backend": "trtllm", "api_key": "k"}
    observed = observe([line], info)
    assert (observed["dsa_prefill_backend"], observed["dsa_decode_backend"]) == ("trtllm", "trtllm")
    assert "api_key" not in observed


def test_a_pool_is_to_be_large_enough() -> None:
    observed = observe(["max_total_num_tokens=314304, chunked_prefill_size=8192, max_running_requests=64"])
    assert compare({"max_total_num_tokens": 202752}, observed) == []
    assert [str(one) for one in compare({"max_total_num_tokens": 400000}, observed)] == [
        "max_total_num_tokens: at least 400000 was expected, 314304 runs"
    ]


def test_compare_knows_other_names_of_the_same_thing_and_says_what_is_not_shown() -> None:
    observed = observe(
        ["Using KV cache dtype: torch.bfloat16"], {"mem_fraction_static": 0.9, "attention_backend": "nsa"}
    )
    assert compare({"kv_cache_dtype": "bf16", "mem_fraction_static": 0.9, "attention_backend": "dsa"}, observed) == []
    wrong = [str(one) for one in compare({"kv_cache_dtype": "fp8_e4m3", "page_size": 64}, observed)]
    assert wrong == [
        "kv_cache_dtype: fp8_e4m3 was expected, bfloat16 runs",
        "page_size: 64 was expected, the server does not show it",
    ]
