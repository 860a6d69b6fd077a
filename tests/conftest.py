"""Lab fixtures: real hosts for tests marked `lab`. A session has one lab of its own, a module one fresh guest."""

from __future__ import annotations

import os
import signal
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


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """What a test does to its own signals ends with it: a blocked SIGTERM would be inherited by each process that a
    later test starts, and that one would never end."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = {number: signal.getsignal(number) for number in numbers}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for number, handler in handlers.items():
        signal.signal(number, handler)


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
