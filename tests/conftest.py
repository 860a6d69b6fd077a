"""Lab fixtures: real hosts for tests marked `lab`. A session has one lab of its own, a module one fresh guest."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from lab import sweep
from lab.guest import Guest
from lab.lab import Lab
from lab.machine import why_no_guests


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where guests cannot run, lab tests are skipped with the reason; in CI that is a failure, not a skip."""
    reason = why_no_guests()
    if reason is None:
        return
    for item in items:
        if item.get_closest_marker("lab"):
            if os.environ.get("CI"):
                item.add_marker(pytest.mark.usefixtures("fail_without_guests"))
            else:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def fail_without_guests() -> None:
    pytest.fail(f"CI must run the lab tests, and cannot: {why_no_guests()}", pytrace=False)


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """This test session's lab, without guests; always taken down. What killed sessions left goes first."""
    for left in sweep.orphans():
        left.down()
    lab = sweep.own()
    try:
        lab.up(hosts=0)
        yield lab
    finally:
        lab.down()


@pytest.fixture(scope="module")
def guest(lab: Lab) -> Iterator[Guest]:
    """A fresh guest for the tests of one module, answering ssh. `lab.inventory` names it."""
    guest = lab.add()
    try:
        yield guest
    finally:
        lab.remove(guest)
