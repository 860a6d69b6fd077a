"""What the real SGLang picks on SM120, held against what our profiles expect. Needs wheels."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from lab.engine.resolve import resolve
from lab.standins import models
from runbooks.engine.errors import UsageError
from runbooks.inventory import load
from runbooks.sglang.argv import Launch, build
from runbooks.sglang.flags import canonical
from runbooks.sglang.readback import compare

SHIPPED = load(Path(__file__).parents[2] / "inventory.yaml").inventory
MODEL = SHIPPED.models[SHIPPED.model]
RUNTIME = SHIPPED.runtimes[SHIPPED.runtime]
SEEN = ("attention_backend", "dsa_prefill_backend", "dsa_decode_backend", "kv_cache_dtype", "page_size")

BY_ITSELF = {  # version -> (prefill, decode) for FP8 KV, which is what it picks, as the profiles' `why` say
    "0.5.9": ("flashmla_auto", "flashmla_kv"),
    "0.5.10.post1": ("trtllm", "trtllm"),
    "0.5.23": ("flashinfer_sparse_mla", "flashinfer_sparse_mla"),
}


@pytest.mark.slow
@pytest.mark.parametrize("version", BY_ITSELF)
def test_what_it_picks_is_what_our_profiles_say(version: str, tmp_path: Path) -> None:
    models.write(tmp_path)
    model = msgspec.structs.replace(MODEL, path=str(tmp_path / models.NAME))
    runtime = msgspec.structs.replace(RUNTIME, sglang=version)
    launches: dict[str, Launch] = {}
    chosen: set[tuple[object, ...]] = set()
    for name in SHIPPED.profiles:  # one of those that choose alike: each takes seconds
        try:
            launch = build(SHIPPED, name, model=model, runtime=runtime, advise=False)
        except UsageError:
            continue
        alike = tuple(launch.args.get(key) for key in SEEN)
        if alike not in chosen:
            chosen.add(alike)
            launches[name] = launch
    assert {"baseline", "final", "trtllm", "tilelang", "kv-bf16"} <= set(launches)
    assert ("flashmla" in launches) == (version != "0.5.10.post1")  # which replaces the pair: a rule refuses it
    bf16 = [*launches["baseline"].argv, "--kv-cache-dtype", "bfloat16"]
    *answers, with_bf16 = resolve(version, [*(one.argv for one in launches.values()), bf16])
    refused = {name: said["refused"] for name, said in zip(launches, answers, strict=True) if "refused" in said}
    assert refused == {}
    runs = {
        name: {canonical(key): value for key, value in said["resolved"].items()}
        for name, said in zip(launches, answers, strict=True)
    }
    wrong = {
        name: [str(one) for one in compare({k: v for k, v in launch.expect.items() if k in SEEN}, runs[name])]
        for name, launch in launches.items()
    }
    assert {name: said for name, said in wrong.items() if said} == {}
    prefill, decode = BY_ITSELF[version]
    baseline = runs["baseline"]
    assert (baseline["dsa_prefill_backend"], baseline["dsa_decode_backend"]) == (prefill, decode)
    assert baseline["kv_cache_dtype"] == "fp8_e4m3"
    pair = {canonical(key): value for key, value in with_bf16["resolved"].items()}
    assert (pair["dsa_prefill_backend"], pair["dsa_decode_backend"]) == ("flashmla_sparse", "trtllm")


@pytest.mark.slow
def test_what_it_lets_through_and_we_do_not(tmp_path: Path) -> None:
    """A memory fraction of 1.2, TP 6, a wrong quantization and, before 0.5.23, EP 3."""
    models.write(tmp_path)
    start = ["--model-path", str(tmp_path / models.NAME), "--tp-size", "8"]
    bad = [
        [*start, "--mem-fraction-static", "1.2"],
        [*start[:-1], "6"],
        [*start, "--ep-size", "3"],
        [*start, "--quantization", "fp8"],
    ]
    answers = resolve("0.5.10.post1", bad)
    assert ["resolved" in said for said in answers] == [True, True, True, True], answers
