"""From the inventory to what Prometheus asks."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml

from runbooks.inventory import load
from runbooks.inventory.shape import Inventory, Monitoring, Server
from runbooks.monitor import scrape
from runbooks.monitor.install import ARGUMENTS, rules_text, shown

ROOT = Path(__file__).parents[2]


def inventory(**changes: object) -> Inventory:
    return msgspec.structs.replace(load(ROOT / "inventory.yaml").inventory, **changes)


def targets(document: dict[str, object]) -> dict[str, list[tuple[str, str]]]:
    jobs = yaml.safe_load(shown(document))["scrape_configs"]
    return {
        job["job_name"]: [(one["targets"][0], one["labels"]["host"]) for one in job["static_configs"]] for job in jobs
    }


@pytest.mark.parametrize(
    ("host", "at"),
    [
        ("127.0.0.1", "127.0.0.1:30000"),
        ("0.0.0.0", "127.0.0.1:30000"),
        ("::", "[::1]:30000"),
        ("10.0.0.5", "10.0.0.5:30000"),
    ],
)
def test_on_the_host_everything_is_asked_where_it_listens(host: str, at: str) -> None:
    found = targets(scrape.on_host(inventory(server=Server(host=host)), "glm5-a"))
    assert found["sglang"] == [(at, "glm5-a")]
    assert found["node"] == [("127.0.0.1:9100", "glm5-a")]
    assert "dcgm" not in found


def test_what_the_inventory_adds() -> None:
    more = Monitoring(alertmanagers=("192.0.2.7:9093",), dcgm="127.0.0.1:9400", pages="https://p")
    document = scrape.on_host(inventory(monitoring=more), "glm5-a")
    assert document["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] == ["192.0.2.7:9093"]
    assert targets(document)["dcgm"] == [("127.0.0.1:9400", "glm5-a")]
    assert "https://p/nan-output.html" in rules_text(inventory(monitoring=more))


def test_from_elsewhere_each_host_is_asked_by_its_address() -> None:
    made = inventory()
    found = targets(scrape.for_all(made, ["glm5-a"]))
    assert found["node"] == [(f"{made.hosts['glm5-a'].address}:9100", "glm5-a")]
    assert set(found) >= {"node", "sglang"}


def test_systemd_takes_the_arguments_as_they_are() -> None:
    for words in ARGUMENTS.values():
        assert all(not set(word) & set(" \"'\\$") - {"$"} for word in words)
