"""A file system with a real quota, on a guest: btrfs in an image on a loop device of this machine.

A guest has no loop device: this machine lends one, and mounts it among the guest's mounts. ext4's quotas would need a
kernel with CONFIG_QFMT_V2.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.guest import Guest

IMAGE, TREE, HOLDER = "srv/quota.img", "/srv/quota", "/srv/quota/limited"


@contextmanager
def limited(guest: Guest, limit: str) -> Iterator[str]:
    """A folder that takes `limit` (6M) on a file system of 300 MB."""
    apt = "DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install btrfs-progs"
    guest.run(f"command -v mkfs.btrfs >/dev/null || {apt}", timeout=120)
    guest.run(f"truncate -s 300M /{IMAGE} && mkfs.btrfs -q -f /{IMAGE} && mkdir -p {TREE}")
    inside = ("nsenter", f"--mount=/proc/{_first_process(guest)}/ns/mnt")
    device = _sh("losetup", "--find", "--show", str(guest.place / "upper" / IMAGE))
    if device is None:
        pytest.skip("this machine has no loop device to lend")
    try:
        minor = os.minor(Path(device).stat().st_rdev)
        assert _sh(*inside, "mknod", "/srv/quota.dev", "b", "7", str(minor)) is not None
        assert _sh(*inside, "mount", "-t", "btrfs", "/srv/quota.dev", TREE) is not None
        guest.run(
            f"btrfs quota enable {TREE} && btrfs subvolume create {HOLDER} && btrfs qgroup limit {limit} {HOLDER}"
        )
        yield HOLDER
    finally:
        _sh(*inside, "umount", TREE)
        _sh("losetup", "--detach", device)
        guest.run(f"rm -f /srv/quota.dev /{IMAGE}")


def _first_process(guest: Guest) -> str:
    machine = guest.run("cat /etc/machine-id").stdout
    for process in Path("/proc").glob("[0-9]*"):
        try:
            numbers = next(x for x in (process / "status").read_text().splitlines() if x.startswith("NSpid:")).split()
            if numbers[-1] == "1" and (process / "root/etc/machine-id").read_text() == machine:
                return process.name
        except (OSError, StopIteration):
            continue
    raise AssertionError("the guest has no first process")


def _sh(*argv: str) -> str | None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
