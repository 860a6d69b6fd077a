"""Ctrl-C while a host measures: a whole job on this machine, which is asked to end; and the rest, later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runbooks.bench import BenchOptions, recompute, run_bench
from runbooks.bench.results import BenchResult
from runbooks.engine.report import Reporter
from runbooks.engine.transport import Connection
from tests.bench.test_bench_sweep import host, inventory, port
from tests.recorder import Recorder

pytestmark = pytest.mark.served

__all__ = ["host", "port"]


def test_a_sweep_that_is_stopped_leaves_a_valid_partial_result(
    host: Connection,
    port: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded, out = inventory(port, monkeypatch), tmp_path / "results"

    def bench(stop: str, **more: Any) -> BenchResult:
        options = BenchOptions(concurrency=(1, 2, 3), repeats=1, window=2.0, canary=False, self_check=False, **more)
        asked = lambda: any((tmp_path / "state").glob(f"bench/*/out/{stop}"))  # noqa: E731
        return run_bench(host, loaded, "glm5-a", options=options, report=Reporter(Recorder()), out=out, stopping=asked)

    part = bench("00-c1.bin")  # once the first point is whole
    assert part.run["loadgen"]["interrupted"] is True
    assert not part.points[0]["interrupted"]
    assert part.points[0]["requests"]["ok"] > 3
    assert len(part.points) < 3
    assert not part.valid
    assert recompute(part.folder).differences == ()
    whole = bench("nothing", resume=True)
    assert [point["concurrency"] for point in whole.points] == [1, 2, 3]
    assert not any(point["interrupted"] for point in whole.points)
    late = list((whole.folder / "raw").glob("00-c1-again*.bin"))  # on a busy machine: measured anew, beside the first
    assert whole.run["loadgen"]["resumed"] == (0 if late else 1)
    assert (whole.folder / "raw" / "00-c1.bin").read_bytes() == (part.folder / "raw" / "00-c1.bin").read_bytes()
