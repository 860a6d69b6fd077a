"""`invoke status`: since when the server is as it is, how old the canary's word is, and which bench it names."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from runbooks import paths
from runbooks.engine.follow import Job
from runbooks.status import _LOOK, _MARK, _canary, last_bench


def canary(ended: float) -> Job:
    return Job(
        label="canary-1", state="4", name="canary", who="me", changes=False, since=ended - 9, ended=ended, tail=()
    )


def test_a_verdict_from_before_this_start_says_so() -> None:
    assert _canary([canary(988)], 1000, 995) == "dead, 12 s ago, before the last start"
    assert _canary([canary(988)], 1000, 900) == "dead, 12 s ago"
    assert _canary([], 1000, 900) == "never"


@pytest.mark.parametrize(("state", "edge"), [("active", "ActiveEnter"), ("failed", "StateChange")])
def test_since_is_when_the_unit_became_what_it_is(state: str, edge: str, tmp_path: Path) -> None:
    fake = tmp_path / "systemctl"
    fake.write_text(
        f"#!/bin/sh\ncase $3 in ActiveState) echo {state} ;; {edge}Timestamp) echo Mon 2026-11-30 01:26:00 UTC ;;"
        " *) echo Mon 2026-11-30 01:23:00 UTC ;; esac\n"
    )
    fake.chmod(0o755)
    script = _LOOK.format(unit=paths.UNIT_NAME, mark=_MARK, current=tmp_path, lock=tmp_path)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, env=env, check=False).stdout
    assert said.split(_MARK)[0].splitlines()[1:] == [state, "1796001960"]


def bench(folder: Path, day: str, *points: dict[str, Any]) -> None:
    run = folder / f"2026-11-{day}T000000Z-glm5-a-final"
    run.mkdir()
    (run / "points.json").write_text(json.dumps({"points": points}))
    (run / "run.json").write_text(json.dumps({"reference": {"64": 1000.0}}))


def test_the_last_valid_bench_stands_with_the_share_of_its_own_table(tmp_path: Path) -> None:
    point = {"concurrency": 64, "tok_s": 980.0, "decode_tok_s": 1010.0}
    bench(tmp_path, "30", point | {"valid": False})
    assert last_bench("glm5-a", tmp_path) == "INVALID (2026-11-30)"
    bench(tmp_path, "29", point | {"valid": True})
    assert last_bench("glm5-a", tmp_path) == "1010 tok/s decode at 64, 101% of the reference (1 point, 2026-11-29)"


def test_a_short_sweep_takes_no_full_ones_place_and_a_newer_full_one_does(tmp_path: Path) -> None:
    def at(b: int, rate: float, valid: bool = True) -> dict[str, Any]:
        return {"concurrency": b, "tok_s": rate, "decode_tok_s": rate, "valid": valid}

    bench(tmp_path, "27", at(1, 50.0), at(64, 1000.0))
    bench(tmp_path, "28", at(1, 51.0), at(64, 990.0))
    bench(tmp_path, "29", at(64, 1020.0))
    bench(tmp_path, "30", at(1, 50.0), at(64, 400.0, valid=False))
    assert last_bench("glm5-a", tmp_path) == "990 tok/s decode at 64, 99% of the reference (2 points, 2026-11-28)"
