"""Progress as real tools print it."""

from __future__ import annotations

import pytest

from runbooks.engine.progress import Meter, Progress

APT = """\
Reading package lists...
The following NEW packages will be installed:
  nano tree
0 upgraded, 2 newly installed, 0 to remove and 0 not upgraded.
Need to get 742 kB of archives.
Get:1 http://mirror.example/debian bookworm/main amd64 nano amd64 7.2-1+deb12u1 [690 kB]
Get:2 http://mirror.example/debian bookworm/main amd64 tree amd64 2.1.0-1 [52.5 kB]
Selecting previously unselected package nano.
Unpacking nano (7.2-1+deb12u1) ...
Unpacking tree (2.1.0-1) ...
Setting up tree (2.1.0-1) ...
Setting up nano (7.2-1+deb12u1) ...
Processing triggers for libc-bin (2.36-9) ..."""


def test_apt_from_its_plan_to_its_end() -> None:
    meter = Meter()
    seen = [found for line in APT.splitlines() if (found := meter.read(line))]
    assert [(p.done, p.total, p.detail) for p in seen] == [
        (0, 4, ""),
        (1, 2, "nano 690 kB"),
        (2, 2, "tree 52.5 kB"),
        (1, 4, "Unpacking nano"),
        (2, 4, "Unpacking tree"),
        (3, 4, "Setting up tree"),
        (4, 4, "Setting up nano"),
    ]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("[37/73] Building CXX object a/b.cu.o", Progress(37, 73, detail="Building CXX object a/b.cu.o")),
        ("[ 50%] Building C object y.o", Progress(50, 100, "%", "Building C object y.o")),
        ("fetch 12.3/441.0 GB 310 MB/s, 23 min left", Progress(12.3, 441.0, "GB", "310 MB/s, 23 min left")),
        (
            "  [36/73] 540.0 s /usr/local/cuda/bin/nvcc -I/x/src -c -c /x/src/fwd_hdim64.cu -o /b/fwd_hdim64.o",
            Progress(36, 73, detail="fwd_hdim64.cu, 9 min left"),
        ),
        ("[37/73] 740.0 s nvcc -c b.cu", Progress(37, 73, detail="nvcc -c b.cu, 12 min left")),
        ("  [1/73] 20.5 s nvcc -c b.cu", Progress(1, 73, detail="nvcc -c b.cu, 25 min left")),
        ("[73/73] 900.1 s g++ -shared", Progress(73, 73, detail="g++ -shared")),
        ("Progress 16384 of 4000000", Progress(0, None, "packages", "0/4 MB")),
        ("Collecting torch==2.13.0", Progress(1, None, "packages", "torch==2.13.0")),
        (
            "  Downloading http://x/torch-2.13.0-cp311-manylinux.whl (899.8 MB)",
            Progress(0, None, "packages", "torch-2.13.0-cp311-manylinux.whl 899.8 MB"),
        ),
        (
            "Installing collected packages: torch, sglang",
            Progress(0, None, "packages", "Installing collected packages torch, sglang"),
        ),
        ("Reading package lists...", None),
        ("[1/2", None),
        ("0 upgraded, 0 newly installed, 0 to remove and 3 not upgraded.", None),
        ("Setting up a joke", None),  # not apt's: it announced nothing
        ("", None),
    ],
)
def test_lines(line: str, found: Progress | None) -> None:
    assert Meter().read(line) == found


PIP = """\
Collecting sglang==0.5.23
  Downloading sglang-0.5.23-py3-none-any.whl.metadata (3.1 kB)
Collecting torch==2.13.0
  Using cached torch-2.13.0-cp312-manylinux.whl.metadata (28 kB)
Downloading sglang-0.5.23-py3-none-any.whl (4.0 MB)
Progress 1000000 of 4000000
Progress 4000000 of 4000000
Downloading torch-2.13.0-cp312-manylinux.whl (899.8 MB)
Progress 450000000 of 900000000
Installing collected packages: torch, sglang
Successfully installed sglang-0.5.23 torch-2.13.0
Collecting kernels
Processing /opt/wheels/kernels-1-py3-none-any.whl"""


def told(lines: str, seconds: float) -> list[tuple[float, float | None, str]]:
    """What is told of lines that come so many seconds after each other."""
    meter = Meter(iter(range(0, 10**6, int(seconds))).__next__)
    return [(found.done, found.total, found.detail) for line in lines.splitlines() if (found := meter.read(line))]


def test_pip_tells_how_much_of_the_resolved_set_is_there() -> None:
    """Metadata first, so the set is known before the first wheel; the next call of pip begins anew."""
    assert told(PIP, 10)[4:] == [
        (0, 2, "sglang-0.5.23-py3-none-any.whl 4.0 MB"),
        (0.25, 2, "sglang-0.5.23-py3-none-any.whl 1/4 MB, 70 s left"),
        (1, 2, "sglang-0.5.23-py3-none-any.whl 4/4 MB, 20 s left"),
        (1, 2, "torch-2.13.0-cp312-manylinux.whl 899.8 MB, 30 s left"),
        (1.5, 2, "torch-2.13.0-cp312-manylinux.whl 450/900 MB, 13 s left"),
        (2, None, "Installing collected packages torch, sglang"),
        (1, None, "kernels"),
        (1, None, "kernels-1-py3-none-any.whl"),
    ]


def test_pip_with_a_frozen_list() -> None:
    """Its length is said by us: an old index, and a folder of wheels, give no metadata."""
    lines = "Resolved: 3 packages\nCollecting a==1\n  Downloading http://x/a-1-py3-none-any.whl (1 kB)\n"
    lines += "Collecting b==1\nProcessing /w/b-1-py3-none-any.whl\nCollecting c==1\n"
    assert told(lines, 60) == [
        (0, 3, "a==1"),
        (0, 3, "a-1-py3-none-any.whl 1 kB"),
        (1, 3, "b==1, 4 min left"),
        (1, 3, "b-1-py3-none-any.whl, 6 min left"),
        (2, 3, "c==1, 2 min left"),
    ]


def test_flat_repositories_have_shorter_lines() -> None:
    meter = Meter()
    meter.read("0 upgraded, 1 newly installed, 0 to remove and 0 not upgraded.")
    found = meter.read("Get:1 http://10.77.0.1:8090/apt  nvidia-open 580.126.20-1 [1,234 B]")
    assert found is not None
    assert found.detail == "nvidia-open 1,234 B"
