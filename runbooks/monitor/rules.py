"""The alerts: what must be true for how long, how grave it is, and the page that says what to do.

Every series carries the label `host`, the name that the inventory gives it, whichever exporter it comes from; so rules
join on `host` alone. Two severities: `critical` wakes somebody, `warning` waits for the morning.

Metrics: SGLang's own (`sglang:`, with `--enable-metrics`), the installed canary's, Prometheus' node_exporter, NVIDIA's
DCGM exporter (its default counters), SGLang's gateway (`smg_`), and Prometheus itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from runbooks.diagnose.machine import ONE_PROCESS
from runbooks.health.gpus import HOT, SPINNING

POWER_LIMIT = 600  # watts of one RTX PRO 6000 Blackwell Server Edition, as it is delivered


@dataclass(frozen=True)
class Alert:
    """`expr` is PromQL, true where something is wrong, `wait` for how long it has to be. `summary` is a template of
    Prometheus: one line for a telephone."""

    name: str
    expr: str
    wait: str
    severity: Literal["critical", "warning", "none"]
    summary: str
    page: str


def alerts(gpus: int) -> tuple[Alert, ...]:
    """All of them, for hosts that should have this many cards."""
    return (*_server(), *_canary(), *_machine(), *_cards(gpus), *_gateway(), *_watch())


def document(gpus: int, pages: str) -> dict[str, Any]:
    """The rules as Prometheus reads them; `pages` is where the built pages are found."""
    rules = [_rule(alert, pages) for alert in alerts(gpus)]
    return {"groups": [{"name": "glm5", "rules": rules}]}


def _rule(alert: Alert, pages: str) -> dict[str, Any]:
    annotations = {
        "summary": alert.summary,
        "description": f"invoke runbook {alert.page} --run --hosts {{{{ $labels.host }}}}",
        "runbook_url": f"{pages.rstrip('/')}/{alert.page}.html",
    }
    timing = {"for": alert.wait} if alert.wait else {}
    labels = {"severity": alert.severity}
    return {"alert": alert.name, "expr": alert.expr, **timing, "labels": labels, "annotations": annotations}


def _server() -> tuple[Alert, ...]:
    running = "sum by (host) (sglang:num_running_reqs)"
    tokens = 'sum by (host) (rate(sglang:realtime_tokens_total{mode="decode"}[5m]))'
    answers = 'sum by (host) (rate(sglang:http_responses_total{endpoint=~"/v1/.*|/generate"%s}[5m]))'
    broken = answers % ',status_code=~"5.."'
    first_token = "sum by (host, le) (rate(sglang:time_to_first_token_seconds_bucket[10m]))"
    return (
        Alert(
            "ServerFailed",
            'node_systemd_unit_state{name="sglang.service", state="failed"} == 1',
            "1m",
            "critical",
            "{{ $labels.host }}: the server died, and systemd gave up starting it",
            "server-down",
        ),
        Alert(  # a start takes 7 to 8 minutes, and a deploy has one
            "ServerDown",
            'up{job="sglang"} == 0',
            "12m",
            "critical",
            "{{ $labels.host }}: the server has not answered for longer than a start takes",
            "server-down",
        ),
        Alert(
            "ServerRestarts",
            'increase(node_systemd_service_restart_total{name="sglang.service"}[1h]) >= 2',
            "",
            "critical",
            '{{ $labels.host }}: the server died and was started again {{ $value | printf "%.0f" }} times in an hour',
            "server-down",
        ),
        Alert(
            "ServerStuck",
            f"{running} > 0 and on (host) {tokens} == 0",
            "3m",
            "critical",
            "{{ $labels.host }}: {{ $value | humanize }} requests are running, and no token comes",
            "server-down",
        ),
        Alert(
            "ServerErrors",
            f"{broken} / {answers % ''} > 0.05",
            "5m",
            "critical",
            "{{ $labels.host }}: {{ $value | humanizePercentage }} of the answers are HTTP 5xx",
            "nan-output",
        ),
        Alert(
            "QueueGrows",
            "sum by (host) (sglang:num_queue_reqs) > 0",
            "15m",
            "warning",
            "{{ $labels.host }}: requests have been waiting for 15 minutes ({{ $value | humanize }} now)",
            "slow-throughput",
        ),
        Alert(
            "CacheFull",
            "max by (host) (sglang:token_usage) > 0.95",
            "10m",
            "warning",
            "{{ $labels.host }}: the KV cache is {{ $value | humanizePercentage }} full",
            "slow-throughput",
        ),
        Alert(
            "FirstTokenLate",
            f"histogram_quantile(0.95, {first_token}) > 30",
            "10m",
            "warning",
            '{{ $labels.host }}: one request in twenty waits longer than {{ $value | printf "%.0f" }} s for its '
            "first token",
            "slow-throughput",
        ),
        Alert(  # without peer-to-peer this box gives 3.5 tok/s to each of 64 streams, and 11 to one alone
            "DecodeSlow",
            f"{tokens} / ({running} > 0) < 2",
            "15m",
            "warning",
            "{{ $labels.host }}: {{ $value | humanize }} tok/s for each running request",
            "slow-throughput",
        ),
        Alert(
            "NoCudaGraph",
            f"max by (host) (sglang:is_cuda_graph) == 0 and on (host) {running} > 0",
            "15m",
            "warning",
            "{{ $labels.host }}: decoding runs without CUDA graphs: the batch is above the captured sizes",
            "slow-throughput",
        ),
    )


def _canary() -> tuple[Alert, ...]:
    twice = "and on (host) runbooks_canary_unhealthy_runs >= 2"
    return (
        Alert(
            "CanaryNaN",
            'runbooks_canary_verdict{verdict="nan"} == 1',
            "",
            "critical",
            "{{ $labels.host }}: the model computes NaN, whatever /health says",
            "nan-output",
        ),
        Alert(  # once may be a deploy
            "CanaryDead",
            f'runbooks_canary_verdict{{verdict="dead"}} == 1 {twice}',
            "",
            "critical",
            "{{ $labels.host }}: the canary got no answer, twice",
            "server-down",
        ),
        Alert(
            "CanaryDegraded",
            f'runbooks_canary_verdict{{verdict="degraded"}} == 1 {twice}',
            "",
            "warning",
            "{{ $labels.host }}: the canary got wrong answers, twice",
            "canary-degraded",
        ),
        Alert(
            "CanaryStale",
            "time() - runbooks_canary_last_run_timestamp_seconds > 7200",
            "",
            "warning",
            "{{ $labels.host }}: the canary last ran {{ $value | humanizeDuration }} ago",
            "watch-blind",
        ),
        Alert(
            "CanaryMissing",
            'up{job="node"} == 1 unless on (host) runbooks_canary_last_run_timestamp_seconds',
            "1h",
            "warning",
            "{{ $labels.host }}: no canary is installed, so nobody would notice NaN",
            "watch-blind",
        ),
    )


def _machine() -> tuple[Alert, ...]:
    free = "node_filesystem_avail_bytes / node_filesystem_size_bytes"
    return (
        Alert(
            "HostDown",
            'up{job="node"} == 0',
            "5m",
            "critical",
            "{{ $labels.host }}: the machine does not answer",
            "host-unreachable",
        ),
        Alert(
            "DiskFull",
            f"{free} < 0.03",
            "2m",
            "critical",
            "{{ $labels.host }}: {{ $labels.mountpoint }} has {{ $value | humanizePercentage }} left",
            "disk-full",
        ),
        Alert(
            "DiskFills",
            f"{free} < 0.25 and predict_linear(node_filesystem_avail_bytes[2h], 8 * 3600) < 0",
            "30m",
            "warning",
            "{{ $labels.host }}: {{ $labels.mountpoint }} is full before the morning at this pace",
            "disk-full",
        ),
        Alert(
            "InodesOut",
            "node_filesystem_files_free / (node_filesystem_files > 0) < 0.03",
            "5m",
            "warning",
            "{{ $labels.host }}: {{ $labels.mountpoint }} has few inodes left",
            "disk-full",
        ),
        Alert(
            "DiskReadOnly",
            'node_filesystem_readonly{mountpoint=~"/|/var|/opt"} == 1',
            "1m",
            "critical",
            "{{ $labels.host }}: {{ $labels.mountpoint }} has become read-only: its disk fails",
            "disk-full",
        ),
        Alert(
            "MemoryLow",
            "node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes < 0.03",
            "5m",
            "warning",
            "{{ $labels.host }}: {{ $value | humanizePercentage }} of the main memory is left",
            "server-down",
        ),
        Alert(
            "OutOfMemory",
            "increase(node_vmstat_oom_kill[15m]) > 0",
            "",
            "critical",
            "{{ $labels.host }}: the kernel killed a process for want of memory",
            "server-down",
        ),
    )


def _cards(gpus: int) -> tuple[Alert, ...]:
    minor = " or ".join(f"DCGM_FI_DEV_XID_ERRORS == {number}" for number in ONE_PROCESS.split("|"))
    use, watts = "avg by (host) (DCGM_FI_DEV_GPU_UTIL)", "avg by (host) (DCGM_FI_DEV_POWER_USAGE)"
    return (
        Alert(
            "GpuXid",
            f"DCGM_FI_DEV_XID_ERRORS > 0 unless ({minor})",
            "",
            "critical",
            "{{ $labels.host }}: GPU {{ $labels.gpu }} reports Xid {{ $value | humanize }}",
            "gpu-lost",
        ),
        Alert(
            "GpuMissing",
            f"count by (host) (DCGM_FI_DEV_GPU_TEMP) < {gpus}",
            "2m",
            "critical",
            f"{{{{ $labels.host }}}}: {{{{ $value | humanize }}}} of {gpus} GPUs are left",
            "gpu-lost",
        ),
        Alert(
            "GpuMemoryBroken",
            "DCGM_FI_DEV_ROW_REMAP_FAILURE > 0 or increase(DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS[1d]) > 0",
            "",
            "critical",
            "{{ $labels.host }}: memory of GPU {{ $labels.gpu }} has errors that were not corrected",
            "gpu-lost",
        ),
        Alert(
            "GpuSpins",
            f"{use} > 90 and on (host) {watts} < {SPINNING * POWER_LIMIT:.0f}",
            "5m",
            "critical",
            "{{ $labels.host }}: the GPUs are {{ $value | humanize }} % busy and cold: spinning, not working",
            "server-down",
        ),
        Alert(
            "GpuHot",
            f"DCGM_FI_DEV_GPU_TEMP >= {HOT}",
            "5m",
            "warning",
            "{{ $labels.host }}: GPU {{ $labels.gpu }} has {{ $value | humanize }} °C",
            "slow-throughput",
        ),
        Alert(
            "GpuLinkBad",
            "rate(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[10m]) > 1",
            "10m",
            "warning",
            "{{ $labels.host }}: the PCIe link of GPU {{ $labels.gpu }} repeats packets: seating, riser or cable",
            "gpu-lost",
        ),
    )


def _gateway() -> tuple[Alert, ...]:
    return (
        Alert(
            "GatewayDown",
            'up{job="gateway"} == 0',
            "2m",
            "critical",
            "{{ $labels.host }}: SGLang's gateway does not answer",
            "server-down",
        ),
        Alert(  # the time of a start: a replica is away while it is deployed
            "ReplicaDown",
            "smg_worker_health == 0",
            "12m",
            "critical",
            "{{ $labels.host }}: the gateway does not reach {{ $labels.worker }}",
            "server-down",
        ),
        Alert(
            "GatewayGivesUp",
            "sum by (host) (increase(smg_worker_retries_exhausted_total[5m])) > 0",
            "2m",
            "critical",
            "{{ $labels.host }}: the gateway found no replica for requests, and turned them away",
            "server-down",
        ),
    )


def _watch() -> tuple[Alert, ...]:
    """Who watches the watch. `Heartbeat` always fires: its receiver complains when it does not come."""
    return (
        Alert(
            "ExporterDown",
            'up{job=~"dcgm|prometheus"} == 0',
            "10m",
            "warning",
            "{{ $labels.host }}: nothing is known of {{ $labels.job }}: its exporter does not answer",
            "watch-blind",
        ),
        Alert(
            "TextfileBroken",
            "node_textfile_scrape_error > 0",
            "5m",
            "warning",
            "{{ $labels.host }}: node_exporter cannot read the canary's metrics",
            "watch-blind",
        ),
        Alert(
            "RulesBroken",
            "increase(prometheus_rule_evaluation_failures_total[15m]) > 0 "
            "or prometheus_config_last_reload_successful == 0",
            "5m",
            "warning",
            "{{ $labels.host }}: Prometheus could not evaluate a rule, or read its configuration",
            "watch-blind",
        ),
        Alert("Heartbeat", "vector(1)", "", "none", "the alerts work: this one fires always", "watch-blind"),
    )
