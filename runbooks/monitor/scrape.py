"""What Prometheus asks, where, and how often. Pure: from the inventory to a configuration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from runbooks.inventory.beside import beside
from runbooks.inventory.shape import Inventory

RULES = "/etc/prometheus/glm5-rules.yaml"
CONFIG = "/etc/prometheus/prometheus.yml"
PROMETHEUS = "127.0.0.1:9090"
NODE = "127.0.0.1:9100"
EVERY = "15s"


def on_host(inventory: Inventory, host: str) -> dict[str, Any]:
    """For a Prometheus on the host itself: everything on loopback, so no port has to be opened."""
    jobs = [("prometheus", PROMETHEUS), ("node", NODE), ("sglang", beside(inventory.server))]
    if inventory.monitoring.dcgm is not None:
        jobs.append(("dcgm", inventory.monitoring.dcgm))
    return _config(inventory, [_job(name, [(at, host)]) for name, at in jobs] + _gateways(inventory, host))


def for_all(inventory: Inventory, hosts: Sequence[str]) -> dict[str, Any]:
    """For a Prometheus elsewhere that reaches the hosts by their addresses; they must listen there."""

    def at(port: int | str) -> list[tuple[str, str]]:
        return [(_address(inventory.hosts[host].address, port), host) for host in hosts]

    jobs = [_job("node", at(9100)), _job("sglang", at(inventory.server.port))]
    if inventory.monitoring.dcgm is not None:
        jobs.append(_job("dcgm", at(inventory.monitoring.dcgm.rpartition(":")[2])))
    gateways = [group.gateway for group in inventory.groups.values() if group.gateway is not None]
    if gateways:
        targets = [(_address(one.ssh.address, one.metrics_port), one.ssh.address) for one in gateways]
        jobs.append(_job("gateway", targets))
    return _config(inventory, jobs)


def _config(inventory: Inventory, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    receivers = [{"static_configs": [{"targets": list(inventory.monitoring.alertmanagers)}]}]
    alerting = {"alerting": {"alertmanagers": receivers}} if inventory.monitoring.alertmanagers else {}
    every = {"scrape_interval": EVERY, "evaluation_interval": EVERY}
    return {"global": every, **alerting, "rule_files": [RULES], "scrape_configs": jobs}


def _job(name: str, targets: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """`host` is what the rules join on: `instance` differs from one exporter to the next."""
    return {
        "job_name": name,
        "static_configs": [{"targets": [at], "labels": {"host": host}} for at, host in targets],
    }


def _gateways(inventory: Inventory, host: str) -> list[dict[str, Any]]:
    """A gateway that runs on this very machine; its metrics are on loopback."""
    address = inventory.hosts[host].address
    here = [one.gateway for one in inventory.groups.values() if one.gateway and one.gateway.ssh.address == address]
    return [_job("gateway", [(f"127.0.0.1:{gateway.metrics_port}", host)]) for gateway in here]


def _address(address: str, port: int | str) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
