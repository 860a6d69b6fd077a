"""Watts, clocks and PCIe counters beside a sweep: nvidia-smi's lines, a window's figures, a sampler that ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runbooks.bench import hardware
from runbooks.bench.sampler.cli import row_of

CARD = "3, 301.25, 2430, 12481, 61, 98, 0x0000000000000004"


def test_a_line_of_nvidia_smi() -> None:
    assert row_of("card", 7, CARD) == ["card", 7, 3, 301.25, 2430.0, 12481.0, 61.0, 98.0, 4]
    assert row_of("card", 7, "3, [N/A], 2430, 12481, 61, 98, [N/A]") == [
        "card", 7, 3, None, 2430.0, 12481.0, 61.0, 98.0, None,
    ]  # fmt: skip
    assert row_of("card", 7, "No devices were found") is None
    assert row_of("link", 7, "    3      875      912 ") == ["link", 7, 3, 875.0, 912.0]
    assert row_of("link", 7, "# Idx     MB/s     MB/s ") is None
    assert row_of("link", 7, "    3        -        - ") == ["link", 7, 3, None, None]


def test_a_window_takes_its_own_rows(tmp_path: Path) -> None:
    rows = [["card", at, card, 100.0 + card, 2000.0 - 50 * card, 12000.0, 60.0 + card, 90.0, 4 if at > 15 else 0]
            for at in range(10, 21) for card in (0, 1)]  # fmt: skip
    rows += [["link", at, card, 10.0, 20.0] for at in (12, 99) for card in (0, 1)]
    text = "".join(json.dumps(row) + "\n" for row in rows) + '["card", 3'
    (tmp_path / hardware.FILE).write_text(text)
    found = hardware.within(hardware.read(tmp_path), [(11, 20)])
    assert found is not None
    assert (found["cards"], found["samples"], found["watts"]) == (2, 20, 201.0)
    assert (found["sm_mhz"], found["sm_mhz_low"], found["degrees"], found["busy"]) == (1975.0, 1950.0, 61.0, 0.9)
    assert found["throttled"] == {"software power cap": 0.5}
    assert found["link_mb_s"] == 60.0
    assert hardware.within(hardware.read(tmp_path), [(30, 40)]) is None
    assert hardware.read(tmp_path / "nowhere") == []


@pytest.mark.served
def test_the_sampler_ends_with_what_it_stands_beside(tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\n[ \"$1\" = dmon ] && sleep 60\nwhile echo '{CARD}'; do sleep 0.1; done\n")
    smi.chmod(0o755)
    out = tmp_path / hardware.FILE
    out.write_text('["link", 1, 7, 0.0, 0.0]\n')  # of the points of a sweep that broke off, and is resumed
    beside = subprocess.Popen(["sh", "-c", f"until grep -q card {out}; do sleep 0.1; done"])
    subprocess.run(
        [sys.executable, "-m", "runbooks.bench.sampler", "--out", str(out), "--beside", str(beside.pid)],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        cwd=Path(__file__).parents[2],
        check=True,
        timeout=20,
    )
    beside.wait()
    assert {row[2] for row in hardware.read(tmp_path)} == {3, 7}
