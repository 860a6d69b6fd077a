"""At three in the morning on a real host: from the alert over the page to a healthy server; and what is watched."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.guest import Guest
from lab.lab import Lab
from runbooks.canary.install import TEXTFILE
from runbooks.engine.artefact import push_zipapp
from runbooks.monitor import rules
from runbooks.watch.glance.cli import LONGEST
from runbooks.watch.hosts import look
from tests.deploy.site import ONLY_BAD, Site, provisioned

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def site(lab: Lab, guest: Guest) -> Iterator[Site]:
    for made in provisioned(lab, guest):
        made.knobs(start_delay=0.2, warmup=0.1)
        made.deploy("final")
        made.deploy("bad")  # healthy until the knobs say otherwise
        yield made


def invoke(site: Site, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "RUNBOOKS_INVENTORY": str(site.inventory)}
    argv = [str(Path(sys.executable).with_name("invoke")), "--search-root", str(Path(__file__).parents[2]), *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, cwd=folder, env=env, timeout=300)


def sick(site: Site, **knobs: object) -> None:
    """The server starts anew and fails under its release, not under the one before it."""
    site.knobs(start_delay=0.2, warmup=0.1, **ONLY_BAD, **knobs)
    site.sh("systemctl restart sglang")
    until = time.monotonic() + 60
    while "30000" not in site.sh("ss -Hltn 'sport = :30000'") and time.monotonic() < until:
        time.sleep(0.3)
    time.sleep(1)


def test_a_look_is_one_exchange_and_a_short_line(site: Site) -> None:
    session, _ = site.session()
    with session, session.connect(site.guest.name) as conn:
        tool = push_zipapp(conn, "runbooks.watch.glance", "cli:main")
        before = conn.exchanges
        seen = look(conn, tool, session.loaded.inventory.server)
        assert conn.exchanges - before == 1
    assert (seen["ready"], seen["run"], len(seen["gpus"])) == (True, 0, 8)
    assert len(json.dumps(seen)) < LONGEST
    assert len(tool) < 100, "all that goes up is its path and three words"


def test_watch_leaves_cleanly(site: Site, tmp_path: Path) -> None:
    done = invoke(site, "watch", "--times", "2", "--every", "1", "--json", folder=tmp_path)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, [event["event"] for event in events]) == (0, ["note", "note"])
    assert events[1]["seen"]["unit"][0] == "active"
    env = {**os.environ, "RUNBOOKS_INVENTORY": str(site.inventory)}
    argv = [str(Path(sys.executable).with_name("invoke")), "watch", "--plain", "--every", "1"]
    root = Path(__file__).parents[2]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=root, env=env)
    assert child.stdout is not None
    assert "serves" in child.stdout.readline()
    child.send_signal(2)
    assert "Traceback" not in child.communicate(timeout=30)[0]
    assert child.returncode == 0


def test_from_the_alert_to_a_healthy_server_in_two_commands(site: Site, tmp_path: Path) -> None:
    assert invoke(site, "canary.install", "--every", "1h", folder=tmp_path).returncode == 0
    sick(site, fail="nan")
    site.sh("systemctl start runbooks-canary.service")
    assert 'runbooks_canary_verdict{verdict="nan"} 1' in site.sh(f"cat {TEXTFILE}")
    (alert,) = [one for one in rules.document(8, "")["groups"][0]["rules"] if one["alert"] == "CanaryNaN"]
    assert alert["expr"] == 'runbooks_canary_verdict{verdict="nan"} == 1'

    typed = alert["annotations"]["description"].replace("{{ $labels.host }}", site.guest.name)
    done = invoke(site, *shlex.split(typed)[1:], "--yes", "--log", "incident.log", folder=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert site.current == "1"
    assert invoke(site, "canary", folder=tmp_path).returncode == 0

    log = (tmp_path / "incident.log").read_text()
    for words in ("$ invoke canary", "whatever /health says", "$ invoke rollback", "agreed: True", "it helped"):
        assert words in log, log[-3000:]
    later = [words for words in ("$ invoke provision", "$ invoke deploy") if words in log]
    assert later == [], "nothing more was tried than the first cure"


def test_a_failed_deploy_can_be_diagnosed_from_what_it_saved(site: Site, tmp_path: Path) -> None:
    site.knobs(fail="die_at_start", detail="memory", **ONLY_BAD)
    assert invoke(site, "deploy", "--profile", "bad", "--quick", "--yes", folder=tmp_path).returncode == 1
    done = invoke(site, "diagnose", "--bundle", "latest", "--json", folder=tmp_path)
    told = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, told["causes"][0]["name"]) == (1, "gpu-memory")
    nowhere = invoke(site, "diagnose", "--bundle", "20200101T000000Z-release-1", folder=tmp_path)
    assert nowhere.returncode == 1
    assert "no bundle" in nowhere.stderr + nowhere.stdout
    assert "there are:" in nowhere.stderr + nowhere.stdout


def test_a_server_that_is_well_again_is_well(site: Site, tmp_path: Path) -> None:
    """After a kill and systemd's own start, which is explained by that kill until it is ready."""
    sick(site)
    site.sh("systemctl kill -s KILL sglang")
    told, until = list[tuple[int, str]](), time.monotonic() + 90
    while (not told or told[-1][1] != "earlier") and time.monotonic() < until:
        done = invoke(site, "diagnose", "--json", folder=tmp_path)
        said = json.loads(done.stdout.splitlines()[-1])
        told.append((done.returncode, said["causes"][0]["name"]))
    assert told[0] == (1, "died")
    assert told[-1] == (0, "earlier"), told
    assert set(told[:-1]) <= {(1, "died"), (1, "scheduler-died")}, told
    assert said["text"].startswith("nothing wrong now; earlier: ")
    assert "9/KILL" in said["text"]
