"""A Grafana dashboard: one row for what users feel, one for the server's queue and memory, one for the cards, one for
the machine. `document()` is its JSON, to import as it is; it asks for the data source and offers the hosts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

HEIGHT, WIDTH = 7, 8  # of a panel, in Grafana's units; a row is 24 wide
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_HOSTS = 'host=~"$host"'


@dataclass(frozen=True)
class Panel:
    """`queries`: PromQL -> legend; HOSTS stands for the chosen hosts. `unit` is one of Grafana's. `kind`: of panel."""

    title: str
    unit: str
    queries: dict[str, str]
    kind: str = "timeseries"
    top: float | None = None


def _quantiles(metric: str) -> dict[str, str]:
    rate = f"sum by (host, le) (rate({metric}_bucket{{HOSTS}}[5m]))"
    return {f"histogram_quantile({share}, {rate})": f"{{{{host}}}} p{share * 100:.0f}" for share in (0.5, 0.99)}


ROWS: dict[str, tuple[Panel, ...]] = {
    "What users feel": (
        Panel(
            "Canary (1 healthy, 2 degraded, 3 NaN, 4 dead)",
            "none",
            {
                'max by (host) (runbooks_canary_verdict{HOSTS,verdict="healthy"} * 1 or '
                'runbooks_canary_verdict{HOSTS,verdict="degraded"} * 2 or '
                'runbooks_canary_verdict{HOSTS,verdict="nan"} * 3 or '
                'runbooks_canary_verdict{HOSTS,verdict="dead"} * 4)': "{{host}}"
            },
            kind="state-timeline",
        ),
        Panel("Alerts", "none", {'count by (host, alertname) (ALERTS{HOSTS,alertstate="firing"})': "{{alertname}}"}),
        Panel(
            "HTTP answers a second",
            "reqps",
            {"sum by (host, status_code) (rate(sglang:http_responses_total{HOSTS}[5m]))": "{{host}} {{status_code}}"},
        ),
        Panel("Time to first token", "s", _quantiles("sglang:time_to_first_token_seconds")),
        Panel("Between tokens", "s", _quantiles("sglang:inter_token_latency_seconds")),
        Panel("Whole request", "s", _quantiles("sglang:e2e_request_latency_seconds")),
    ),
    "The server": (
        Panel(
            "Tokens a second",
            "short",
            {'sum by (host, mode) (rate(sglang:realtime_tokens_total{HOSTS,mode!=""}[1m]))': "{{host}} {{mode}}"},
        ),
        Panel(
            "Requests",
            "short",
            {
                "sum by (host) (sglang:num_running_reqs{HOSTS})": "{{host}} running",
                "sum by (host) (sglang:num_queue_reqs{HOSTS})": "{{host}} waiting",
            },
        ),
        Panel("KV cache", "percentunit", {"max by (host) (sglang:token_usage{HOSTS})": "{{host}}"}, top=1),
        Panel("Prefix hits", "percentunit", {"max by (host) (sglang:cache_hit_rate{HOSTS})": "{{host}}"}, top=1),
        Panel("Put back for want of memory", "short", {"max by (host) (sglang:num_retracted_reqs{HOSTS})": "{{host}}"}),
        Panel(
            "Restarts",
            "short",
            {'node_systemd_service_restart_total{HOSTS,name="sglang.service"}': "{{host}}"},
        ),
    ),
    "The cards": (
        Panel("Busy", "percent", {"DCGM_FI_DEV_GPU_UTIL{HOSTS}": "{{host}} {{gpu}}"}, top=100),
        Panel("Power (140 W at 100 % is spinning)", "watt", {"DCGM_FI_DEV_POWER_USAGE{HOSTS}": "{{host}} {{gpu}}"}),
        Panel("Temperature", "celsius", {"DCGM_FI_DEV_GPU_TEMP{HOSTS}": "{{host}} {{gpu}}"}),
        Panel("Clock", "rotmhz", {"DCGM_FI_DEV_SM_CLOCK{HOSTS}": "{{host}} {{gpu}}"}),
        Panel("Last Xid", "none", {"DCGM_FI_DEV_XID_ERRORS{HOSTS}": "{{host}} {{gpu}}"}),
        Panel(
            "PCIe packets repeated a second",
            "short",
            {"rate(DCGM_FI_DEV_PCIE_REPLAY_COUNTER{HOSTS}[5m])": "{{host}} {{gpu}}"},
        ),
    ),
    "The machine": (
        Panel(
            "Main memory left",
            "bytes",
            {"node_memory_MemAvailable_bytes{HOSTS}": "{{host}}"},
        ),
        Panel(
            "Disks, full",
            "percentunit",
            {"1 - node_filesystem_avail_bytes{HOSTS} / node_filesystem_size_bytes{HOSTS}": ("{{host}} {{mountpoint}}")},
            top=1,
        ),
        Panel(
            "Gateway: replicas that it reaches",
            "short",
            {"sum by (host) (smg_worker_health{HOSTS})": "{{host}}"},
        ),
    ),
}


def document() -> dict[str, Any]:
    """The dashboard as Grafana imports it (schema 39, Grafana 11)."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append({"type": "row", "title": title, "id": len(panels) + 1, "gridPos": _place(0, top, 24, 1)})
        for number, panel in enumerate(row):
            across, down = number % 3 * WIDTH, top + 1 + number // 3 * HEIGHT
            panels.append(_panel(panel, len(panels) + 1, _place(across, down, WIDTH, HEIGHT)))
        top += 1 + -(-len(row) // 3) * HEIGHT
    return {
        "title": "GLM-5 on SGLang",
        "uid": "glm5-sglang",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_source_choice(), _host_choice()]},
        "panels": panels,
    }


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"expr": query.replace("HOSTS", _HOSTS), "legendFormat": legend, "refId": chr(ord("A") + at)}
        for at, (query, legend) in enumerate(panel.queries.items())
    ]
    scale: dict[str, Any] = {"min": 0} if panel.top is None else {"min": 0, "max": panel.top}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, **scale}, "overrides": []},
        "targets": [{**target, "datasource": _SOURCE} for target in targets],
    }


def _place(across: int, down: int, wide: int, high: int) -> dict[str, int]:
    return {"x": across, "y": down, "w": wide, "h": high}


def _source_choice() -> dict[str, Any]:
    return {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}


def _host_choice() -> dict[str, Any]:
    return {
        "name": "host",
        "type": "query",
        "label": "host",
        "datasource": _SOURCE,
        "query": {"query": "label_values(up, host)", "refId": "hosts"},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }
