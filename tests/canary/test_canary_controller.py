"""The controller's side: what is sent to the host, how its lines are read, which causes are named in which order."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runbooks import oncall
from runbooks.canary import hosts
from runbooks.canary.causes import CAUSES, rank
from runbooks.canary.hosts import tell
from runbooks.canary.run import PAGES, CanaryResult, Finding, _Reader, _script
from runbooks.engine.artefact import build_zipapp
from runbooks.engine.errors import UsageError
from runbooks.engine.report import Reporter
from runbooks.engine.secret import Secret
from runbooks.inventory.shape import Model, ModelShape, Server
from tests.canary.scripted_server import Scripted
from tests.recorder import Recorder

SHAPE = ModelShape(
    hidden=6144,
    layers=78,
    moe_layers=75,
    experts=256,
    experts_per_token=8,
    routed_expert_bytes=4e11,
    other_weight_bytes=4e10,
    active_params=4e10,
    kv_bytes_per_token=100_152,
)
MODEL = Model(source="hf:nvidia/GLM-5-NVFP4", path="/srv/glm-5", served_name="glm 5", size_gb=440, shape=SHAPE)


def fault(kind: str, prompt: str, grade: str = "nan") -> Finding:
    return Finding(kind=kind, grade=grade, prompt=prompt, evidence="seen")


def test_the_key_is_an_upload_and_never_in_the_script() -> None:
    script, uploads = _script("/opt/x/probe.pyz", Server(host="0.0.0.0"), MODEL, "quick", Secret("sk-1"))
    assert uploads == {"api-key": Secret("sk-1")}
    assert "sk-1" not in script
    assert "http://127.0.0.1:30000" in script
    assert "'glm 5'" in script
    assert "--no-knowledge" not in script


def test_a_tiny_model_is_not_asked_for_knowledge_and_each_run_is_its_own_job() -> None:
    tiny = Model(source="hf:x/y", path="/m", served_name="m", size_gb=1, shape=_tiny())
    one, _ = _script("/p", Server(), tiny, "quick", None)
    other, _ = _script("/p", Server(), tiny, "quick", None)
    assert "--no-knowledge" in one
    assert one != other


def _tiny() -> ModelShape:
    fields = {name: getattr(SHAPE, name) for name in SHAPE.__struct_fields__}
    return ModelShape(**fields | {"active_params": 9.7e5})


def test_the_probe_runs_as_a_zipapp_and_its_lines_are_read(tmp_path: Path) -> None:
    artefact = tmp_path / "probe.pyz"
    artefact.write_bytes(build_zipapp("runbooks.canary.probe", "cli:main"))
    said = Recorder()
    reader = _Reader(Reporter(said), "glm5-a")
    with Scripted(lambda asked: "2+2 equals 4.!.!.!") as server:
        command = [sys.executable, "-I", str(artefact), "--url", server.url, "--model", "glm-5"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3, done.stderr
    for line in ["a line of something else", *done.stdout.splitlines()]:
        reader.line(line)
    result = reader.result()
    assert (result.verdict, result.exit_code, result.page) == ("nan", 1, "nan-output")
    assert {finding.kind for finding in result.faults} == {"token-zero-strewn"}
    assert [prompt.name for prompt in result.prompts] == ["arithmetic"]
    assert result.causes[0].source
    tell(result, "glm5-a", Reporter(said))
    assert "NaN" in said.events[-1].text
    assert "invoke runbook nan-output" in said.events[-1].text
    json.dumps(said.events[-1].data)


def test_every_verdict_has_its_page() -> None:
    assert set(PAGES) == {"degraded", "nan", "dead"}
    assert set(PAGES.values()) <= set(oncall.names())


SPARSE = "sparse-attention kernel not made for SM120"
RANKED: dict[str, tuple[list[Finding], dict[str, Any], str]] = {
    "above 2,048 tokens with a kernel for SM100": (
        [fault("token-zero", "needle-above")],
        {"decode_backend": "trtllm", "version": "0.5.10"},
        SPARSE,
    ),
    "many at once with the CUTLASS FP4 GEMM": (
        [fault("token-zero", "burst-64")],
        {"quantization": "modelopt_fp4", "fp4_gemm_backend": "flashinfer_cutlass"},
        "FP4 GEMM race (CUTLASS built without GDC)",
    ),
    "above 2,048 tokens with the backend for SM120": (
        [fault("token-zero", "needle-above"), fault("wrong-answer", "needle-above", "degraded")],
        {
            "decode_backend": "flashinfer_sparse_mla",
            "quantization": "modelopt_fp4",
            "fp4_gemm_backend": "auto",
            "kv_cache_dtype": "fp8_e4m3",
            "disable_custom_all_reduce": False,
        },
        "sparse attention in general",
    ),
    "cuDNN": (
        [fault("token-zero", "arithmetic")],
        {"fp4_gemm_backend": "flashinfer_cudnn", "quantization": "modelopt_fp4"},
        "cuDNN FP4 on SM120",
    ),
    "a prefix hit with MTP": (
        [fault("dropped", "repeat", "dead")],
        {"speculative_algorithm": "EAGLE", "disable_radix_cache": False},
        "speculative decoding after a prefix hit",
    ),
    "everything, from the first token on": (
        [fault("null-logprob", "arithmetic"), fault("token-zero", "arithmetic"), fault("constant-token", "capital")],
        {},
        "damaged weights",
    ),
    "uniform logprobs": ([fault("uniform-logprobs", "capital")], {}, "NaN hidden by the server itself"),
    "one token and the end": (
        [fault("too-short", "story", "degraded")],
        {"kv_cache_dtype": "fp8_e4m3"},
        "FP8 KV cache without scales",
    ),
    "nothing listens": ([fault("refused", "arithmetic", "dead")], {}, "server not running"),
    "silence": ([fault("silent", "arithmetic", "dead")], {"tp_size": 1}, "server stuck or overloaded"),
}


@pytest.mark.parametrize("story", RANKED)
def test_the_first_cause(story: str) -> None:
    findings, settings, expected = RANKED[story]
    assert rank(findings, settings)[0].name == expected


def test_a_cause_is_excluded_by_what_is_really_in_use() -> None:
    names = [
        cause.name for cause in rank([fault("token-zero", "needle-above")], {"decode_backend": "flashinfer_sparse_mla"})
    ]
    assert SPARSE not in names


CURES = {
    "0.5.9": "--nsa-prefill-backend trtllm",
    "0.5.10.post1": "--nsa-prefill-backend trtllm",
    "0.5.12.post1": "--attention-backend flashinfer",
    "0.5.23": "flashinfer_sparse_mla",
    None: "from SGLang 0.5.17 on",
}


@pytest.mark.parametrize("version", CURES)
def test_the_cure_is_spelled_for_the_version_that_runs(version: str | None) -> None:
    settings = {"decode_backend": "flashmla_kv", "version": version}
    (first, *_) = rank([fault("token-zero", "needle-above")], settings)
    assert first.name == SPARSE
    assert CURES[version] in first.cure(settings)


@pytest.mark.parametrize("kind", ["drift", "foreign", "bad-gateway"])
def test_what_is_no_nan_has_its_own_cause(kind: str) -> None:
    causes = rank([fault(kind, "arithmetic", "dead")], {})
    assert [cause.kinds for cause in causes] == [(kind,)]


def test_watching_says_a_line_a_run_and_the_whole_story_of_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = iter(["healthy", "healthy", "nan", "nan", "healthy"])
    said = Recorder()

    def once() -> tuple[bool, dict[str, CanaryResult]]:
        verdict: Any = next(verdicts, None)
        if verdict is None:
            raise KeyboardInterrupt
        found = (fault("token-zero", "arithmetic"),) if verdict == "nan" else ()
        return False, {"glm5-a": CanaryResult(verdict, found, 1.0, 1, 30)}

    monkeypatch.setattr("runbooks.canary.hosts.time.sleep", lambda _seconds: None)
    assert hosts._watch(once, 300, Reporter(said)) == 0
    assert [event.data["verdict"] for event in said.events if event.kind == "result"] == [
        "healthy", "healthy", "nan", "nan", "healthy",
    ]  # fmt: skip
    assert sum(event.kind == "table" for event in said.events) == 2


@pytest.mark.parametrize("text", ["", "5", "m", "0m", "5 m", "-5m", "5d", "abc"])
def test_a_pause_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="no length of time"):
        hosts.seconds_of(text, "--watch")


def test_pauses() -> None:
    assert [hosts.seconds_of(text, "--watch") for text in ("30s", "5m", "5min", "1h")] == [30, 300, 300, 3600]


def test_notes_have_no_cause_and_every_cause_has_a_source() -> None:
    assert rank([fault("no-done", "story", "note")], {}) == ()
    assert all(cause.source and cause.fix and cause.kinds for cause in CAUSES)
    assert len({cause.name for cause in CAUSES}) == len(CAUSES)
