"""How the simulated SGLang dies while it starts: exit codes and last words, without a process for each."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from lab.standins import models
from lab.standins.sglang import build
from lab.standins.sglang.src import knobs, launch_server, processes, release


class Killed(Exception):
    """In place of the SIGKILL that the server sends itself."""


@pytest.fixture(scope="module")
def glm5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.write(tmp_path_factory.mktemp("models"))


def start(monkeypatch: pytest.MonkeyPatch, words: list[str], wanted: dict[str, Any]) -> int | str | None:
    """Run main() until it dies: its exit code, or -9."""

    def kill(pid: int, number: int) -> None:
        assert (pid, number) == (os.getpid(), signal.SIGKILL)
        raise Killed

    table = build.table("0.5.23")
    monkeypatch.setattr(release, "table", lambda: table)
    monkeypatch.setattr(knobs, "read", lambda: knobs.parse({"start_delay": 0, **wanted}))
    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(processes, "spawn", lambda _tp: [])
    try:
        return launch_server.main(words)
    except SystemExit as left:
        return left.code
    except Killed:
        return -9


@pytest.mark.parametrize(
    ("wanted", "words", "code", "text"),
    [
        ({"fail": "die_at_start"}, (), 1, "scheduler died during initialization (exit code: -9)"),
        ({"fail": "die_at_start", "detail": "memory"}, (), -9, "Not enough memory. Please try to increase"),
        ({}, ("--mem-fraction-static", "0.5"), -9, "Current value: mem_fraction_static=0.5"),
        ({}, ("--tp-size", "4"), -9, "torch.OutOfMemoryError: CUDA out of memory."),
        ({}, ("--enable-two-batch-overlap",), -9, "moe_a2a_backend cannot be 'none'"),
        ({}, ("--ep-size", "3"), 1, "expert parallel size must be 1 or the same"),
        ({}, ("--kv-cache-dtype", "fp8_e5m2"), 1, "DeepSeek DSA only supports"),
    ],
)
def test_deaths_at_start(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    glm5: Path,
    wanted: dict[str, Any],
    words: tuple[str, ...],
    code: int,
    text: str,
) -> None:
    assert start(monkeypatch, ["--model-path", str(glm5), "--tp-size", "8", *words], wanted) == code
    assert text in capfd.readouterr().err


def test_an_unknown_knob_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"unknown knob 'speeed'; known: .*start_delay"):
        knobs.parse({"speeed": 1})
    with pytest.raises(ValueError, match=r"unknown failure 'nann'; known: die_at_start"):
        knobs.parse({"fail": "nann"})


def test_process_names() -> None:
    assert processes.names(1) == ["sglang::scheduler", "sglang::detokenizer"]
    assert processes.names(2) == ["sglang::scheduler_TP0", "sglang::scheduler_TP1", "sglang::detokenizer"]
