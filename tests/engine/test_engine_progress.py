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
        ("Progress 16384 of 4000000", Progress(0.016384, 4.0, "MB")),
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


def test_flat_repositories_have_shorter_lines() -> None:
    meter = Meter()
    meter.read("0 upgraded, 1 newly installed, 0 to remove and 0 not upgraded.")
    found = meter.read("Get:1 http://10.77.0.1:8090/apt  nvidia-open 580.126.20-1 [1,234 B]")
    assert found is not None
    assert found.detail == "nvidia-open 1,234 B"
