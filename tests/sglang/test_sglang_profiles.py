"""Every shipped profile under every version: spelled so that the launcher's parser takes it, or refused by us."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from runbooks.engine.errors import UsageError
from runbooks.inventory import load
from runbooks.inventory.shape import Inventory, Profile, Scalar, Variant
from runbooks.sglang.argv import Place, build, fitting, nodes, origin, resolve
from runbooks.sglang.flags import table, versions
from runbooks.sglang.rules import RULES, Setting, broken

SHIPPED = load(Path(__file__).parents[2] / "inventory.yaml").inventory
MODEL = SHIPPED.models[SHIPPED.model]
RUNTIME = SHIPPED.runtimes[SHIPPED.runtime]


@pytest.mark.parametrize("version", versions())
def test_a_shipped_profile_is_spelled_or_refused_with_a_reason(version: str) -> None:
    runtime = msgspec.structs.replace(RUNTIME, sglang=version)
    spelled, refused = 0, list[UsageError]()
    for name in SHIPPED.profiles:
        try:
            launch = build(SHIPPED, name, model=MODEL, runtime=runtime, advise=False)
        except UsageError as error:
            refused.append(error)
            continue
        parsed = table(version).parse(launch.argv)
        assert parsed["model_path"] == MODEL.path
        assert not [word for word in launch.argv if word == "None"]
        spelled += 1
    assert all(error.details for error in refused)
    assert spelled >= 4, f"only {spelled} profiles fit {version}"


def test_final_and_baseline_fit_the_shipped_runtime() -> None:
    fit = fitting(SHIPPED, model=MODEL, runtime=RUNTIME)
    assert {"baseline", "final", "trtllm", "dense", "ep8"} <= set(fit)
    assert "mtp" not in fit
    with_mtp = msgspec.structs.replace(MODEL, shape=msgspec.structs.replace(MODEL.shape, has_mtp_layer=True))
    assert "mtp" in fitting(SHIPPED, model=with_mtp, runtime=RUNTIME)


def test_every_profile_fits_some_version_with_a_model_that_has_everything() -> None:
    model = msgspec.structs.replace(MODEL, shape=msgspec.structs.replace(MODEL.shape, has_mtp_layer=True))
    runtimes = [msgspec.structs.replace(RUNTIME, sglang=version) for version in versions()]
    fit = {name for runtime in runtimes for name in fitting(SHIPPED, model=model, runtime=runtime)}
    assert fit == set(SHIPPED.profiles)


def test_final_is_the_best_known_for_the_installed_version() -> None:
    """Below 0.5.17 there is no DSA kernel for SM120, and dense attention serves."""
    old = build(SHIPPED, "final", model=MODEL, runtime=msgspec.structs.replace(RUNTIME, sglang="0.5.16"))
    new = build(SHIPPED, "final", model=MODEL, runtime=msgspec.structs.replace(RUNTIME, sglang="0.5.17"))
    assert (old.args["attention_backend"], old.args["kv_cache_dtype"]) == ("flashinfer", "bf16")
    assert "dsa_decode_backend" not in {**old.args, **old.expect}
    assert "page_size" not in old.expect
    assert new.expect["dsa_decode_backend"] == "flashinfer_sparse_mla"
    assert "below 0.5.17" in resolve(SHIPPED.profiles, "final", "0.5.9").why
    assert old.args["max_running_requests"] == new.args["max_running_requests"] == 64


def test_of_several_bounds_the_nearest_counts_most() -> None:
    before = {
        "0.5.10": Variant(why="oldest", args={"schedule_policy": "lof"}),
        "0.5.17": Variant(why="older", args={"schedule_policy": "lpm", "page_size": 1}),
    }
    profiles = {"one": Profile(why="new", args={"schedule_policy": "fcfs"}, before=before)}
    found = {version: resolve(profiles, "one", version) for version in ("0.5.9", "0.5.10", "0.5.17")}
    assert [one.args["schedule_policy"] for one in found.values()] == ["lof", "lpm", "fcfs"]
    assert [one.why for one in found.values()] == ["oldest", "older", "new"]
    assert found["0.5.9"].args["page_size"] == 1
    assert resolve(profiles, "one").why == "new"


def test_a_refusal_names_reason_source_and_the_profiles_that_fit() -> None:
    with pytest.raises(UsageError) as refused:
        build(SHIPPED, "moe-marlin", model=MODEL, runtime=msgspec.structs.replace(RUNTIME, sglang="0.5.9"))
    text = str(refused.value)
    assert "'marlin' is no choice of --moe-runner-backend in SGLang 0.5.9" in text
    assert "profiles that fit: baseline, " in text
    assert refused.value.exit_code == 2


ARGUED = (
    *("baseline", "final", "dense", "trtllm", "flashmla", "tilelang", "kv-bf16", "mem-085", "mem-092", "graphs-off"),
    *("graphs-128", "moe-cutlass", "moe-trtllm", "moe-marlin", "fp4-cudnn", "fp4-cutlass", "fp4-trtllm", "fp4-marlin"),
    *("ep8", "two-batch-overlap", "single-batch-overlap", "torch-compile", "mtp", "p2p-off", "p2p", "nccl-ll"),
)


def test_each_option_that_is_argued_about_is_a_profile_that_says_why() -> None:
    assert set(ARGUED) <= set(SHIPPED.profiles)
    assert all(len(profile.why.split()) > 5 for profile in SHIPPED.profiles.values())
    chosen = {str(resolve(SHIPPED.profiles, name).args.get("schedule_policy")) for name in SHIPPED.profiles}
    policies = table("0.5.23").find("schedule_policy")
    assert policies is not None
    assert set(policies.choices) <= chosen


def test_one_server_on_several_hosts() -> None:
    inventory = _with(two=Profile(why="", extends="final", args={"nnodes": 2}))
    hosts = ("a", "b")
    argv = [
        build(inventory, "two", model=MODEL, runtime=RUNTIME, place=Place(hosts, rank, "2001:db8::1")).argv
        for rank in (0, 1)
    ]
    assert nodes(inventory, "two") == 2
    assert nodes(inventory, "final") == 1
    for rank, words in enumerate(argv):
        parsed = table("0.5.23").parse(words)
        found = {key: parsed[key] for key in ("nnodes", "node_rank", "tp_size", "dist_init_addr")}
        assert found == {"nnodes": 2, "node_rank": rank, "tp_size": 16, "dist_init_addr": "[2001:db8::1]:20000"}
    for wrong in (0, "two", True):
        with pytest.raises(UsageError, match="nnodes is the number of hosts"):
            nodes(_with(bad=Profile(why="", args={"nnodes": wrong})), "bad")
    with pytest.raises(UsageError, match="the order of the hosts"):
        build(_with(bad=Profile(why="", args={"node_rank": 1})), "bad", model=MODEL, runtime=RUNTIME)


def _with(**profiles: Profile) -> Inventory:
    return msgspec.structs.replace(SHIPPED, profiles={**SHIPPED.profiles, **profiles})


def test_inheritance_takes_away_and_an_expectation_goes_with_its_argument() -> None:
    inventory = _with(mine=Profile(why="", extends="final", args={"nsa_decode_backend": "trtllm", "page_size": None}))
    mine = resolve(inventory.profiles, "mine")
    assert mine.args["dsa_decode_backend"] == "trtllm"
    assert "page_size" not in mine.args
    assert not {"dsa_decode_backend", "page_size"} & set(mine.expect)
    assert mine.expect["dsa_prefill_backend"] == "flashinfer_sparse_mla"
    assert "NCCL_P2P_DISABLE" not in resolve(SHIPPED.profiles, "p2p").env


@pytest.mark.parametrize(
    ("args", "part"),
    [
        ({"api_key": "secret"}, "server.api_key"),
        ({"port": 1}, "server.port"),
        ({"model": "x"}, "models.NAME.path"),
        ({"nsa_decode_backend": "fa3", "dsa_decode_backend": "fa3"}, "are the same argument"),
    ],
)
def test_what_a_profile_may_not_say(args: dict[str, Scalar | None], part: str) -> None:
    with pytest.raises(UsageError, match=part):
        build(_with(bad=Profile(why="", args=args)), "bad", model=MODEL, runtime=RUNTIME)


@pytest.mark.parametrize(
    ("args", "version", "said", "following"),
    [
        ({"page_size": "many"}, "0.5.23", "page_size: --page-size takes a whole number", "correct my.yaml:1 (bad)"),
        ({"moe_runner_backend": "flashinfr"}, "0.5.23", "'flashinfr' is no choice", "correct my.yaml:1 (bad)"),
        ({"moe_runner_backend": "marlin"}, "0.5.9", "is a choice in", "invoke deploy --profile "),
        ({"enable_nan_detection": True}, "0.5.23", "it exists in", "invoke deploy --profile final"),
    ],
)
def test_an_argument_that_is_refused_is_told_with_its_line(
    args: dict[str, Scalar | None], version: str, said: str, following: str
) -> None:
    """Where the mistake is inherited, the line is the parent's. What another version takes is no mistake of writing."""
    bad, heir = Profile(why="", extends="final", args=args), Profile(why="", extends="bad")
    asked: list[tuple[str, ...]] = []

    def where(*path: str) -> str:
        asked.append(path)
        return f"my.yaml:{1 if path[1] == 'bad' else 2} ({path[1]})"

    runtime = msgspec.structs.replace(RUNTIME, sglang=version)
    with pytest.raises(UsageError) as caught:
        build(_with(bad=bad, heir=heir), "heir", model=MODEL, runtime=runtime, where=where)
    assert said in str(caught.value)
    assert (caught.value.next or "").startswith(following)
    assert any(line.startswith("my.yaml:1 (bad)  ") for line in caught.value.details)
    assert ("profiles", "bad", "args", next(iter(args))) in asked


def test_the_line_of_an_argument_is_that_of_the_layer_that_holds() -> None:
    profiles = SHIPPED.profiles
    assert origin(profiles, "mem-085", "kv_cache_dtype", "0.5.23") == ("profiles", "final", "args", "kv_cache_dtype")
    older = ("profiles", "final", "before", "0.5.17", "args", "kv_cache_dtype")
    assert origin(profiles, "mem-085", "kv_cache_dtype", "0.5.16") == older


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="no profile 'nope'; there are: baseline, final"):
        build(SHIPPED, "nope", model=MODEL, runtime=RUNTIME)
    with pytest.raises(UsageError, match="did you mean graphs-off"):
        build(SHIPPED, "graph-off", model=MODEL, runtime=RUNTIME)


def test_environment_names_are_checked() -> None:
    with pytest.raises(UsageError) as refused:
        build(_with(bad=Profile(why="", env={"A B": "x", "C": "a\nb"})), "bad", model=MODEL, runtime=RUNTIME)
    assert "'A B' is no name of a variable" in str(refused.value)
    assert "C holds a line break" in str(refused.value)


def test_a_cpu_profile_is_not_split_over_gpus() -> None:
    inventory = _with(cpu=Profile(why="", args={"device": "cpu", "attention_backend": "torch_native"}))
    assert "--tp-size" not in build(inventory, "cpu", model=MODEL, runtime=RUNTIME).argv


def _broken(args: dict[str, Scalar], version: str = "0.5.23") -> list[str]:
    setting = Setting({"tp_size": 8, **args}, version, MODEL, SHIPPED.gpus, SHIPPED.bench)
    return [rule.id for rule in broken(setting)]


RULE_CASES: list[tuple[str, dict[str, Scalar]]] = [
    ("memory fraction", {"mem_fraction_static": 1.2}),
    ("memory fraction", {"mem_fraction_static": 0.0}),
    ("tensor parallel size", {"tp_size": 4}),
    ("uneven split", {"tp_size": 6}),
    ("expert parallel size", {"ep_size": 3}),
    ("two-batch overlap", {"enable_two_batch_overlap": True}),
    ("two-batch overlap", {"enable_two_batch_overlap": True, "moe_a2a_backend": "none"}),
    ("tilelang needs bf16 KV", {"dsa_decode_backend": "tilelang", "kv_cache_dtype": "fp8_e4m3"}),
    ("FlashInfer sparse MLA needs fp8 KV", {"dsa_decode_backend": "flashinfer_sparse_mla", "kv_cache_dtype": "bf16"}),
    ("FlashInfer sparse MLA needs pages of 64", {"dsa_decode_backend": "flashinfer_sparse_mla", "page_size": 1}),
    ("DSA KV dtype", {"kv_cache_dtype": "fp8_e5m2"}),
    ("DSA backend without DSA", {"attention_backend": "triton", "dsa_decode_backend": "trtllm"}),
    ("packed FP8 cache under dense attention", {"attention_backend": "flashinfer", "kv_cache_dtype": "fp8_e4m3"}),
    ("DSA pair that 0.5.10 replaces", {"dsa_prefill_backend": "flashmla_auto", "dsa_decode_backend": "flashmla_kv"}),
    ("quantization", {"quantization": "fp8"}),
    ("trtllm before 0.5.9", {"dsa_decode_backend": "trtllm"}),
    ("speculation without an MTP layer", {"speculative_algorithm": "EAGLE"}),
    ("speculation without an MTP layer", {"speculative_algorithm": "NEXTN"}),
    ("graphs below the swept concurrency", {"cuda_graph_max_bs_decode": 32}),
    ("fewer running requests than streams", {"max_running_requests": 8}),
    ("torch.compile without padding", {"enable_torch_compile": True, "disable_cuda_graph_padding": True}),
    ("all-reduce fusion on SM120", {"enable_flashinfer_allreduce_fusion": True}),
    ("all-reduce fusion on SM120", {"flashinfer_allreduce_fusion_backend": "auto"}),
    ("context longer than the model", {"context_length": 300000}),
]


ONLY_IN = {"trtllm before 0.5.9": "0.5.8.post1", "DSA pair that 0.5.10 replaces": "0.5.10.post1"}


@pytest.mark.parametrize(("rule", "args"), RULE_CASES, ids=str)
def test_a_combination_known_to_fail_is_refused(rule: str, args: dict[str, Scalar]) -> None:
    assert rule in _broken(args, version=ONLY_IN.get(rule, "0.5.23"))


@pytest.mark.parametrize(("gpus", "ids"), [(8, []), (6, ["uneven split"]), (4, [])])
def test_heads_and_experts_are_divided_evenly(gpus: int, ids: list[str]) -> None:
    cards = msgspec.structs.replace(SHIPPED.gpus, count=gpus)
    setting = Setting({"tp_size": gpus}, "0.5.23", MODEL, cards, SHIPPED.bench)
    assert [rule.id for rule in broken(setting)] == ids


@pytest.mark.parametrize(
    ("bits", "chosen", "refused"),
    [
        (4.5, "modelopt_fp4", False),
        (4.5, "fp8", True),
        (16, None, False),
        (16, "modelopt_fp4", True),
        (8, "fp8", False),
    ],
)
def test_the_stored_bits_tell_what_the_checkpoint_is(bits: float, chosen: str | None, refused: bool) -> None:
    """Also where its folder does not say so."""
    bytes_ = 75 * 256 * 3 * 6144 * 2048 * bits / 8
    shape = msgspec.structs.replace(MODEL.shape, routed_expert_bytes=bytes_)
    model = msgspec.structs.replace(MODEL, source="/mnt/glm", shape=shape)
    args: dict[str, Scalar] = {"tp_size": 8, **({"quantization": chosen} if chosen else {})}
    found = [rule.id for rule in broken(Setting(args, "0.5.23", model, SHIPPED.gpus, SHIPPED.bench))]
    assert found == (["quantization"] if refused else [])


def test_every_rule_has_a_case_and_a_reason() -> None:
    assert {rule.id for rule in RULES} == {rule for rule, _ in RULE_CASES}
    for rule in RULES:
        assert rule.reason
        assert rule.source
        assert rule.instead


@pytest.mark.parametrize(
    "args",
    [
        {"mem_fraction_static": 0.9, "ep_size": 8},
        {"enable_two_batch_overlap": True, "moe_a2a_backend": "deepep", "ep_size": 8},
        {"dsa_decode_backend": "tilelang", "kv_cache_dtype": "bf16"},
        {"attention_backend": "flashinfer", "kv_cache_dtype": "bf16"},
        {"attention_backend": "flashinfer", "dsa_prefill_backend": "trtllm", "dsa_decode_backend": "trtllm"},
        {"disable_cuda_graph": True, "cuda_graph_max_bs_decode": 8},
        {"quantization": "modelopt_fp4"},
    ],
    ids=str,
)
def test_its_neighbour_is_not(args: dict[str, Scalar]) -> None:
    assert _broken(args) == []
