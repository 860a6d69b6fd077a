"""Hosts side by side: batches, a stop after failures, all errors kept, and Ctrl-C once and twice."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runbooks.engine.errors import Bug, RunbookError, UsageError
from runbooks.engine.fleet import Fleet, Interrupt, NotStarted, Outcome, Rollout
from runbooks.engine.secret import Secret

HOSTS = [f"h{number}" for number in range(8)]


def run(work: Callable[[str], str], hosts: list[str] = HOSTS, **options: int | str) -> list[Outcome[str]]:
    fleet = Fleet(
        work=work, rollout=Rollout.read(**options), failed=lambda value: value == "bad",  # type: ignore[arg-type]
        interrupt=Interrupt(), on_interrupt=lambda: None,
    )  # fmt: skip
    return fleet.run(hosts)


@pytest.mark.parametrize(
    ("serial", "sizes"), [("", [8]), ("3", [3, 3, 2]), ("25%", [2, 2, 2, 2]), ("1%", [1] * 8), ("100%", [8])]
)
def test_batches(serial: str, sizes: list[int]) -> None:
    assert [len(batch) for batch in Rollout.read(serial=serial).batches(HOSTS)] == sizes


@pytest.mark.parametrize(
    "wrong",
    [{"serial": word} for word in ("0", "-1", "x", "0%", "101%", "5 %")]
    + [{"parallel": -1}, {"parallel": 0}, {"stop_after_failures": -2}],
)
def test_wrong_values_are_usage_errors(wrong: dict[str, int | str]) -> None:
    with pytest.raises(UsageError, match="--"):
        Rollout.read(**wrong)  # type: ignore[arg-type]


def test_outcomes_keep_the_order_and_every_error() -> None:
    def work(host: str) -> str:
        if host in ("h1", "h5"):
            raise RunbookError("down")
        return host

    outcomes = run(work)
    assert [outcome.host for outcome in outcomes] == HOSTS
    assert [o.host for o in outcomes if o.error] == ["h1", "h5"]
    assert all("(h" in str(o.error) for o in outcomes if o.error)


def test_a_slow_host_holds_nobody_back() -> None:
    """Seven hosts end while the first has not; it ends only when all others have."""
    others = threading.Semaphore(0)

    def work(host: str) -> str:
        if host == "h0":
            for _ in HOSTS[1:]:
                assert others.acquire(timeout=10)
        else:
            others.release()
        return host

    assert [outcome.value for outcome in run(work)] == HOSTS


@pytest.mark.parametrize(("options", "most"), [({"parallel": 2}, 2), ({"serial": "3"}, 3), ({}, 8)])
def test_no_more_at_once_than_asked_for(options: dict[str, int | str], most: int) -> None:
    now, peak, guard = 0, 0, threading.Lock()

    def work(host: str) -> str:
        nonlocal now, peak
        with guard:
            now += 1
            peak = max(peak, now)
        time.sleep(0.02)
        with guard:
            now -= 1
        return host

    run(work, HOSTS, **options)
    assert peak <= most


def test_after_enough_failures_no_more_hosts_are_begun() -> None:
    began: list[str] = []

    def work(host: str) -> str:
        began.append(host)
        return "bad" if host in ("h1", "h2") else "good"

    outcomes = run(work, parallel=1, stop_after_failures=2)
    assert began == ["h0", "h1", "h2"]
    assert all(isinstance(outcome.error, NotStarted) for outcome in outcomes[3:])
    assert "2 hosts failed before" in str(outcomes[3].error)


def test_a_bug_that_one_host_brings_to_light_is_its_error_and_the_others_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def work(host: str) -> str:
        if host == "h0":
            raise ZeroDivisionError(Secret("s3ntinel"))
        return host

    first, *others = run(work)
    assert [outcome.value for outcome in others] == HOSTS[1:]
    assert isinstance(first.error, Bug)
    assert (first.error.host, first.error.exit_code) == ("h0", 1)
    assert "a bug in runbooks: ZeroDivisionError" in str(first.error)
    (details,) = tmp_path.iterdir()
    assert str(details) in str(first.error)
    assert "ZeroDivisionError: ***" in details.read_text()
    assert details.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_lets_what_runs_end_and_begins_nothing_more(number: signal.Signals) -> None:
    interrupt, told, ended = Interrupt(), [], []

    def work(host: str) -> str:
        os.kill(os.getpid(), number)
        for _ in range(100):
            if interrupt:
                break
            time.sleep(0.05)
        ended.append(host)
        return host

    fleet = Fleet(
        work=work, rollout=Rollout(parallel=1), failed=lambda _value: False, interrupt=interrupt,
        on_interrupt=lambda: told.append("told"),
    )  # fmt: skip
    with interrupt.listening():
        outcomes = fleet.run(HOSTS)
    assert (ended, len(told)) == (["h0"], 1)
    assert "interrupted" in str(outcomes[1].error)


def test_two_signals_leave_at_once() -> None:
    interrupt, never = Interrupt(), threading.Event()

    def work(_host: str) -> str:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
        never.wait(20)
        return ""

    fleet = Fleet(
        work=work, rollout=Rollout(), failed=lambda _value: False, interrupt=interrupt, on_interrupt=lambda: None
    )
    with interrupt.listening(), pytest.raises(KeyboardInterrupt):
        fleet.run(["h0"])
    never.set()
