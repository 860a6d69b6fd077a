"""Deploys of the real SGLang on a guest's CPU, of two versions: a good one, one that dies, a flag that it does not
take, a model of NaN, a crash while it serves. The good one serves again.

Slow: wheels and models are made once in the lab's cache, and a runtime is built in the guest.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from lab.lab import Lab
from runbooks.deploy import deploy_hosts, gate, rollback_hosts
from runbooks.engine.errors import CheckFailed, RunbookError
from runbooks.engine.secret import Secret
from tests.deploy.asking import Client
from tests.deploy.real import KEY, Site, serving

pytestmark = [pytest.mark.lab, pytest.mark.slow]


@pytest.fixture(scope="module", params=["0.5.23", "0.5.9"])
def site(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Site]:
    with serving(lab, request.param) as made:
        yield made


def _client(site: Site) -> Client:
    return Client(site.url, KEY, threads=1)


def test_a_good_one_is_promoted_and_its_key_is_shown_nowhere(site: Site) -> None:
    session, events = site.session()
    assert deploy_hosts(session, "final", full_canary=False) == 0
    assert site.current == ["1"]
    assert site.sh("curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:30000/v1/models") == "401"
    shown = site.sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '; journalctl -u sglang --no-pager")
    assert "server_args" in shown
    assert KEY not in shown + repr(events)


def test_our_copy_of_what_it_says_of_itself_holds_no_key(site: Site) -> None:
    """SGLang shows its key in /server_info, to whoever asks with it; 0.5.9 does not answer that on a CPU."""
    with site.session()[0].connect(site.guest.name) as conn:
        told = gate.ask(conn, gate.Endpoint("127.0.0.1", 30000, "glm-5", Secret(KEY)), "info")
    assert KEY not in json.dumps(told)
    if told["status"] == 200:
        assert told["info"]["model_path"]


def test_a_flag_that_it_does_not_take_is_found_before_anything_is_touched(site: Site) -> None:
    with _client(site) as client:
        with pytest.raises(CheckFailed, match="does not take this command line") as failed:
            deploy_hosts(site.session()[0], "unread", full_canary=False)
        assert client.all_good_from_now(), client.went_wrong[-3:]
    assert "--forward-hooks" in str(failed.value)
    assert client.ends["failed"] == 0


def test_one_that_dies_leaves_the_good_one_serving(site: Site) -> None:
    with _client(site) as client:
        with pytest.raises(RunbookError, match="release 2 died") as failed:
            deploy_hosts(site.session()[0], "lost", full_canary=False)
        assert client.all_good_from_now(), client.went_wrong[-3:]
    assert "release 1 (profile final) serves again" in str(failed.value)
    assert site.current == ["1"]


def test_a_model_of_nan_leaves_the_good_one_serving(site: Site) -> None:
    site.provision(site.nan, "--tags", "model")
    with _client(site) as client:
        with pytest.raises(RunbookError, match=r"the gate canary says (nan|dead)") as failed:
            deploy_hosts(site.session(site.nan)[0], "final", full_canary=False)
        assert client.all_good_from_now(), client.went_wrong[-3:]
    assert "release 1 (profile final) serves again" in str(failed.value)
    assert site.current == ["1"]


def test_a_crash_while_it_serves_is_mended_by_its_unit(site: Site) -> None:
    """The scheduler is killed, as the OOM killer does it; SGLang takes itself down, and systemd starts it again."""
    before = site.sh("systemctl show -p NRestarts --value sglang")
    site.sh("kill -KILL $(pgrep -f sglang::scheduler | head -n 1)")
    until = time.monotonic() + 240
    with _client(site) as client:
        while not client.all_good_from_now() and time.monotonic() < until:
            time.sleep(1)
        assert client.all_good_from_now(), client.tail
    assert int(site.sh("systemctl show -p NRestarts --value sglang")) == int(before) + 1


def test_a_rollback_brings_back_flags_and_runs_the_software_of_the_record(site: Site) -> None:
    """The process that serves is the interpreter of the release's record, and holds just the packages that it names."""
    assert deploy_hosts(site.session()[0], "other", full_canary=False) == 0
    assert site.current != ["1"]
    assert rollback_hosts(site.session()[0], 1) == 0
    assert site.current == ["1"]
    record = json.loads(site.sh("cat /opt/runbooks/releases/1/software.json"))
    pid = site.sh("systemctl show -p MainPID --value sglang")
    assert site.sh("systemctl show -p Environment --value sglang").startswith("RUNBOOKS_RELEASE=1:")
    runtime = record["interpreter"].removesuffix("/venv/bin/python")
    libraries = site.sh(f"grep -o '/opt/runbooks/runtimes/[^/]*' /proc/{pid}/maps | sort -u").split()
    assert libraries == [runtime]
    assert (
        site.sh("grep -o '/opt/runbooks/runtimes/[^/]*/venv' /opt/runbooks/current/sglang.service") == f"{runtime}/venv"
    )
    freeze = json.loads(site.sh(f"{record['interpreter']} -m pip list --format=json 2>/dev/null"))
    assert {one["name"]: one["version"] for one in freeze} == record["packages"]


def test_a_rollback_to_what_serves_changes_nothing(site: Site) -> None:
    pid = site.sh("systemctl show -p MainPID --value sglang")
    assert rollback_hosts(site.session()[0], 1) == 0
    assert site.sh("systemctl show -p MainPID --value sglang") == pid
