"""What was captured beside the answers: logs of a router, metrics, a crash seen from outside, peers' bench output."""

from __future__ import annotations

from pathlib import Path

import pytest

from runbooks.canary.probe.host import NAN_LINES
from runbooks.canary.probe.server import metric
from runbooks.diagnose import classify

DATA = Path(__file__).parent / "beside"
CAUSES = {
    "router.log": ("router-worker", "server-down"),
    "router-metrics-after-kill.txt": ("router-worker", "server-down"),  # its counters name the refusals
    "router-kill-timeline.txt": ("router-worker", "server-down"),
    "sglang0523-nan-crash-health-window.txt": ("no-answer", "server-down"),
    "sglang-resolve-matrix.txt": ("bad-value", "deploy-failed"),  # wrong values are tried there on purpose
}
"""All others are of servers that did nothing wrong that their words would tell: a benchmark of NaN looks like any."""


@pytest.mark.parametrize("name", [file.name for file in sorted(DATA.iterdir())])
def test_each_text_gets_its_cause_and_no_other(name: str) -> None:
    text = (DATA / name).read_text()
    cause = classify(text)
    assert (cause.name, cause.page) == CAUSES.get(name, ("nothing", ""))
    assert not any(NAN_LINES.search(line) for line in text.splitlines())


@pytest.mark.parametrize("version", ["0523", "059"])
def test_a_servers_counters_are_read(version: str) -> None:
    text = (DATA / f"metrics-sglang{version}-glm4moe-healthy.txt").read_text()
    assert metric(text, "sglang:num_running_reqs") == metric(text, "sglang:num_queue_reqs") == 0
    assert (metric(text, "sglang:generation_tokens_total") or 0) > 0


def test_a_routers_metrics_are_no_servers() -> None:
    assert metric((DATA / "router-metrics-after-kill.txt").read_text(), "sglang:num_running_reqs") is None
