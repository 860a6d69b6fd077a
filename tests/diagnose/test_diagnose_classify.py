"""One case a kind of failure: text in, cause and page out. Real journals first, then lines from public reports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runbooks import oncall
from runbooks.diagnose import classify, rank
from runbooks.diagnose.signatures import SIGNATURES

DATA = Path(__file__).parent / "data"

JOURNALS = {
    "bind-model-unreadable-journal.txt": ("weights-unreadable", "model-download"),
    "nan-0523-on-failure-journal.txt": ("nan", "nan-output"),
    "nan-no-journal.txt": ("nan", "nan-output"),
    "stop-and-limits.txt": ("restart-limit", "server-down"),
    "port-in-use-0523.txt": ("port-in-use", "deploy-failed"),
    "unknown-flag-0523.txt": ("unknown-flag", "deploy-failed"),
    "no-model-059.txt": ("weights-unreadable", "model-download"),
}

CONDITIONAL = {
    "build-killed",
    "hangs-in-capture",
    "health-lies",
    "nan-speculative",
    "nan-fp4-gemm",
    "nan-sparse-kernel",
    "prefix-lost",
}  # test_diagnose_elsewhere.py
SIGQUIT = "Received sigquit from a child process. It usually means the child failed."
KILLED = "sglang.service: Main process exited, code=killed, status=9/KILL"

LINES = {
    line: (cause, page)
    for _, cause, page, line in (
        row.split("\t", 3) for row in (DATA / "lines.tsv").read_text().splitlines() if not row.startswith("#")
    )
}

CAPTURES = Path(__file__).parents[1] / "lab" / "data"  # of a real driver with two H200
STEPS = Path(__file__).parents[1] / "steps" / "data" / "healthy"
HEALTHY_FILES = (
    *sorted((DATA / "healthy").iterdir()),
    DATA / "healthy-journal.txt",
    *sorted(CAPTURES.glob("smi-*")),
    *(one for one in sorted(STEPS.iterdir()) if not one.name.endswith("-canary.log")),  # which a host's are not asked
)

HEALTHY = (
    "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  595.58.03  Release Build",
    "Ignore import error when loading sglang.srt.models.bailing_moe_linear: No module named 'vllm'",
    "MoE Config file not found at /x/E=257,N=256,device_name=NVIDIA_RTX_PRO_6000.json. Using default.",
    "The server is fired up and ready to roll!",
    "Decode batch, #running-req: 4, #token: 4096, token usage: 0.01, cuda graph: True, gen throughput (token/s): 44.1",
    "UserWarning: 'python -m sglang.launch_server' is still supported",
    "server_args=ServerArgs(enable_nan_detection=True, watchdog_timeout=300, api_key=None)",
)


@pytest.mark.parametrize("file", JOURNALS)
def test_real_journals(file: str) -> None:
    cause = classify((DATA / file).read_text(errors="replace"))
    assert (cause.name, cause.page) == JOURNALS[file]


@pytest.mark.parametrize("line", LINES)
def test_lines_of_public_reports(line: str) -> None:
    cause = classify(line)
    assert (cause.name, cause.page) == LINES[line]
    assert cause.evidence[0][:100] in line


@pytest.mark.parametrize("line", LINES)
def test_the_first_of_the_crash_chain_wins_over_its_echoes(line: str) -> None:
    chain = f"Scheduler hit an exception: Traceback (most recent call last):\n{line}\n{SIGQUIT}\n{KILLED}"
    if classify(line).certain:  # a warning is no reason to die
        assert classify(chain).name == LINES[line][0]


def test_every_signature_has_a_case_and_a_page() -> None:
    covered = {name for name, _ in LINES.values()} | {name for name, _ in JOURNALS.values()} | CONDITIONAL
    left = {signature.name for signature in SIGNATURES if not signature.name.startswith("node-")} - covered
    assert left == {"scheduler-died", "died", "stopped"}  # echoes: tested below
    assert len({signature.name for signature in SIGNATURES}) == len(SIGNATURES)
    assert {signature.page for signature in SIGNATURES} <= set(oncall.names())
    assert all(signature.source and signature.fix for signature in SIGNATURES)


def test_an_oom_kill_and_a_nan_crash_end_alike_and_are_told_apart_by_the_kernel() -> None:
    journal = f"{SIGQUIT}\n{KILLED}"
    assert classify(journal).name == "scheduler-died"
    assert not classify(journal).certain
    kernel = "Out of memory: Killed process 4711 (sglang::schedul) total-vm:1kB"
    assert classify(journal, kernel).name == "oom-kill"


def test_only_the_last_start_is_blamed() -> None:
    old = "Nov 29 16:00:00 a systemd[1]: Starting sglang.service...\nKeyError: 'glm_moe_dsa'\n"
    new = "Nov 29 17:00:00 a systemd[1]: Starting sglang.service...\nOSError: [Errno 98] address already in use\n"
    assert classify(old + new).name == "port-in-use"
    assert classify(new + old).name == "model-unknown"


def test_healthy_lines_are_no_cause() -> None:
    cause = classify("\n".join(HEALTHY), "", {"ActiveState": "active", "Result": "success"})
    assert (cause.name, cause.page, cause.certain) == ("starting", "start-slow", False)
    journal = (DATA / "healthy-journal.txt").read_text(errors="replace")
    assert classify(journal, "", {"ActiveState": "active", "Result": "success"}).name == "starting"


@pytest.mark.parametrize("file", HEALTHY_FILES, ids=lambda path: path.name)
def test_healthy_logs_have_no_finding(file: Path) -> None:
    found = rank(file.read_text(errors="replace"))
    assert [(cause.name, cause.evidence) for cause in found] == [("nothing", ())]


def test_echoes_are_blamed_only_alone() -> None:
    stopped = "SIGTERM received. signum=None frame=None. Draining requests and shutting down..."
    assert (classify(stopped).name, classify(stopped).certain) == ("stopped", False)
    assert classify(KILLED).name == "died"
    assert classify(f"{stopped}\n{KILLED}").name == "stopped"


def test_several_are_ranked_and_echoes_left_out() -> None:
    lines = ["NCCL WARN Cuda failure", "torch.OutOfMemoryError: CUDA out of memory.", SIGQUIT, KILLED]
    found = rank("\n".join(lines), "NVRM: Xid (PCI:0000:41:00): 79, pid=1, GPU has fallen off the bus.")
    assert [cause.name for cause in found] == ["gpu-lost", "gpu-memory", "nccl"]


def test_the_unknown_says_so_and_shows_the_telling_lines() -> None:
    cause = classify("hello\nZorkError: the frobnicator failed\nbye", "", {"ActiveState": "failed", "Result": "signal"})
    assert (cause.name, cause.certain) == ("unknown", False)
    assert cause.evidence == ("ZorkError: the frobnicator failed",)
    assert "Result=signal" in cause.text


def test_no_pattern_is_for_one_machine() -> None:
    for signature in SIGNATURES:
        assert not re.search(r"\d{3}\.\d{2,3}\.\d{2}|0000:|/opt/|python3\.\d", signature.pattern), signature.name


@pytest.mark.parametrize(
    ("unit", "name"),
    [
        ({"LoadState": "not-found", "ActiveState": "inactive", "Result": "success"}, "not-deployed"),
        ({"LoadState": "loaded", "ActiveState": "inactive", "Result": "success"}, "not-running"),
        ({"LoadState": "loaded", "ActiveState": "failed", "Result": "exit-code"}, "unknown"),
    ],
)
def test_a_unit_that_is_down_without_a_word(unit: dict[str, str], name: str) -> None:
    assert classify("", "", unit).name == name


def test_there_are_enough_healthy_logs_to_mean_something() -> None:
    """Of installations, builds, boots and servers: most from our own runs, of real apt, dkms, pip and nvidia-smi."""
    assert len(HEALTHY_FILES) >= 20


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        ("[2026-11-30 00:00:00 TP0] ", "[2026-11-30 00:00:00 TP0] "),
        ("Nov 30 00:00:01 glm5-a sglang[12]: [2026-11-30 00:00:02 DP1 TP3] ", "[2026-11-30 00:00:02 DP1 TP3] "),
        ("Nov 30 00:00:01 glm5-a sglang[12]: ", "Nov 30 00:00:01 "),
        ("2026-11-30T00:00:01+0100 glm5-a sglang[12]: ", "2026-11-30T00:00:01+0100 "),
        ("sglang-1  | [2026-11-30 00:00:00] ", "[2026-11-30 00:00:00] "),
        ("", ""),
    ],
)
def test_a_line_that_is_shown_keeps_its_time_and_rank(before: str, kept: str) -> None:
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    assert rank(f"{before}{line}\n")[0].evidence == (f"{kept}{line}",)
