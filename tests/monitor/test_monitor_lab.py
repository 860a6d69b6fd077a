"""A real Prometheus on a guest: installed, scraping, an alert that fires, and nothing to do the second time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lab.guest import Guest
from lab.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]  # apt fetches Prometheus: most of a minute

ASK = "python3 -c 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())' "


def install(lab: Lab, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [str(Path(sys.executable).with_name("invoke")), "monitor.install", "--plain", *words]
    env = {**os.environ, "RUNBOOKS_INVENTORY": str(lab.inventory)}
    root = Path(__file__).parents[2]
    return subprocess.run(argv, capture_output=True, text=True, check=False, cwd=root, env=env, timeout=400)


def ask(guest: Guest, path: str) -> Any:
    return json.loads(guest.run(f"{ASK} 'http://127.0.0.1:9090/api/v1/{path}'").stdout)["data"]


def until(what: str, true: Any) -> None:
    end = time.monotonic() + 90
    while not true():
        assert time.monotonic() < end, what
        time.sleep(1)


def test_it_is_set_up_and_its_alerts_fire(lab: Lab, guest: Guest) -> None:
    assert install(lab, "--check").returncode == 3
    done = install(lab)
    assert done.returncode == 0, done.stdout + done.stderr
    again = install(lab)
    assert (again.returncode, "0 changed" in again.stdout) == (0, True), again.stdout

    listening = guest.run("ss -Hltn '( sport = :9090 or sport = :9100 )'").stdout
    assert "127.0.0.1:9090" in listening
    assert "127.0.0.1:9100" in listening
    assert "*:9" not in listening
    rules = ask(guest, "rules")["groups"][0]["rules"]
    assert len(rules) > 30
    assert all(rule["health"] in ("ok", "unknown") for rule in rules)

    def up() -> dict[str, str]:
        found = ask(guest, "query?query=up")["result"]
        return {one["metric"]["job"]: one["value"][1] for one in found if one["metric"]["host"] == guest.name}

    until("every job is scraped", lambda: len(up()) == 3 and up()["node"] == up()["prometheus"] == "1")
    assert up()["sglang"] == "0"  # nothing serves here
    metrics = 'runbooks_canary_verdict{verdict="nan"} 1'
    guest.run(f"cat >/var/lib/prometheus/node-exporter/runbooks_canary.prom <<'X'\n{metrics}\nX")

    def firing() -> set[str]:
        return {one["labels"]["alertname"] for one in ask(guest, "alerts")["alerts"] if one["state"] == "firing"}

    until("CanaryNaN fires", lambda: {"CanaryNaN", "Heartbeat"} <= firing())
    (alert,) = [one for one in ask(guest, "alerts")["alerts"] if one["labels"]["alertname"] == "CanaryNaN"]
    assert alert["annotations"]["description"] == f"invoke runbook nan-output --run --hosts {guest.name}"


def test_what_was_changed_by_hand_is_written_and_read_again(lab: Lab, guest: Guest) -> None:
    guest.run(
        "echo '# mine' >>/etc/prometheus/glm5-rules.yaml; sed -i s/9100/9999/ /etc/default/prometheus-node-exporter"
    )
    done = install(lab)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "127.0.0.1:9100" in guest.run("ss -Hltn 'sport = :9100'").stdout
    assert "0 changed" in install(lab).stdout


def test_for_ones_own_prometheus_and_grafana(lab: Lab, tmp_path: Path) -> None:
    argv = [str(Path(sys.executable).with_name("invoke")), "monitor.files", str(tmp_path / "out")]
    env = {**os.environ, "RUNBOOKS_INVENTORY": str(lab.inventory)}
    subprocess.run(argv, check=True, cwd=Path(__file__).parents[2], env=env, capture_output=True)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "dashboard.json",
        "glm5-rules.yaml",
        "prometheus.yaml",
    ]
