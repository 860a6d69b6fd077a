"""The fault matrix: cause it, see what the user sees, look with other eyes, run again, and again.

Not proven here, since a guest cannot have it: the kernel's own clock set to another time (what starts after the jump
sees another one), a process in uninterruptible sleep (a stopped one stands for it), an NFS server that died (a pipe
without a writer stands for it). sudo-rs has a guest of its own: test_faults_sudo.py.
"""

from __future__ import annotations

import re

import pytest

from runbooks import paths
from tests.faults.causes import FAULTS, SLOW
from tests.faults.faults_world import World

pytestmark = pytest.mark.lab


def _cases() -> list[object]:
    return [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in FAULTS]


@pytest.mark.parametrize("name", _cases())
def test_fault(world: World, name: str) -> None:
    fault = FAULTS[name]
    ran = fault.cause(world)
    assert ran.seconds < fault.within, f"took {ran.seconds:.0f} s"
    assert re.search(fault.says, ran.text), f"says instead:\n{ran.text}"
    assert "Traceback" not in ran.text
    if fault.recovers:
        assert ran.result.failed == [], ran.text
    else:
        assert len(ran.result.failed) == 1, "no error"
        assert world.guest.name in str(ran.result.failed[0])
    world.mend()
    world.guest.wait()
    assert world.half_done() == ([paths.LOCK] if fault.locked else [])
    again = world.run()
    assert again.result.failed == [], again.text
    assert world.wrong() == []
    last = world.run()
    assert (last.result.failed, last.result.changed, last.exchanges) == ([], 0, 2)
    assert world.half_done() == []


def test_there_are_at_least_thirty() -> None:
    assert len(FAULTS) >= 30
