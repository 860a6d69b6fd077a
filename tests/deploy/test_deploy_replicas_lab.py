"""Three replicas behind SGLang's real gateway, and a client that keeps asking: no request fails, whatever is deployed.

The servers are simulated, the gateway is sglang-router from its own wheel, with a key.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lab import router
from lab.guest import Guest
from lab.lab import Lab, quiet
from runbooks.deploy import deploy_hosts, gateways, rollback_hosts
from runbooks.engine.errors import UsageError
from runbooks.engine.report import Event, Reporter
from runbooks.inventory import load
from runbooks.session import Session
from tests.deploy.asking import Client, ask
from tests.deploy.deploy_fake import Silent

pytestmark = [pytest.mark.lab, pytest.mark.slow]

KEY = "sk-lab-pool-0123456789"
INVOKE = [str(Path(sys.executable).parent / "invoke")]
BAD = {"dsa_prefill_backend": "flashmla_auto", "dsa_decode_backend": "flashmla_kv"}


class Pool:
    def __init__(self, guests: list[Guest], inventory: Path) -> None:
        self.guests, self.inventory = guests, inventory
        self.url = f"http://{guests[0].address}:30080"

    def session(self, *, yes: bool = True) -> tuple[Session, list[Event]]:
        printer = Silent()
        return Session(load(self.inventory), [one.name for one in self.guests], Reporter(printer), yes), printer.events

    def deploy(self, profile: str) -> tuple[int, list[Event]]:
        """Without --yes: a roll-out over replicas needs none, since nobody is cut off."""
        session, events = self.session(yes=False)
        return deploy_hosts(session, profile, full_canary=False), events

    def current(self) -> list[str]:
        return [one.run("readlink /opt/runbooks/current").stdout.strip().rpartition("/")[2] for one in self.guests]

    def workers(self) -> dict[str, bool]:
        """By address, whether the gateway finds it healthy."""
        script = f"curl -s -H 'Authorization: Bearer {KEY}' http://127.0.0.1:30080/workers"
        found = json.loads(self.guests[0].run(script).stdout)["workers"]
        return {one["url"].split("/")[2].partition(":")[0]: one["is_healthy"] for one in found}


@pytest.fixture(scope="module")
def pool(lab: Lab) -> Iterator[Pool]:
    wheels = router.prepare(quiet)
    guests = [lab.add(binds=[(wheels, router.BINDS_AT)]) for _ in range(3)]
    inventory = yaml.safe_load(lab.inventory.read_text())
    names = [guest.name for guest in guests]
    inventory["hosts"] = {name: host for name, host in inventory["hosts"].items() if name in names}
    first = inventory["hosts"][names[0]]
    (lab.inventory.parent / "key").write_text(KEY + "\n")
    (lab.inventory.parent / "key").chmod(0o600)
    inventory["flash_attn"]["enabled"] = False
    inventory["server"] |= {"host": "0.0.0.0", "ready_budget": 60, "api_key": {"file": "key"}}
    index = {"find_links": [router.BINDS_AT], "only": True}
    inventory["groups"] = {"pool": {"hosts": names, "gateway": {"ssh": first, "host": "0.0.0.0", "index": index}}}
    other = {"extends": "final", "why": "another good one", "args": {"mem_fraction_static": 0.85}}
    bad = {"extends": "final", "why": "the lab's server fails under it", "args": BAD}
    bad["expect"] = {"dsa_prefill_backend": "flashmla_auto", "dsa_decode_backend": "flashmla_kv"}
    inventory["profiles"] |= {"other": other, "bad": bad}
    path = lab.inventory.parent / "pool.yaml"
    path.write_text(yaml.safe_dump(inventory, sort_keys=False))
    provision = [*INVOKE, "provision", "--inventory", str(path), "--plain", "--yes"]
    done = subprocess.run(provision, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    yield Pool(guests, path)
    for guest in guests:
        lab.remove(guest)
    for left in (path, lab.inventory.parent / "key"):
        left.unlink(missing_ok=True)


def test_the_gateway_is_set_up_before_the_servers_and_again_changes_nothing(pool: Pool) -> None:
    session, events = pool.session()
    assert gateways(session) == 0, [event.text for event in events][-5:]
    assert gateways(pool.session()[0], check=True) == 0
    code, events = pool.deploy("final")
    assert code == 0, [event.text for event in events][-8:]
    assert pool.current() == ["1", "1", "1"]
    assert pool.workers() == {guest.address: True for guest in pool.guests}
    assert ask(pool.url, {"model": "glm-5", "messages": []})[0] == 401
    shown = (
        pool.guests[0].run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '; journalctl -u sglang-gateway --no-pager").stdout
    )
    assert KEY not in shown


def test_a_roll_out_over_three_replicas_fails_no_request(pool: Pool) -> None:
    with Client(pool.url, KEY) as client:
        code, events = pool.deploy("other")
        assert code == 0, [event.text for event in events][-8:]
    assert pool.current() == ["2", "2", "2"]
    assert client.ends["failed"] == 0, client.went_wrong[:3]
    assert client.ends["good"] > 30


def test_a_broken_one_stops_the_roll_out_and_the_others_serve_throughout(pool: Pool) -> None:
    for guest in pool.guests:
        knobs = {"fail": "die_at_start", "fail_when": {"dsa_decode_backend": ["flashmla_kv"]}}
        guest.write("/etc/lab-sglang.json", json.dumps(knobs))
    with Client(pool.url, KEY) as client:
        code, events = pool.deploy("bad")
    assert code == 1
    assert any(f"not touched: {pool.guests[1].name}, {pool.guests[2].name}" in event.text for event in events)
    assert pool.current() == ["2", "2", "2"]
    assert client.ends["failed"] == 0, client.went_wrong[:3]
    assert client.ends["good"] > 10
    assert pool.workers() == {guest.address: True for guest in pool.guests}


def test_a_rollback_of_the_group_fails_no_request(pool: Pool) -> None:
    with Client(pool.url, KEY) as client:
        assert rollback_hosts(pool.session(yes=False)[0], 1) == 0
    assert pool.current() == ["1", "1", "1"]
    assert client.ends["failed"] == 0, client.went_wrong[:3]


def test_the_last_one_that_serves_is_not_taken_down_unasked(pool: Pool) -> None:
    for guest in pool.guests[1:]:
        guest.run("systemctl stop sglang")
    until = time.monotonic() + 90
    while sum(pool.workers().values()) > 1 and time.monotonic() < until:
        time.sleep(2)
    session, _ = pool.session(yes=False)
    session.hosts = session.hosts[:1]
    with pytest.raises(UsageError, match="serves release 1; it goes down"):
        deploy_hosts(session, "other", full_canary=False)
    assert pool.current()[0] == "1"
