"""One guest for the matrix, put back before each fault."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.guest import Guest
from lab.lab import Lab
from runbooks.engine.transport import Target
from tests.faults.faults_world import World


@pytest.fixture
def world(lab: Lab, guest: Guest) -> Iterator[World]:
    """A guest on which nothing of the play is there; what a fault changed is mended at the end."""
    target = Target(
        name=guest.name,
        address=guest.address,
        key=guest.keys / "id_ed25519",
        known_hosts=guest.keys / "known_hosts",
    )
    world = World(lab, guest, target)
    world.reset()
    try:
        yield world
    finally:
        world.mend()
