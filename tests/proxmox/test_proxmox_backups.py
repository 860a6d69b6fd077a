"""Which backup jobs take a VM, from files as PVE writes them."""

from __future__ import annotations

import pytest

from runbooks.proxmox.backups import jobs, members

POOLS = members(["pool:gpu:with: a comment that may not hold one::", "pool:labs::105,129:local-zfs:", "pool:bad"])
CASES: dict[str, tuple[str, str]] = {  # the file; the cure, or nothing where the job does not take VM 129 of node pve
    "all": ("vzdump: a\n\tschedule 21:00\n\tall 1\n", "pvesh set /cluster/backup/a --exclude 129"),
    "all but some": ("vzdump: a\n\tall 1\n\texclude 100,101\n", "--exclude 100,101,129"),
    "all but ours": ("vzdump: a\n\tall 1\n\texclude 100,129\n", ""),
    "not enabled": ("vzdump: a\n\tenabled 0\n\tall 1\n", ""),
    "another node's": ("vzdump: a\n\tnode pve2\n\tall 1\n", ""),
    "this node's": ("vzdump: a\n\tnode pve\n\tall 1\n", "--exclude 129"),
    "by number": ("vzdump: a\n\tvmid 100,129\n\tcomment all 1: no\n", "out of the job a"),
    "another number": ("vzdump: a\n\tvmid 1290,12\n", ""),
    "by pool": ("vzdump: a\n\tpool labs\n", "out of the pool labs"),
    "another pool": ("vzdump: a\n\tpool gpu\n", ""),
    "no backup at all": ("realmsync: a\n\tall 1\nreplication: 129-0\n\tvmid 129\n", ""),
    "an old file, all": ("0 2 * * 6 root vzdump --all 1 --mode snapshot --quiet 1\n", "--exclude 129"),
    "an old file, by number": ("0 2 * * 6 root vzdump 100 129 --mode stop --maxfiles 100\n", "out of the job of"),
    "an old file, another": ("0 2 * * 6 root vzdump 100 --maxfiles 129\n", ""),
    "none": ("", ""),
}


@pytest.mark.parametrize("name", CASES)
def test_which_job_takes_the_vm(name: str) -> None:
    text, cure = CASES[name]
    takers = [job for job in jobs([line.strip() for line in text.splitlines()]) if job.takes(129, "pve", POOLS)]
    assert bool(takers) is bool(cure)
    assert all(cure in job.cure(129) for job in takers)
