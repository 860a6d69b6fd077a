"""The simulated SGLang takes exactly the command line of the release that it stands in for."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from lab.standins import models
from lab.standins.sglang import build, build_wheel
from lab.standins.sglang.src import arguments, release, resolve
from lab.standins.sglang.src.srt import server_args

MODEL = ["--model-path", "/m"]


@pytest.fixture(scope="module")
def glm5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lab's model folder."""
    return models.write(tmp_path_factory.mktemp("models"))


def as_version(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    table = build.table(version)
    monkeypatch.setattr(release, "table", lambda: table)


@pytest.mark.parametrize(
    ("version", "words", "dest", "value"),
    [
        ("0.5.9", ["--nsa-decode-backend", "trtllm"], "dsa_decode_backend", "trtllm"),
        ("0.5.19", ["--nsa-decode-backend=trtllm"], "dsa_decode_backend", "trtllm"),
        ("0.5.23", ["--dsa-decode-backend", "flashinfer_sparse_mla"], "dsa_decode_backend", "flashinfer_sparse_mla"),
        ("0.5.9", ["--cuda-graph-max-bs", "64"], "cuda_graph_max_bs_decode", 64),
        ("0.5.23", ["--cuda-graph-bs-decode", "1", "2", "4"], "cuda_graph_bs_decode", [1, 2, 4]),
        ("0.5.9", ["--tp", "8"], "tp_size", 8),
        ("0.5.23", ["--tensor-parallel-size", "8"], "tp_size", 8),
        ("0.5.23", ["--mem-fraction", "0.9"], "mem_fraction_static", 0.9),  # argparse's abbreviation
        ("0.5.23", ["--context-length", "128k"], "context_length", 128_000),
        ("0.5.23", ["--no-enable-tf32-matmul"], "enable_tf32_matmul", False),
        ("0.5.12.post1", ["--enable-nan-detection"], "enable_nan_detection", True),
    ],
)
def test_takes(monkeypatch: pytest.MonkeyPatch, version: str, words: list[str], dest: str, value: object) -> None:
    as_version(monkeypatch, version)
    assert arguments.parse([*MODEL, *words])[dest] == value


@pytest.mark.parametrize(
    ("version", "words", "text"),
    [
        ("0.5.9", ["--no-such-flag"], "launch_server.py: error: unrecognized arguments: --no-such-flag"),
        ("0.5.10", ["--no-such-flag"], "sglang serve: error: unrecognized arguments: --no-such-flag"),
        ("0.5.8.post1", ["--nsa-decode-backend", "trtllm"], "invalid choice: 'trtllm'"),
        ("0.5.23", ["--nsa-decode-backend", "trtllm"], "unrecognized arguments: --nsa-decode-backend trtllm"),
        ("0.5.9", ["--dsa-decode-backend", "trtllm"], "unrecognized arguments"),
        (
            "0.5.23",
            ["--cuda-graph-max-bs", "64"],
            "could match --cuda-graph-max-bs-decode, --cuda-graph-max-bs-prefill",
        ),
        ("0.5.13.post1", ["--enable-nan-detection"], "unrecognized arguments"),
        ("0.5.23", ["--tp-size", "eight"], "argument --tp-size/--tensor-parallel-size"),
        ("0.5.9", ["--schedule-policy", "hrrn"], "invalid choice"),
    ],
)
def test_refuses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], version: str, words: list[str], text: str
) -> None:
    as_version(monkeypatch, version)
    with pytest.raises(SystemExit) as left:
        arguments.parse([*MODEL, *words])
    shown = capsys.readouterr().err
    assert left.value.code == 2
    assert text in shown
    assert shown.startswith("usage: ")


def test_every_version_has_a_parser_that_wants_a_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for version in ("0.5.8.post1", "0.5.13.post1", "0.5.20", "0.5.23"):
        as_version(monkeypatch, version)
        with pytest.raises(SystemExit):
            arguments.parse([])
        assert "the following arguments are required: --model-path" in capsys.readouterr().err


def test_a_configuration_file_comes_before_the_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    as_version(monkeypatch, "0.5.10.post1")
    file = tmp_path / "sglang.yaml"
    file.write_text("# comment\napi-key: sk-1\nport: 1\nenable-metrics: true\ndisable_radix_cache: false\n")
    found = arguments.parse([*MODEL, "--config", str(file), "--port", "2"])
    wanted = {"api_key": "sk-1", "port": 2, "enable_metrics": True, "disable_radix_cache": False}
    assert {name: found[name] for name in wanted} == wanted


def test_tools_can_parse_without_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    as_version(monkeypatch, "0.5.23")
    assert server_args.prepare_server_args([*MODEL, "--port", "7"]).port == 7


# What SGLang picks on SM120: the real resolution of the three releases was run with a faked torch.cuda.
@pytest.mark.parametrize(
    ("version", "words", "kv", "prefill", "decode"),
    [
        ("0.5.9", [], "fp8_e4m3", "flashmla_auto", "flashmla_kv"),
        ("0.5.10.post1", [], "fp8_e4m3", "trtllm", "trtllm"),
        ("0.5.23", [], "fp8_e4m3", "flashinfer_sparse_mla", "flashinfer_sparse_mla"),
        ("0.5.9", ["--kv-cache-dtype", "bf16"], "bfloat16", "flashmla_sparse", "trtllm"),
        ("0.5.10.post1", ["--kv-cache-dtype", "bfloat16"], "bfloat16", "flashmla_sparse", "trtllm"),
        ("0.5.23", ["--kv-cache-dtype", "bfloat16"], "bfloat16", "flashmla_sparse", "trtllm"),
        (
            "0.5.9",
            ["--nsa-prefill-backend", "trtllm", "--nsa-decode-backend", "trtllm"],
            "fp8_e4m3",
            "trtllm",
            "trtllm",
        ),
    ],
)
def test_resolves_as_the_real_one(
    monkeypatch: pytest.MonkeyPatch, glm5: Path, version: str, words: list[str], kv: str, prefill: str, decode: str
) -> None:
    as_version(monkeypatch, version)
    found = resolve.resolve(arguments.parse(["--model-path", str(glm5), "--tp-size", "8", *words]))
    assert found.kv_dtype == kv
    assert (found.args["dsa_prefill_backend"], found.args["dsa_decode_backend"]) == (prefill, decode)
    assert found.page_size == 64
    assert f"prefill={prefill}, decode={decode}" in found.lines[-1]


def test_kv_tokens_are_those_of_the_published_log(monkeypatch: pytest.MonkeyPatch, glm5: Path) -> None:
    """rtx6kpro's deployment guide: 314,304 tokens of BF16 KV at TP8 and --mem-fraction-static 0.92."""
    as_version(monkeypatch, "0.5.9")
    words = ["--tp-size", "8", "--mem-fraction-static", "0.92", "--kv-cache-dtype", "bfloat16"]
    found = resolve.resolve(arguments.parse(["--model-path", str(glm5), *words]))
    assert abs(found.kv_tokens - 314_304) <= 128


def test_a_folder_without_a_model_is_refused_in_its_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    as_version(monkeypatch, "0.5.23")
    with pytest.raises(resolve.Refused, match="Repo id must be in the form"):
        resolve.resolve(arguments.parse(["--model-path", str(tmp_path / "nope")]))
    with pytest.raises(resolve.Refused, match=r"does not appear to have a file named config\.json"):
        resolve.resolve(arguments.parse(["--model-path", str(tmp_path)]))


def test_the_wheel_is_named_and_labelled(tmp_path: Path) -> None:
    wheel = build_wheel("0.5.23", tmp_path)
    assert wheel.name == "sglang-0.5.23-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read("sglang-0.5.23.dist-info/METADATA").decode()
        names = archive.namelist()
    assert "Summary: lab stand-in for SGLang" in metadata
    assert {"sglang/launch_server.py", "sglang/srt/server_args.py", "sglang/table.json", "sglang/words.txt"} <= set(
        names
    )
    assert wheel.read_bytes() == build_wheel("0.5.23", tmp_path / "again").read_bytes()


def test_a_version_without_a_table_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no argument table for SGLang 9\.9\.9"):
        build_wheel("9.9.9", tmp_path)
