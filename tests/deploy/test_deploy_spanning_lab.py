"""One server on two hosts: deployed together, and what one of them loses, both take back. The servers are simulated."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lab.guest import Guest
from lab.lab import Lab
from runbooks.deploy import deploy_hosts, rollback_hosts
from runbooks.engine.errors import RunbookError, UsageError
from runbooks.engine.report import Reporter
from runbooks.inventory import load
from runbooks.session import Session
from tests.deploy.asking import Client, ask
from tests.deploy.deploy_fake import Silent
from tests.deploy.site import INVOKE

pytestmark = [pytest.mark.lab, pytest.mark.slow]


class Pair:
    def __init__(self, guests: list[Guest], inventory: Path) -> None:
        self.guests, self.inventory = guests, inventory
        self.url = f"http://{guests[0].address}:30000"

    def session(self, count: int = 2) -> Session:
        names = [guest.name for guest in self.guests[:count]]
        return Session(load(self.inventory), names, Reporter(Silent()), True)

    def each(self, script: str) -> list[str]:
        return [guest.run(script, check=False).stdout.strip() for guest in self.guests]

    @property
    def current(self) -> list[str]:
        return [path.rpartition("/")[2] for path in self.each("readlink /opt/runbooks/current")]


@pytest.fixture(scope="module")
def pair(lab: Lab) -> Iterator[Pair]:
    guests = [lab.add() for _ in range(2)]
    inventory = yaml.safe_load(lab.inventory.read_text())
    names = [guest.name for guest in guests]
    inventory["hosts"] = {name: host for name, host in inventory["hosts"].items() if name in names}
    inventory["flash_attn"]["enabled"] = False
    inventory["server"] |= {"host": "0.0.0.0", "ready_budget": 90}
    inventory["profiles"]["two"] = {"extends": "final", "why": "one server on two hosts", "args": {"nnodes": 2}}
    other = {"extends": "two", "why": "another", "args": {"mem_fraction_static": 0.85}}
    inventory["profiles"]["two-other"] = other
    path = lab.inventory.parent / "pair.yaml"
    path.write_text(yaml.safe_dump(inventory, sort_keys=False))
    provision = [*INVOKE, "provision", "--inventory", str(path), "--plain", "--yes"]
    done = subprocess.run(provision, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    yield Pair(guests, path)
    for guest in guests:
        lab.remove(guest)
    path.unlink(missing_ok=True)


def test_one_unit_a_host_and_the_first_one_answers(pair: Pair) -> None:
    with pytest.raises(UsageError, match="is one server on 2 hosts, and 1 are chosen"):
        deploy_hosts(pair.session(1), "two")
    assert deploy_hosts(pair.session(), "two", full_canary=False) == 0
    assert pair.current == ["1", "1"]
    ranks = [json.loads(text) for text in pair.each("cat /opt/runbooks/current/argv.json")]
    assert [words[words.index("--node-rank") + 1] for words in ranks] == ["0", "1"]
    assert {words[words.index("--dist-init-addr") + 1] for words in ranks} == {f"{pair.guests[0].address}:20000"}
    assert {words[words.index("--tp-size") + 1] for words in ranks} == {"16"}
    assert ask(pair.url, {"model": "glm-5", "messages": [{"role": "user", "content": "What is 2+2?"}]})[0] == 200
    assert pair.each("systemctl is-active sglang") == ["active", "active"]
    assert deploy_hosts(pair.session(), "two", check=True) == 0


def test_a_death_on_the_second_brings_both_back(pair: Pair) -> None:
    knobs = {"fail": "die_at_start", "fail_when": {"mem_fraction_static": [0.85]}}
    pair.guests[1].write("/etc/lab-sglang.json", json.dumps(knobs))
    with Client(pair.url, threads=2) as client:
        with pytest.raises(RunbookError, match="release 2 died") as failed:
            deploy_hosts(pair.session(), "two-other", full_canary=False)
        assert client.all_good_from_now(), client.went_wrong[-3:]
    assert "release 1 (profile two) serves again" in str(failed.value)
    assert pair.current == ["1", "1"]
    verdicts = pair.each("cat /opt/runbooks/releases/2/release.json")
    assert [json.loads(text)["verdict"] for text in verdicts] == ["failed", "failed"]


def test_a_rollback_takes_both(pair: Pair) -> None:
    pair.guests[1].write("/etc/lab-sglang.json", "{}")
    assert deploy_hosts(pair.session(), "two-other", full_canary=False) == 0
    assert pair.current == ["3", "3"]
    with pytest.raises(UsageError, match="is not chosen"):
        rollback_hosts(pair.session(1), None)
    assert rollback_hosts(pair.session(), None) == 0
    assert pair.current == ["1", "1"]
    assert pair.each("systemctl is-active sglang") == ["active", "active"]
