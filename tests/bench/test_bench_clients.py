"""The comparison with other clients: how it judges, and that ours is right on every trap of its table."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.clients import compare, traps, watch
from bench.clients.peers import ROOT, Ours, Told, Work

WORK = Work("http://x", 12, 2, 64, traps.TOKENS, Path("/nowhere"))
WELL = Told(12, 0, 12 * traps.TOKENS, 15.0, 5.0, 380.0)


@pytest.mark.parametrize(
    ("trap", "told", "said"),
    [
        ("lumps", WELL, "right"),
        ("lumps", replace(WELL, tokens=12 * 12), "WRONG: 144 tokens, not 576"),
        ("reasoning", replace(WELL, ttft_ms=0.0), "WRONG: TTFT 0.0 ms"),
        ("spaces", replace(WELL, tpot_ms=0.4), "WRONG: 0.40 ms a token"),
        ("strict", replace(WELL, ok=0), "WRONG: 0 of 12 successful"),
        ("thinking", replace(WELL, refused="prefix cache"), "WRONG: refused"),
        ("strict", "ended with 1, no result", "ended with 1"),
        ("nan", WELL, "WRONG: 12 of 12 successful, 380 tok/s, nothing said"),
        ("nan", replace(WELL, refused="NaN stop"), "right: NaN stop"),
        ("some-refuse", replace(WELL, ok=6, failed=6), "right: 6 failed"),
        ("silent", "hangs (ended after 240 s)", "hangs"),
        ("silent", "ended with 1, no result", "right"),
    ],
)
def test_a_client_is_held_against_the_truth(trap: str, told: Told | str, said: str) -> None:
    assert traps.judge(trap, told, WORK).startswith(said)


@pytest.mark.slow
def test_ours_is_right_on_every_trap() -> None:
    with compare.served(ROOT / "lab" / "traps.py", traps.STEP_MS) as url:
        found = traps.table([Ours()], compare.run, url, Path("/nowhere"))
    (ours,) = found.values()
    assert len(ours) == len(traps.COUNTED) + len(traps.SPOILED) == 19
    assert [f"{trap}: {verdict}" for trap, verdict in ours.items() if not verdict.startswith("right")] == []


def test_what_a_client_costs_is_of_the_middle_of_its_load(tmp_path: Path) -> None:
    looks = [(50, 8.0), (50, 9.0), (150, 9.5), (250, 9.6), (950, 10.3), (1050, 10.5), (1050, 12.0)]
    watching = watch.Watch(tmp_path / "count")
    watching.seen = [watch.Look(sent, sent // 50, sent // 50 * 0.02, used) for sent, used in looks]
    cost = watching.cost()
    assert cost.a_chunk == pytest.approx(0.8 / 800 * 1e6)  # from (150, 9.5) to (950, 10.3)
    assert cost.after == pytest.approx(1.7)
    assert cost.ttft_ms == pytest.approx(20.0)
    watching.seen = [watch.Look(0, 0, 0.0, 1.0), watch.Look(1000, 20, 0.4, 2.0)]
    with pytest.raises(ValueError, match="too short"):
        watching.cost()


def test_the_cpu_of_a_group_is_that_of_its_children_too() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass\n"
    child = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\nprint(flush=True)\ninput()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", child], process_group=0, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout is not None
        process.stdout.readline()
        used = watch.used_by(process.pid)
        process.communicate(b"\n")
    assert used is not None
    assert used >= 0.3
    assert watch.used_by(process.pid) is None
