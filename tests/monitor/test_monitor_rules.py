"""The alerts: each has a case that fires with this very text, and one beside it that stays quiet, by promtool."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.promtool import promtool
from runbooks import oncall
from runbooks.canary.probe.watch import _HELP as CANARY
from runbooks.monitor import dashboard, rules
from runbooks.monitor.install import shown

DATA = Path(__file__).parent / "data"
KNOWN = {line for line in (DATA / "metrics.txt").read_text().splitlines() if not line.startswith("#")}
KNOWN |= {f"runbooks_canary_{name}" for name in CANARY}
ALERTS = rules.alerts(8)
PAGES = "https://pages.example.org/"
_METRIC = re.compile(r"\b(?:sglang:\w+|(?:node|smg|runbooks_canary|prometheus|DCGM_FI)_\w+|up|ALERTS)\b")


@dataclass(frozen=True)
class Case:
    """Series of host h, a value a minute, looked at after `at` minutes; `labels`: what the alert says beside its host
    and severity."""

    fires: dict[str, str]
    quiet: dict[str, str]
    said: str
    labels: dict[str, str] = field(default_factory=dict)
    at: int = 20


def verdict(name: str) -> str:
    return f'runbooks_canary_verdict{{verdict="{name}"}}'


RUNNING, TOKENS = "sglang:num_running_reqs", 'sglang:realtime_tokens_total{mode="decode"}'
BAD, GOOD = (f'sglang:http_responses_total{{endpoint="/v1/chat/completions",status_code="{n}"}}' for n in (500, 200))
BUCKETS = {le: f'sglang:time_to_first_token_seconds_bucket{{le="{le}"}}' for le in ("10", "40", "+Inf")}
AVAIL, SIZE = (f'node_filesystem_{name}_bytes{{mountpoint="/"}}' for name in ("avail", "size"))
FREE, FILES = (f'node_filesystem_{name}{{mountpoint="/"}}' for name in ("files_free", "files"))
FAILED = 'node_systemd_unit_state{name="sglang.service",state="failed"}'
RESTARTS = 'node_systemd_service_restart_total{name="sglang.service"}'
XID = 'DCGM_FI_DEV_XID_ERRORS{gpu="3"}'
REPLAY = 'DCGM_FI_DEV_PCIE_REPLAY_COUNTER{gpu="3"}'
TWICE = "runbooks_canary_unhealthy_runs"
ROWS = 'DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{gpu="3"}'
EVAL = "prometheus_rule_evaluation_failures_total"
GPU3 = {"gpu": "3"}


def up(job: str) -> str:
    return f'up{{job="{job}"}}'


CASES: dict[str, Case] = {
    "ServerFailed": Case(
        {FAILED: "0x5 1x30"},
        {FAILED: "0x40"},
        "h: the server died, and systemd gave up starting it",
        {"name": "sglang.service", "state": "failed"},
    ),
    "ServerDown": Case(  # quiet: a start of eight minutes
        {up("sglang"): "1x2 0x30"},
        {up("sglang"): "1x9 0x8 1x10"},
        "h: the server has not answered for longer than a start takes",
        {"job": "sglang"},
    ),
    "ServerRestarts": Case(
        {RESTARTS: "0x5 1x5 3x30"},
        {RESTARTS: "7x40"},
        "h: the server died and was started again 3 times in an hour",
        {"name": "sglang.service"},
        at=60,
    ),
    "ServerStuck": Case(
        {RUNNING: "4x30", TOKENS: "900x30"},
        {RUNNING: "4x30", TOKENS: "0+60x30"},
        "h: 4 requests are running, and no token comes",
    ),
    "ServerErrors": Case(
        {BAD: "0+6x30", GOOD: "0+54x30"}, {BAD: "0+1x30", GOOD: "0+99x30"}, "h: 10% of the answers are HTTP 5xx"
    ),
    "QueueGrows": Case(
        {"sglang:num_queue_reqs": "3x30"},
        {"sglang:num_queue_reqs": "3x14 0x1 3x14"},
        "h: requests have been waiting for 15 minutes (3 now)",
    ),
    "CacheFull": Case(
        {"sglang:token_usage": "0.98x30"}, {"sglang:token_usage": "0.9x30"}, "h: the KV cache is 98% full"
    ),
    "FirstTokenLate": Case(
        {BUCKETS["10"]: "0+1x30", BUCKETS["40"]: "0+60x30", BUCKETS["+Inf"]: "0+60x30"},
        {BUCKETS["10"]: "0+60x30", BUCKETS["40"]: "0+60x30", BUCKETS["+Inf"]: "0+60x30"},
        "h: one request in twenty waits longer than 38 s for its first token",
        at=25,
    ),
    "DecodeSlow": Case(
        {RUNNING: "4x40", TOKENS: "0+240x40"},
        {RUNNING: "4x40", TOKENS: "0+2400x40"},
        "h: 1 tok/s for each running request",
        at=30,
    ),
    "NoCudaGraph": Case(
        {RUNNING: "4x30", "sglang:is_cuda_graph": "0x30"},
        {RUNNING: "0x30", "sglang:is_cuda_graph": "0x30"},
        "h: decoding runs without CUDA graphs: the batch is above the captured sizes",
    ),
    "CanaryNaN": Case(
        {verdict("nan"): "1x30"},
        {verdict("nan"): "0x30", verdict("degraded"): "1x30"},
        "h: the model computes NaN, whatever /health says",
        {"verdict": "nan"},
    ),
    "CanaryDead": Case(
        {verdict("dead"): "1x30", TWICE: "2x30"},
        {verdict("dead"): "1x30", TWICE: "1x30"},
        "h: the canary got no answer, twice",
        {"verdict": "dead"},
    ),
    "CanaryDegraded": Case(
        {verdict("degraded"): "1x30", TWICE: "3x30"},
        {verdict("degraded"): "1x30", TWICE: "1x30"},
        "h: the canary got wrong answers, twice",
        {"verdict": "degraded"},
    ),
    "CanaryStale": Case(
        {"runbooks_canary_last_run_timestamp_seconds": "0x200"},
        {"runbooks_canary_last_run_timestamp_seconds": "0+60x200"},
        "h: the canary last ran 2h 30m 0s ago",
        at=150,
    ),
    "CanaryMissing": Case(
        {up("node"): "1x90"},
        {up("node"): "1x90", "runbooks_canary_last_run_timestamp_seconds": "0x90"},
        "h: no canary is installed, so nobody would notice NaN",
        {"job": "node"},
        at=70,
    ),
    "HostDown": Case({up("node"): "0x30"}, {up("node"): "1x30"}, "h: the machine does not answer", {"job": "node"}),
    "DiskFull": Case(
        {AVAIL: "2x30", SIZE: "100x30"}, {AVAIL: "9x30", SIZE: "100x30"}, "h: / has 2% left", {"mountpoint": "/"}
    ),
    "DiskFills": Case(
        {AVAIL: "40000-100x300", SIZE: "100000x300"},
        {AVAIL: "20000x300", SIZE: "100000x300"},
        "h: / is full before the morning at this pace",
        {"mountpoint": "/"},
        at=240,
    ),
    "InodesOut": Case(
        {FREE: "2x30", FILES: "100x30"},
        {FREE: "0x30", FILES: "0x30"},
        "h: / has few inodes left",
        {"mountpoint": "/"},
    ),
    "DiskReadOnly": Case(
        {'node_filesystem_readonly{mountpoint="/"}': "1x30"},
        {'node_filesystem_readonly{mountpoint="/mnt/cdrom"}': "1x30"},
        "h: / has become read-only: its disk fails",
        {"mountpoint": "/"},
    ),
    "MemoryLow": Case(
        {"node_memory_MemAvailable_bytes": "2x30", "node_memory_MemTotal_bytes": "100x30"},
        {"node_memory_MemAvailable_bytes": "20x30", "node_memory_MemTotal_bytes": "100x30"},
        "h: 2% of the main memory is left",
    ),
    "OutOfMemory": Case(
        {"node_vmstat_oom_kill": "0x15 1x30"},
        {"node_vmstat_oom_kill": "5x40"},
        "h: the kernel killed a process for want of memory",
    ),
    "GpuXid": Case({XID: "79x30"}, {XID: "43x30"}, "h: GPU 3 reports Xid 79", GPU3),
    "GpuMissing": Case(
        {f'DCGM_FI_DEV_GPU_TEMP{{gpu="{number}"}}': "40x30" for number in range(7)},
        {f'DCGM_FI_DEV_GPU_TEMP{{gpu="{number}"}}': "40x30" for number in range(8)},
        "h: 7 of 8 GPUs are left",
    ),
    "GpuMemoryBroken": Case(
        {ROWS: "0x5 1x40"}, {ROWS: "2x40"}, "h: memory of GPU 3 has errors that were not corrected", GPU3
    ),
    "GpuSpins": Case(
        {"DCGM_FI_DEV_GPU_UTIL": "100x30", "DCGM_FI_DEV_POWER_USAGE": "140x30"},
        {"DCGM_FI_DEV_GPU_UTIL": "100x30", "DCGM_FI_DEV_POWER_USAGE": "310x30"},
        "h: the GPUs are 100 % busy and cold: spinning, not working",
    ),
    "GpuHot": Case(
        {'DCGM_FI_DEV_GPU_TEMP{gpu="3"}': "93x30"},
        {'DCGM_FI_DEV_GPU_TEMP{gpu="3"}': "84x30"},
        "h: GPU 3 has 93 °C",
        GPU3,
    ),
    "GpuLinkBad": Case(
        {REPLAY: "0+600x40"},
        {REPLAY: "0+2x40"},
        "h: the PCIe link of GPU 3 repeats packets: seating, riser or cable",
        GPU3,
        at=30,
    ),
    "GatewayDown": Case(
        {up("gateway"): "0x30"}, {up("gateway"): "1x30"}, "h: SGLang's gateway does not answer", {"job": "gateway"}
    ),
    "ReplicaDown": Case(
        {'smg_worker_health{worker="http://a:1"}': "0x30"},
        {'smg_worker_health{worker="http://a:1"}': "1x10 0x8 1x10"},
        "h: the gateway does not reach http://a:1",
        {"worker": "http://a:1"},
    ),
    "GatewayGivesUp": Case(
        {"smg_worker_retries_exhausted_total": "0+3x30"},
        {"smg_worker_retries_exhausted_total": "14x30"},
        "h: the gateway found no replica for requests, and turned them away",
    ),
    "ExporterDown": Case(
        {up("dcgm"): "0x30"},
        {up("dcgm"): "1x30"},
        "h: nothing is known of dcgm: its exporter does not answer",
        {"job": "dcgm"},
    ),
    "TextfileBroken": Case(
        {"node_textfile_scrape_error": "1x30"},
        {"node_textfile_scrape_error": "0x30"},
        "h: node_exporter cannot read the canary's metrics",
    ),
    "RulesBroken": Case(
        {EVAL: "0+1x40"},
        {EVAL: "9x40", "prometheus_config_last_reload_successful": "1x40"},
        "h: Prometheus could not evaluate a rule, or read its configuration",
    ),
}
ALWAYS = "Heartbeat"  # that it never stays quiet is its whole use


def test_every_alert_has_a_case() -> None:
    assert {alert.name for alert in ALERTS} == {*CASES, ALWAYS}
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_says_what_to_do(alert: rules.Alert) -> None:
    assert alert.page in oncall.names()
    assert alert.severity in ("critical", "warning") or alert.name == ALWAYS
    rule = next(rule for rule in rules.document(8, PAGES)["groups"][0]["rules"] if rule["alert"] == alert.name)
    assert rule["annotations"]["runbook_url"] == f"https://pages.example.org/{alert.page}.html"
    assert rule["annotations"]["description"].startswith(f"invoke runbook {alert.page} --run")


def test_rules_and_dashboard_ask_only_for_metrics_that_exist() -> None:
    queries = [alert.expr for alert in ALERTS]
    queries += [target["expr"] for panel in dashboard.document()["panels"] for target in panel.get("targets", ())]
    asked = {name for query in queries for name in _METRIC.findall(query)}
    assert len(asked) > 30
    assert asked <= KNOWN


def test_the_dashboard_is_one() -> None:
    panels = dashboard.document()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 20
    places = [panel["gridPos"] for panel in panels]
    cells = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells)  # no panel lies over another
    assert max(x for x, _ in cells) == 23
    assert all("$host" in target["expr"] for panel in panels for target in panel.get("targets", ()))


def _series(values: dict[str, str]) -> list[dict[str, str]]:
    def named(series: str) -> str:
        name, _, rest = series.partition("{")
        return f'{name}{{host="h"{"," if rest else ""}{rest or "}"}'

    return [{"series": named(series), "values": value} for series, value in values.items()]


def _test(alert: rules.Alert, case: Case, fires: bool) -> dict[str, Any]:
    rule = next(rule for rule in rules.document(8, PAGES)["groups"][0]["rules"] if rule["alert"] == alert.name)
    annotations = {**rule["annotations"], "summary": case.said}
    annotations["description"] = annotations["description"].replace("{{ $labels.host }}", "h")
    labels = {"host": "h", "severity": alert.severity, **case.labels}
    return {
        "name": f"{alert.name} {'fires' if fires else 'is quiet'}",
        "interval": "1m",
        "input_series": _series(case.fires if fires else case.quiet),
        "alert_rule_test": [
            {
                "eval_time": f"{case.at}m",
                "alertname": alert.name,
                "exp_alerts": [{"exp_labels": labels, "exp_annotations": annotations}] if fires else [],
            }
        ],
    }


@pytest.mark.served
def test_promtool_sees_every_alert_fire_and_stay_quiet(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(shown(rules.document(8, PAGES)))
    named = {alert.name: alert for alert in ALERTS}
    tests = [_test(named[name], case, fires) for name, case in CASES.items() for fires in (True, False)]
    heartbeat = {"expr": f'count(ALERTS{{alertname="{ALWAYS}"}})', "eval_time": "5m"}
    tests.append({"interval": "1m", "promql_expr_test": [{**heartbeat, "exp_samples": [{"labels": "{}", "value": 1}]}]})
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    for words in (["check", "rules", "rules.yaml"], ["test", "rules", "tests.yaml"]):
        done = subprocess.run([promtool(), *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
