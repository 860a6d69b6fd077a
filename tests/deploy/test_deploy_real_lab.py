"""Deploys of the real SGLang on a guest's CPU: a good one, one that dies, a model of NaN. The good one serves again.

Slow: wheels, environment and models are made once in the lab's cache, and a runtime is built in the guest.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lab import engine
from lab.guest import Guest
from lab.lab import Lab, quiet
from runbooks.deploy import deploy_hosts, rollback_hosts
from runbooks.engine.errors import RunbookError
from runbooks.engine.report import Reporter
from runbooks.inventory import load
from runbooks.session import Session
from tests.deploy.deploy_fake import Silent

pytestmark = [pytest.mark.lab, pytest.mark.slow]

INVOKE = [str(Path(sys.executable).parent / "invoke")]
KEY = "sk-real-0123456789"


class Site:
    def __init__(self, guest: Guest, good: Path, nan: Path) -> None:
        self.guest, self.good, self.nan = guest, good, nan

    def session(self, path: Path) -> Session:
        return Session(load(path), [self.guest.name], Reporter(Silent()), True)

    def sh(self, script: str) -> str:
        return self.guest.run(script, check=False).stdout.strip()

    def provision(self, path: Path, *words: str) -> None:
        command = [*INVOKE, "provision", "--inventory", str(path), "--hosts", self.guest.name, "--plain", "--yes"]
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

    @property
    def serving(self) -> str:
        """The current release and what it answers."""
        words = '"messages": [{"role": "user", "content": "What is 2+2?"}]'
        body = '{"model": "glm-5", "max_tokens": 8, "temperature": 0, ' + words + "}"
        ask = f"curl -s -m 30 -H 'Authorization: Bearer {KEY}' -H 'Content-Type: application/json' -d '{body}'"
        text = self.sh(f"{ask} http://127.0.0.1:30000/v1/chat/completions")
        number = self.sh("readlink /opt/runbooks/current").rpartition("/")[2]
        return f"{number}: {'2+2 equals 4' if '2+2 equals 4' in text else text[:200]}"


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[Site]:
    guest = lab.add(binds=engine.prepare(quiet).binds)
    folder = lab.inventory.parent
    inventory = yaml.safe_load((folder / engine.INVENTORY.name).read_text())
    inventory["flash_attn"]["enabled"] = False
    (folder / "key").write_text(KEY + "\n")
    (folder / "key").chmod(0o600)
    inventory["server"] |= {"api_key": {"file": "key"}, "ready_budget": 240}
    lost = {"extends": "final", "why": "a tokenizer that is not there", "args": {"tokenizer_path": "/srv/models/none"}}
    inventory["profiles"]["lost"] = lost
    good, nan = folder / "real.yaml", folder / "real-nan.yaml"
    good.write_text(yaml.safe_dump(inventory, sort_keys=False))
    nan.write_text(yaml.safe_dump({**inventory, "model": "nan-layer"}, sort_keys=False))
    found = Site(guest, good, nan)
    found.provision(good)
    yield found
    lab.remove(guest)
    for left in (good, nan, folder / "key"):
        left.unlink(missing_ok=True)


def test_a_good_one_is_promoted_and_its_key_is_shown_nowhere(site: Site) -> None:
    assert deploy_hosts(site.session(site.good), "final", full_canary=False) == 0
    assert site.serving == "1: 2+2 equals 4"
    assert site.sh("curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:30000/v1/models") == "401"
    shown = site.sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '; journalctl -u sglang --no-pager")
    assert "server_args" in shown
    assert KEY not in shown


def test_one_that_dies_leaves_the_good_one_serving(site: Site) -> None:
    with pytest.raises(RunbookError, match="release 2 died") as failed:
        deploy_hosts(site.session(site.good), "lost", full_canary=False)
    assert "release 1 (profile final) serves again" in str(failed.value)
    assert site.serving == "1: 2+2 equals 4"


def test_a_model_of_nan_leaves_the_good_one_serving(site: Site) -> None:
    site.provision(site.nan, "--tags", "model")
    with pytest.raises(RunbookError, match=r"the quick canary says (nan|dead)") as failed:
        deploy_hosts(site.session(site.nan), "final", full_canary=False)
    assert "release 1 (profile final) serves again" in str(failed.value)
    assert site.serving == "1: 2+2 equals 4"


def test_a_rollback_to_what_serves_changes_nothing(site: Site) -> None:
    pid = site.sh("systemctl show -p MainPID --value sglang")
    assert rollback_hosts(site.session(site.good), 1) == 0
    assert site.sh("systemctl show -p MainPID --value sglang") == pid
