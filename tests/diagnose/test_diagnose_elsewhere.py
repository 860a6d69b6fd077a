"""Lines of other people's logs, and the conditions that a signature may have: version, settings, the last line."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from runbooks.diagnose import about, classify, rank
from runbooks.diagnose.command import causes, diagnose_file
from runbooks.diagnose.sources import from_file, from_text
from runbooks.engine.errors import UsageError

DATA = Path(__file__).parent / "data"
NAN = "ValueError: Detected errors during sampling! NaN in the logits."
ARGS = "[2026-11-29 17:00:00] server_args=ServerArgs(model_path='/m', {}, api_key=None)"


def rows() -> list[tuple[str, str, str]]:
    text = [line for line in (DATA / "elsewhere.tsv").read_text().splitlines() if not line.startswith("#")]
    read = csv.reader(text, delimiter="\t", quoting=csv.QUOTE_NONE)
    return [(where, cause, line.replace("\\n", "\n")) for where, cause, line in read]


@pytest.mark.parametrize(("where", "cause", "text"), rows())
def test_a_line_of_somebody_elses_log(where: str, cause: str, text: str) -> None:
    found = causes(from_text(text))[0]
    assert found.name == ("nothing" if cause == "-" else cause), where


def test_most_of_them_are_failures_and_many_are_none() -> None:
    failures = [row for row in rows() if row[1] != "-"]
    assert len(failures) >= 100
    assert len(rows()) - len(failures) >= 20


@pytest.mark.parametrize(
    ("settings", "version", "name"),
    [
        ("speculative_algorithm='EAGLE'", "", "nan-speculative"),
        ("speculative_algorithm=None", "", "nan"),
        ("quantization='modelopt_fp4'", "sglang==0.5.9", "nan-fp4-gemm"),
        ("quantization='modelopt_fp4'", "sglang==0.5.10", "nan"),
        ("quantization='modelopt_fp4'", "", "nan"),  # a version that nobody told excludes nothing and proves nothing
        ("nsa_decode_backend='flashmla_kv'", "", "nan-sparse-kernel"),
        ("dsa_decode_backend='flashinfer_sparse_mla'", "", "nan"),
    ],
)
def test_the_same_line_has_another_cause_under_other_settings(settings: str, version: str, name: str) -> None:
    journal = f"{ARGS.format(settings)}\n{NAN}"
    assert rank(journal, about=version)[0].name == name


def test_a_setting_may_come_from_a_command_line() -> None:
    said = about.read("ExecStart=/x/python -m sglang.launch_server --nsa-decode-backend=trtllm --tp 8 --enable-metrics")
    assert said.settings == {"dsa_decode_backend": "trtllm", "tp": "8", "enable_metrics": "true"}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('"sglang": "0.5.23"', "0.5.23"),
        ("sglang==0.5.10.post1", "0.5.10.post1"),
        ("sglang: 0.5.17", "0.5.17"),
        ("sglang is using nccl==2.27.3", ""),
    ],
)
def test_the_version(text: str, version: str) -> None:
    assert about.read(text).version == version


@pytest.mark.parametrize(
    ("version", "since", "before", "holds"),
    [
        ("0.5.9", "", "0.5.10", True),
        ("0.5.10rc1", "", "0.5.10", True),
        ("0.5.10", "", "0.5.10", False),
        ("0.5.10.post1", "0.5.10", "", True),
        ("", "", "0.5.10", False),
        ("", "", "", True),
    ],
)
def test_versions_in_order(version: str, since: str, before: str, holds: bool) -> None:
    assert about.About(version).within(since, before) is holds


def test_where_it_stands_still_only_the_last_line_tells() -> None:
    line = "[2026-11-29 17:00:00 TP0] sglang is using nccl==2.27.3"
    assert classify(line).name == "hangs-in-nccl"
    assert classify(f"{line}\n[2026-11-29 17:00:09 TP0] Load weight begin.").name == "nothing"


def test_no_prefix_is_found_with_speculation() -> None:
    line = "Prefill batch, #new-seq: 1, #new-token: 4096, #cached-token: 0, token usage: 0.00"
    assert classify(line).name == "nothing"
    found = classify(f"{ARGS.format(chr(39).join(('speculative_algorithm=', 'EAGLE', '')))}\n{line}")
    assert (found.name, found.certain, found.page) == ("prefix-lost", False, "slow-throughput")


def test_what_a_failed_deploy_saved_is_read_as_that(tmp_path: Path) -> None:
    """Its list of processes and our own error are no evidence; its versions and settings are."""
    parts = {
        "why.txt": "deploy: the release did not get healthy: CUDA out of memory",
        "journal.txt": f"Nov 29 17:00:00 a sglang[7]: {ARGS.format('quantization=' + repr('modelopt_fp4'))}\n{NAN}",
        "unit.txt": "ActiveState=failed\nResult=signal\n● sglang.service",
        "machine.txt": "sglang 2580 0.0 Z 16:05 0:00 [python] <defunct>",
        "versions.txt": "SGLang, pinned:\nsglang==0.5.9",
    }
    for name, text in parts.items():
        (tmp_path / name).write_text(text)
    texts = from_file(str(tmp_path))
    assert texts.unit == {"ActiveState": "failed", "Result": "signal"}
    assert [cause.name for cause in causes(texts)] == ["nan-fp4-gemm"]


def test_a_bundle_that_is_none(tmp_path: Path) -> None:
    from io import StringIO

    from runbooks.engine.printers import JsonPrinter
    from runbooks.engine.report import Reporter

    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(UsageError, match="is no bundle"):
        diagnose_file(str(tmp_path), Reporter(JsonPrinter(StringIO())), bundle=True)
