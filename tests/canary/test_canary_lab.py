"""Canary and health on a real guest: the probe pushed over ssh, the simulated server under systemd, its journal."""

from __future__ import annotations

import base64
import io
import json
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab.guest import Guest
from lab.lab import Lab
from lab.standins import models
from lab.standins.sglang import stage
from runbooks import paths
from runbooks.canary import CanaryResult, install, run_canary
from runbooks.engine.report import Reporter
from runbooks.engine.transport import Connection
from runbooks.health import HealthResult, check
from runbooks.session import Session
from tests.recorder import Recorder

pytestmark = pytest.mark.lab

UNIT = """\
[Service]
Environment=PYTHONPATH=/opt/sim PYTHONDONTWRITEBYTECODE=1
ExecStart=/usr/bin/python3 -m sglang.launch_server --model-path /opt/sim/{model} --served-model-name {name} \\
  --host 127.0.0.1 --port {port} --tp-size 8 --quantization modelopt_fp4 --enable-metrics --reasoning-parser glm45
"""


@dataclass
class Served:
    """A guest with the simulated server as its sglang.service."""

    session: Session
    guest: Guest
    connection: Connection

    def start(self, **knobs: object) -> None:
        """Start it anew with these knobs, and wait until it listens."""
        self.guest.write("/etc/lab-sglang.json", json.dumps({"start_delay": 0.2, "warmup": 0.1, **knobs}))
        self.guest.run("systemctl daemon-reload; systemctl reset-failed sglang; systemctl restart sglang", check=False)
        port = self.session.loaded.inventory.server.port
        until = time.monotonic() + 30
        while not self.guest.run(f"ss -Hltn 'sport = :{port}'").stdout.strip():
            assert time.monotonic() < until, self.guest.run("journalctl -u sglang -n 20 --no-pager").stdout
            time.sleep(0.3)
        time.sleep(1)

    def canary(self, *, accept: bool = False) -> CanaryResult:
        loaded = self.session.loaded
        return run_canary(
            self.connection,
            server=loaded.inventory.server,
            model=loaded.model_for(self.guest.name),
            report=self.session.report,
            accept=accept,
        )

    def health(self) -> HealthResult:
        return check(self.connection, self.session.loaded, self.guest.name, self.session.report)


@pytest.fixture(scope="module")
def served(lab: Lab, guest: Guest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("sim")
    stage("0.5.23", folder)
    model = models.write(folder / "models").relative_to(folder)
    guest.run("mkdir -p /opt/sim && base64 -d | tar xz -C /opt/sim", stdin=packed(folder))
    session = Session.open(inventory=str(lab.inventory), hosts=[guest.name])
    session.report = Reporter(Recorder())
    inventory = session.loaded.inventory
    name = session.loaded.model_for(guest.name).served_name
    guest.write("/etc/systemd/system/sglang.service", UNIT.format(model=model, name=name, port=inventory.server.port))
    with session, session.connect(guest.name) as connection:
        yield Served(session, guest, connection)


def packed(folder: Path) -> str:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as archive:
        archive.add(folder, arcname=".")
    return base64.b64encode(whole.getvalue()).decode()


def kinds(result: CanaryResult) -> set[str]:
    return {finding.kind for finding in result.faults}


def states(result: HealthResult) -> dict[str, str]:
    return {found.name: found.state for found in result.checks}


def test_a_healthy_server(served: Served) -> None:
    served.start()
    result = served.canary()
    assert (result.verdict, kinds(result)) == ("healthy", set())
    assert len(result.prompts) == 12
    assert result.about.startswith("lab stand-in for SGLang, SGLang 0.5.23, KV cache ")
    assert result.settings["decode_backend"] == "flashinfer_sparse_mla"
    before = served.connection.exchanges
    found = served.health()
    assert served.connection.exchanges - before <= 2
    said = states(found)
    assert (said["unit"], said["port"], said["http"], said["completion"], said["queue"]) == ("ok",) * 5
    assert said["gpus"] == "fail"  # no driver on this guest
    assert found.seconds < 10


def test_nan_is_proven_by_one_greedy_question_and_the_server_lives(served: Served) -> None:
    served.start(fail="nan")
    pid = served.guest.run("systemctl show -p MainPID --value sglang").stdout
    result = served.canary()
    assert (result.verdict, result.requests, result.page) == ("nan", 1, "nan-output")
    assert served.guest.run("systemctl show -p MainPID --value sglang").stdout == pid
    assert states(served.health())["completion"] == "fail"


def test_a_server_that_dies_of_nan_under_the_burst_is_told_by_its_journal(served: Served) -> None:
    served.start(fail="nan_busy", detail=3)
    result = served.canary()
    assert result.verdict == "nan"
    assert {"dropped", "restarted", "journal-nan"} <= kinds(result)
    unit = next(found for found in served.health().checks if found.name == "unit")
    assert (unit.state, unit.page) == ("fail", "nan-output")


def test_a_stopped_server_is_dead_and_health_says_who_did_it(served: Served) -> None:
    served.start()
    served.guest.run("systemctl stop sglang")
    assert served.canary().verdict == "dead"
    said = states(served.health())
    assert (said["unit"], said["port"], said["completion"]) == ("fail",) * 3


def test_the_installed_canary_runs_by_itself_and_writes_metrics(served: Served) -> None:
    served.start()
    server = served.session.loaded.inventory.server
    model = served.session.loaded.model_for(served.guest.name)
    options: dict[str, Any] = {"every": "1h", "battery": "quick"}
    assert install.install(served.connection, server, model, check=True, **options)
    assert install.install(served.connection, server, model, check=False, **options)
    assert not install.install(served.connection, server, model, check=True, **options)
    served.guest.run(f"systemctl start {install.SERVICE}")
    text = served.guest.run(f"cat {install.TEXTFILE}").stdout
    assert 'runbooks_canary_verdict{verdict="healthy"} 1' in text
    served.start(fail="nan")
    served.guest.run(f"systemctl start {install.SERVICE}")  # a verdict is no failure of the unit
    text = served.guest.run(f"cat {install.TEXTFILE}").stdout
    assert 'runbooks_canary_verdict{verdict="nan"} 1' in text
    assert 'runbooks_canary_runs_total{verdict="healthy"} 1' in text
    job = f"{paths.JOBS}/bench-0123456789ab"
    held = f"mkdir -p {job} && exec 9>>{job}/lock && flock 9 && systemctl start {install.SERVICE}"
    served.guest.run(held)  # a benchmark is at work: this turn is left out, which is no failure
    assert served.guest.run(f"cat {install.TEXTFILE}").stdout == text
    shown = f"systemctl show -p Result,ActiveState {install.SERVICE}; rm -r {job}; systemctl start {install.SERVICE}"
    assert "ActiveState=inactive" in served.guest.run(shown).stdout
    assert 'runbooks_canary_runs_total{verdict="nan"} 2' in served.guest.run(f"cat {install.TEXTFILE}").stdout
    assert install.uninstall(served.connection, check=True)
    assert install.uninstall(served.connection, check=False)
    assert not install.uninstall(served.connection, check=True)
    left = f"systemctl list-timers --all --no-legend {install.TIMER}; ls {install.TEXTFILE} {install.STATE} 2>/dev/null"
    assert not served.guest.run(left, check=False).stdout


def test_drift_since_the_deploy_is_told_until_it_is_accepted(served: Served) -> None:
    served.guest.run("mkdir -p /opt/runbooks/releases/1 && ln -sfn releases/1 /opt/runbooks/current")
    served.start()
    assert served.canary().verdict == "healthy"
    served.start(answers={"2.2": "Four is 4", "capital of France": "Paris"})
    result = served.canary()
    assert (result.verdict, kinds(result)) == ("degraded", {"drift"})
    assert result.causes[0].name == "no longer what was deployed"
    accepted = served.canary(accept=True)
    assert (accepted.verdict, accepted.accepted) == ("healthy", True)
    assert served.canary().verdict == "healthy"


def test_another_program_on_the_port_is_no_sick_server(served: Served) -> None:
    port = served.session.loaded.inventory.server.port
    served.guest.run(f"systemctl stop sglang; systemd-run -q --unit other python3 -m http.server {port}")
    try:
        result = served.canary()
        assert (result.verdict, kinds(result)) == ("dead", {"foreign"})
        completion = next(found for found in served.health().checks if found.name == "completion")
        assert "not an OpenAI-compatible server" in completion.detail
    finally:
        served.guest.run("systemctl stop other")
