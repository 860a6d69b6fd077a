"""Arguments are spelled for a version, or refused with the nearest right one; argparse is modelled as it is."""

from __future__ import annotations

import pytest

from runbooks.engine.errors import UsageError
from runbooks.sglang.flags import TYPES, Value, canonical, renamed, table, version_key, versions


@pytest.mark.parametrize(
    ("version", "name", "value", "words"),
    [
        # names that moved
        ("0.5.9", "dsa_decode_backend", "trtllm", ["--nsa-decode-backend", "trtllm"]),
        ("0.5.14", "dsa_decode_backend", "trtllm", ["--dsa-decode-backend", "trtllm"]),
        ("0.5.23", "nsa_decode_backend", "trtllm", ["--dsa-decode-backend", "trtllm"]),
        ("0.5.13.post1", "cuda_graph_max_bs_decode", 64, ["--cuda-graph-max-bs", "64"]),
        ("0.5.14", "cuda_graph_max_bs", 64, ["--cuda-graph-max-bs-decode", "64"]),
        ("0.5.23", "cuda_graph_max_bs", 64, ["--cuda-graph-max-bs-decode", "64"]),
        # an option whose dest differs, dests that differ by version, the option named as the dest
        ("0.5.23", "fp4_gemm_runner_backend", "auto", ["--fp4-gemm-backend", "auto"]),
        ("0.5.23", "--fp4-gemm-backend", "auto", ["--fp4-gemm-backend", "auto"]),
        ("0.5.9", "tp_size", 8, ["--tp-size", "8"]),
        ("0.5.9", "ep", 8, ["--ep-size", "8"]),
        # a value that moved with its argument
        ("0.5.9", "attention_backend", "dsa", ["--attention-backend", "nsa"]),
        ("0.5.23", "attention_backend", "dsa", ["--attention-backend", "dsa"]),
        # flags, switches, lists, JSON, values that look like options
        ("0.5.23", "enable_metrics", True, ["--enable-metrics"]),
        ("0.5.23", "enable_metrics", False, []),
        ("0.5.23", "enable_tf32_matmul", False, ["--no-enable-tf32-matmul"]),
        ("0.5.23", "enable_tf32_matmul", True, ["--enable-tf32-matmul"]),
        ("0.5.23", "cuda_graph_bs_decode", "1 2 4", ["--cuda-graph-bs-decode", "1", "2", "4"]),
        ("0.5.23", "chunked_prefill_size", -1, ["--chunked-prefill-size=-1"]),
        ("0.5.23", "model_loader_extra_config", '{"a": 1}', ["--model-loader-extra-config", '{"a": 1}']),
        ("0.5.23", "mem_fraction_static", 0.9, ["--mem-fraction-static", "0.9"]),
    ],
)
def test_spelled(version: str, name: str, value: Value, words: list[str]) -> None:
    assert table(version).spell(name, value) == words


@pytest.mark.parametrize(
    ("version", "name", "value", "parts"),
    [
        (
            "0.5.9",
            "dsa_decode_backend",
            "flashinfer_sparse_mla",
            ["no choice of --nsa-decode-backend", "0.5.17 to 0.5.23"],
        ),
        ("0.5.8.post1", "dsa_decode_backend", "trtllm", ["no choice", "0.5.9 to"]),
        (
            "0.5.23",
            "enable_nan_detection",
            True,
            ["no argument", "0.5.8.post1 to 0.5.12.post1", "SGLANG_ENABLE_ASYNC_ASSERT"],
        ),
        ("0.5.23", "schedul_policy", "lpm", ["did you mean schedule_policy"]),
        ("0.5.23", "tp", 8, ["did you mean tp_size"]),
        ("0.5.23", "schedule_policy", "lpmm", ["did you mean lpm", "choices: "]),
        ("0.5.9", "schedule_policy", "hrrn", ["0.5.20 to 0.5.23"]),
        ("0.5.23", "mem_fraction_static", "much", ["takes a number, not 'much'"]),
        ("0.5.23", "max_running_requests", 6.4, ["takes a whole number, not '6.4'"]),
        ("0.5.23", "max_running_requests", True, ["takes a value"]),
        ("0.5.23", "enable_metrics", 1, ["takes no value"]),
        ("0.5.23", "enable_pcie_oneshot_allreduce", True, ["only forks"]),
    ],
)
def test_refused(version: str, name: str, value: Value, parts: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        table(version).spell(name, value)
    for part in parts:
        assert part in str(refused.value)


def test_old_command_lines_fail_as_they_do_in_the_launcher() -> None:
    seed = ["--model-path", "m", "--cuda-graph-max-bs", "8"]
    assert table("0.5.9").parse(seed)["cuda_graph_max_bs"] == 8
    assert table("0.5.14").parse(seed)["cuda_graph_max_bs_decode"] == 8
    with pytest.raises(UsageError, match="ambiguous option: --cuda-graph-max-bs could match"):
        table("0.5.23").parse(seed)
    with pytest.raises(UsageError, match="unrecognized arguments: --nsa-decode-backend"):
        table("0.5.23").parse(["--model-path", "m", "--nsa-decode-backend", "trtllm"])
    with pytest.raises(UsageError, match="unrecognized arguments: --enable_metrics"):
        table("0.5.23").parse(["--model-path", "m", "--enable_metrics"])
    with pytest.raises(UsageError, match="required: --model-path"):
        table("0.5.23").parse([])


def test_a_version_without_a_table_takes_the_nearest_lower_one_and_says_so() -> None:
    assert table("0.5.23").note is None
    assert table("0.5.12").of == "0.5.11"
    assert "that of 0.5.23 is used" in str(table("0.6.0").note)
    assert table("0.5.10.post1").note is None
    with pytest.raises(UsageError, match="older than every version"):
        table("0.5.0")
    with pytest.raises(UsageError, match="no SGLang version"):
        table("main")


def test_versions_are_in_order_and_have_tables_of_their_own() -> None:
    assert list(versions()) == sorted(versions(), key=version_key)
    assert len(versions()) == 17
    for version, arguments in (("0.5.9", 331), ("0.5.23", 531)):
        assert len(table(version).arguments) == arguments


def test_every_other_name_leads_to_an_argument_of_some_version() -> None:
    for name, today in renamed().items():
        assert canonical(name) == today
        assert canonical(today) == today, f"{name} -> {today} goes on to {canonical(today)}"
        assert any(table(version).find(name) for version in versions()), name


@pytest.mark.parametrize("version", versions())
def test_every_argument_is_spelled_as_the_parser_of_its_version_reads_it(version: str) -> None:
    """For each argument: spell a value; parse all the words at once; find every value."""
    flags = table(version)
    samples = {"int": "7", "float": "0.5", "human_readable_int": "7", "loads": '{"a": 1}', "json_list_type": "[1]"}
    words: list[str] = []
    wanted: dict[str, object] = {}
    for argument in flags.arguments:
        if argument.kind in ("const", "ignored") or argument.deprecated or argument.type.startswith("parse_"):
            continue
        if argument.kind == "store":
            text = str(argument.choices[0]) if argument.choices else samples.get(argument.type, "x")
            words += flags.spell(argument.dest, text)
            typed = TYPES.get(argument.type, str)(text)
            wanted[argument.dest] = [typed] if argument.nargs in ("+", "*") else typed
        else:
            words += flags.spell(argument.dest, True)
            wanted[argument.dest] = True
    parsed = flags.parse(words)
    assert {name: parsed[name] for name in wanted} == wanted
    assert len(wanted) > 300
