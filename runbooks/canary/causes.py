"""Why a GLM-5 server on SM120 speaks nonsense: the publicly known causes, and which of them fit what was seen.

Data first. A cause names the kinds of finding that it explains, the settings it needs, and the prompts that bring it
out. `rank` puts
the fitting ones in order; it never says that a cause is proven.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

BROKEN = (
    "nan-stop",
    "nan-error",
    "null-logprob",
    "token-zero",
    "token-zero-strewn",
    "one-token",
    "constant-token",
    "journal-nan",
)
GARBAGE = ("word-salad", "loop", "one-character", "one-word", "broken-characters", "wrong-answer")
SHORT = ("empty", "too-short")

LONG = ("count-across", "needle-above", "sampled-long")
PREFIX = ("repeat", "edge")
BURST = ("burst",)


class Seen(Protocol):
    """What is needed of a finding."""

    @property
    def kind(self) -> str: ...
    @property
    def grade(self) -> str: ...
    @property
    def prompt(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Cause:
    """`needs`: setting -> values of which one must be in use (one that is not known counts against the cause, and
    does not exclude it). `prompts`: beginnings of the names of the prompts that bring it out; empty: any. `since`,
    `before`: SGLang versions. `fixes`: (SGLang version from which on, what to do there); options have other names and
    effects from version to version, so `fix` is for a server that does not say its version."""

    name: str
    text: str
    fix: str
    source: str
    kinds: tuple[str, ...]
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    prompts: tuple[str, ...] = ()
    since: str | None = None
    before: str | None = None
    fixes: tuple[tuple[str, str], ...] = ()
    weight: int = 0

    def cure(self, settings: Mapping[str, Any]) -> str:
        """What to do about it on a server with these settings."""
        version = _key(str(settings.get("version") or ""))
        fitting = [text for since, text in self.fixes if version and _key(since) <= version]
        return fitting[-1] if fitting else self.fix


SPARSE_KERNELS = ("flashmla_sparse", "flashmla_kv", "flashmla_auto", "flashmla_sparse_q8", "fa3", "trtllm", "tilelang")

CAUSES: tuple[Cause, ...] = (
    Cause(
        name="sparse-attention kernel not made for SM120",
        text=(
            "the sparse attention (NSA, now DSA) backend in use was written for SM90 or SM100; from 2,048 tokens of "
            "context on it runs"
        ),
        fix=(
            "deploy a profile with another backend pair: flashinfer_sparse_mla from SGLang 0.5.17 on, trtllm or "
            "dense flashinfer before"
        ),
        fixes=(
            ("0.5.0", "no sparse backend of this version fits SM120: --attention-backend flashinfer, which is dense"),
            (
                "0.5.9",
                "--nsa-prefill-backend trtllm --nsa-decode-backend trtllm; or dense attention, flashinfer",
            ),
            ("0.5.12", "trtllm fails on SM120 from here on: --attention-backend flashinfer (dense), or SGLang 0.5.17"),
            ("0.5.17", "--dsa-prefill-backend flashinfer_sparse_mla --dsa-decode-backend flashinfer_sparse_mla"),
        ),
        source="sglang #26087, #29562, #26928, #37105; local-inference-lab/rtx6kpro deployment guide",
        kinds=BROKEN + GARBAGE + ("dropped", "restarted"),
        needs={"decode_backend": SPARSE_KERNELS},
        prompts=LONG,
    ),
    Cause(
        name="sparse attention in general",
        text="only prompts beyond 2,048 tokens fail: there the sparse kernels begin, whichever backend is in use",
        fix="deploy a profile with another backend pair; dense attention proves it",
        source="sglang #26087, #37105, #40286",
        kinds=BROKEN + GARBAGE,
        prompts=LONG,
    ),
    Cause(
        name="FP4 GEMM race (CUTLASS built without GDC)",
        text="tiles are read before they are written: NaN at TP8, mostly with 64 and more requests at once",
        fix=(
            "FlashInfer with PR #2716 and #2913, then an empty JIT cache; until then --fp4-gemm-backend "
            "flashinfer_cudnn"
        ),
        source="flashinfer #2708",
        kinds=(*BROKEN, "dropped", "restarted"),
        needs={
            "quantization": ("modelopt_fp4", "nvfp4_online"),
            "fp4_gemm_backend": ("flashinfer_cutlass", "cutlass", "auto"),
        },
        prompts=BURST,
        weight=1,
    ),
    Cause(
        name="cuDNN FP4 on SM120",
        text="the override-shape path of cuDNN's FP4 GEMM returns NaN on SM120",
        fix="a newer FlashInfer, or --fp4-gemm-backend flashinfer_cutlass where #2716 is in",
        source="flashinfer #3140",
        kinds=BROKEN,
        needs={"fp4_gemm_backend": ("flashinfer_cudnn",)},
        weight=2,
    ),
    Cause(
        name="FP4 GEMM returns zeros or garbage for some batch sizes",
        text=(
            "mm_fp4 and the grouped GEMM are wrong on SM120 depending on M (FlashInfer 0.6.12, CUTLASS without the "
            "cvt guard)"
        ),
        fix="pin FlashInfer to a fixed release and rebuild its JIT cache",
        source="flashinfer #3398, #2723; NVIDIA/cutlass #3096, #3120",
        kinds=BROKEN + GARBAGE,
        needs={"quantization": ("modelopt_fp4", "nvfp4_online")},
    ),
    Cause(
        name="speculative decoding after a prefix hit",
        text="EAGLE/MTP verification reads NaN once cached tokens are used; all ranks die",
        fix="a profile without speculative decoding",
        source="sglang #19796, #20043, #19897",
        kinds=(*BROKEN, "dropped", "restarted"),
        needs={"speculative_algorithm": ("eagle", "eagle3", "nextn")},
        prompts=PREFIX,
        weight=2,
    ),
    Cause(
        name="prefix cache at a block edge",
        text="a prefix hit a few tokens past the edge of a block reads stale KV; it repeats until the cache turns over",
        fix="--disable-radix-cache proves it; then a fixed version",
        source="vllm #55766",
        kinds=BROKEN + GARBAGE,
        needs={"disable_radix_cache": ("false",)},
        prompts=PREFIX,
    ),
    Cause(
        name="FP8 KV cache without scales",
        text="FP8 KV on a path that has no dequantisation scales: garbled text, or one token and then the end",
        fix="--kv-cache-dtype bf16",
        source="local-inference-lab/rtx6kpro models/glm5.md",
        kinds=GARBAGE + SHORT,
        needs={"kv_cache_dtype": ("fp8_e4m3", "fp8_e5m2", "auto")},
        weight=1,
    ),
    Cause(
        name="custom all-reduce over PCIe",
        text="without NVLink the custom all-reduce gives only the first token",
        fix="--disable-custom-all-reduce",
        source="local-inference-lab/rtx6kpro models/glm5.md",
        kinds=SHORT + GARBAGE,
        needs={"disable_custom_all_reduce": ("false",)},
    ),
    Cause(
        name="peer-to-peer writes that never arrive",
        text="peer access granted inside a VM can be a private mirror: collectives hang or sum wrong numbers",
        fix="NCCL_P2P_DISABLE=1, and take the clique out of the VM's configuration",
        source="NVIDIA/nccl #2335",
        kinds=BROKEN + GARBAGE + ("silent",),
        needs={"tp_size": ("2", "4", "8")},
        weight=-1,
    ),
    Cause(
        name="DeepGEMM scale format",
        text="DeepGEMM takes UE8M0 scales for granted on every Blackwell",
        fix="SGLANG_ENABLE_JIT_DEEPGEMM=0 and SGLANG_ENABLE_DEEP_GEMM=0, or SGLang with #19948",
        source="sglang #19948",
        kinds=BROKEN + GARBAGE,
        needs={"quantization": ("fp8", "modelopt_fp8")},
    ),
    Cause(
        name="damaged weights",
        text="a shard on disk is not what was published: every prompt fails in the same way, from the first token on",
        fix="invoke provision --tags model (compares sizes and checksums), then deploy again",
        source="one NaN weight gives exactly this on real SGLang (0.5.9, 0.5.23)",
        kinds=("token-zero", "token-zero-strewn", "constant-token", "null-logprob", "uniform-logprobs", "journal-nan"),
    ),
    Cause(
        name="NaN hidden by the server itself",
        text=(
            "--enable-nan-detection or SGLANG_SANITIZE_NAN_LOGITS replaces NaN logits: the text looks possible and "
            "means nothing"
        ),
        fix="take the sanitiser out of the profile to see the real fault; then treat it as NaN",
        fixes=(
            ("0.5.0", "take --enable-nan-detection out of the profile to see the real fault; then treat it as NaN"),
            ("0.5.13", "take SGLANG_SANITIZE_NAN_LOGITS out of the environment to see the real fault; treat it as NaN"),
        ),
        source="sglang #2066, #27883",
        kinds=("uniform-logprobs", "journal-nan"),
        weight=2,
    ),
    Cause(
        name="kernel that repeats one token",
        text="the same token with the same logprob at every position, reported on RTX PRO 6000",
        fix="another attention backend",
        source="vllm #52938",
        kinds=("frozen-token", "one-token", "one-character"),
    ),
    Cause(
        name="launch failure under long context",
        text="trtllm's attention kernel fails to launch, then every request ends with a device assert",
        fix="another attention backend; restart",
        source="sglang #29453",
        kinds=("dropped", "restarted", "stream-error", "server-error"),
        needs={"decode_backend": ("trtllm",)},
        prompts=LONG,
    ),
    Cause(
        name="sampling meets NaN",
        text=(
            "the sampler asserts on NaN probabilities and takes the scheduler down; greedy requests only gave token "
            "0 before"
        ),
        fix=(
            "the page nan-output; the journal has the line `probability tensor contains either inf, nan or element < 0`"
        ),
        source="sglang #35324; seen on real SGLang 0.5.9 and 0.5.23",
        kinds=("dropped", "restarted"),
        prompts=("sampled",),
        weight=1,
    ),
    Cause(
        name="quality collapse at long context",
        text="without any NaN, sparse attention can fall into repetition or word salad near 40k tokens",
        fix="compare with the dense fallback; look at the sampling settings and the chat template",
        source="local-inference-lab/rtx6kpro, GLM-5.1 comparison of 2026-04-20 (2 of 30 runs)",
        kinds=("loop", "word-salad"),
        prompts=("think", "needle-above"),
        weight=-1,
    ),
    Cause(
        name="server stuck or overloaded",
        text="no token for too long: a long queue, or GPUs that spin in a collective at about 140 W and do no work",
        fix="invoke health tells busy from stuck",
        source="sglang #22511, #26482; nccl #1999",
        kinds=("silent", "not-serving", "unfinished"),
        weight=2,
    ),
    Cause(
        name="no longer what was deployed",
        text="greedy answers to fixed questions differ from those that this release gave at its gate, without any NaN",
        fix=(
            "invoke releases --show N compares what runs with what was deployed; is the change meant (a driver, a new "
            "revision of the weights, a template): invoke canary --accept"
        ),
        source="the release's own answers.json",
        kinds=("drift",),
    ),
    Cause(
        name="another program on the port",
        text="something answers there, and it is no server of a model",
        fix="ss -ltnp shows who listens; is server.port of the inventory the right one?",
        source="its own words, above",
        kinds=("foreign",),
    ),
    Cause(
        name="a proxy with nothing behind it",
        text="the proxy is alive, the server behind it is not",
        fix="invoke health on the host of the server itself, then the page server-down",
        source="HTTP 502 to 504 with a proxy's page",
        kinds=("bad-gateway",),
    ),
    Cause(
        name="server not running",
        text="nothing answers on the port",
        fix="invoke health, then the page server-down",
        source="systemctl status sglang.service",
        kinds=("refused",),
    ),
)


def rank(findings: Sequence[Seen], settings: Mapping[str, Any], *, most: int = 4) -> tuple[Cause, ...]:
    """The causes that fit, most likely first. The gravest findings are to be explained; the lesser ones follow from
    them."""
    gravest = next((grade for grade in ("nan", "dead", "degraded") if any(f.grade == grade for f in findings)), None)
    faults = [finding for finding in findings if finding.grade == gravest]
    scored = [
        (score, -at, cause) for at, cause in enumerate(CAUSES) if (score := _score(cause, faults, settings)) is not None
    ]
    return tuple(cause for _, _, cause in sorted(scored, key=lambda entry: entry[:2], reverse=True)[:most])


def _score(cause: Cause, faults: Sequence[Seen], settings: Mapping[str, Any]) -> int | None:
    explained = [fault for fault in faults if fault.kind in cause.kinds]
    if not explained or not _version_fits(cause, str(settings.get("version") or "")):
        return None
    score = cause.weight + len({fault.kind for fault in explained})
    for setting, values in cause.needs.items():
        if settings.get(setting) is None:
            score -= 2  # possible, but nothing speaks for it
        elif str(settings[setting]).lower() not in values:
            return None
        else:
            score += 2
    if cause.prompts:
        # Where everything else passed and only these prompts failed, the cause is nearly named.
        hits = [fault.prompt.startswith(cause.prompts) for fault in explained]
        score += 4 if all(hits) else 1 if any(hits) else -2
    elif cause.name == "damaged weights" and faults[0].prompt.startswith(("arithmetic", "capital")):
        score += 1
    return score


def _version_fits(cause: Cause, version: str) -> bool:
    if not version:
        return True
    if cause.since and _key(version) < _key(cause.since):
        return False
    return not (cause.before and _key(version) >= _key(cause.before))


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:4])
