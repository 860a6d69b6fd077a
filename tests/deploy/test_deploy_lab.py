"""Deploys on a real host, each kind of failure with it: after every one of them the release before serves again.

One guest, provisioned once, for the tests of this file in their order.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lab.guest import Guest
from lab.lab import Lab
from runbooks.deploy import deploy_hosts, list_releases, rollback_hosts
from runbooks.engine.errors import CheckFailed, RunbookError, UsageError
from runbooks.engine.report import Reporter
from runbooks.inventory import load
from runbooks.session import Session
from tests.deploy.deploy_fake import Silent
from tests.deploy.site import KEY, ONLY_BAD, Site, provisioned

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def site(lab: Lab, guest: Guest) -> Iterator[Site]:
    yield from provisioned(lab, guest)


def test_a_first_one_that_dies_is_stopped_with_its_cause(site: Site) -> None:
    site.knobs(fail="die_at_start", **ONLY_BAD)
    with pytest.raises(RunbookError, match="release 1 died after") as failed:
        site.deploy("bad")
    assert "the server is stopped" in str(failed.value)
    assert site.sh("systemctl is-active sglang") in ("failed", "inactive")
    assert site.verdict("1") == "failed"


def test_a_good_one_is_promoted_and_its_hardening_is_in_effect(site: Site) -> None:
    code, events = site.deploy("final")
    assert code == 0
    assert (site.current, site.verdict("2"), site.completion()) == ("2", "promoted", "200")
    assert any(event.kind == "table" and event.text == "what runs" for event in events)
    status = site.sh("cat /proc/$(systemctl show -p MainPID --value sglang)/status")
    fields = dict(line.partition(":\t")[::2] for line in status.splitlines())
    assert (fields["NoNewPrivs"], fields["Seccomp"], int(fields["CapBnd"], 16)) == ("1", "2", 0)
    assert site.sh("systemctl is-enabled sglang") == "enabled"
    assert site.sh("systemctl show -p FragmentPath --value sglang") == "/etc/systemd/system/sglang.service"


def test_again_changes_nothing(site: Site) -> None:
    pid = site.sh("systemctl show -p MainPID --value sglang")
    code, events = site.deploy("final")
    assert code == 0
    assert events[-1].data["state"] == "unchanged"
    assert site.sh("systemctl show -p MainPID --value sglang") == pid
    session = Session(load(site.inventory), [site.guest.name], Reporter(Silent()), False)
    assert deploy_hosts(session, "other", check=True) == 3
    assert site.current == "2"


def test_nobody_to_ask_means_nothing_is_touched(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", open(os.devnull))  # noqa: PTH123, SIM115  (not a terminal)
    with pytest.raises(UsageError, match=r"serves release 2; it goes down for .* 0 running"):
        site.deploy("other", yes=False)
    assert site.current == "2"


@pytest.mark.parametrize(
    ("profile", "knobs", "part"),
    [
        ("bad", {"fail": "nan", **ONLY_BAD}, "the gate canary says nan"),
        pytest.param("bad", {"fail": "garbage", **ONLY_BAD}, "the gate canary says", marks=pytest.mark.slow),
        ("bad", {"fail": "die_at_start", **ONLY_BAD}, "died after"),
        ("bad", {"fail": "hang_at_start", **ONLY_BAD}, "did not answer within 20 s"),
        ("lies", {}, "other settings than the profile expects"),
    ],
    ids=["nan", "garbage", "dies", "never healthy", "wrong backend"],
)
def test_a_broken_one_leaves_the_old_one_serving(site: Site, profile: str, knobs: dict[str, Any], part: str) -> None:
    site.knobs(**knobs)
    with site.client() as client:
        with pytest.raises(RunbookError, match=part) as failed:
            site.deploy(profile)
        assert client.all_good_from_now(), f"{failed.value} {client.tail}"
    assert "release 2 (profile final) serves again" in str(failed.value)
    assert failed.value.exit_code == 1
    assert (site.current, site.completion()) == ("2", "200")
    saved = next(line for line in failed.value.details if "/var/lib/runbooks/diagnosis/" in line).split()[-1]
    assert site.sh(f"stat -c %a {saved}; cd {saved}; echo *") == (
        "700\njournal.txt kernel.txt machine.txt nvidia-smi.txt release.txt unit.txt versions.txt why.txt"
    )
    assert part.split(" 20 s")[0] in site.sh(f"cat {saved}/why.txt")
    assert "RTX PRO 6000" in site.sh(f"cat {saved}/nvidia-smi.txt")
    assert f"profile {profile}" in site.sh(f"cat {saved}/journal.txt {saved}/release.txt")


@pytest.mark.slow
def test_what_only_the_full_canary_finds_brings_the_old_one_back(site: Site) -> None:
    """NaN above 68 streams: the gate's burst of 64 passes, and the release was promoted before."""
    site.knobs(fail="nan_busy", detail=68, **ONLY_BAD)
    with pytest.raises(RunbookError, match="the full canary says nan") as failed:
        site.deploy("bad-busy", full=True)
    assert "release 2 (profile final) serves again" in str(failed.value)
    assert (site.current, site.completion()) == ("2", "200")


def test_a_taken_port_is_found_before_anything_is_touched(site: Site) -> None:
    """A first deploy's failure: here the server has been stopped by hand, and something else listens."""
    site.sh("systemctl stop sglang; systemd-run --unit=thief python3 -m http.server 30000 --bind 127.0.0.1; sleep 1")
    try:
        with pytest.raises(CheckFailed, match="port 30000 is taken") as failed:
            site.deploy("other")
        assert "python3 -m http.server" in str(failed.value)
        assert site.current == "2"
    finally:
        site.sh("systemctl stop thief; systemctl start sglang")


def test_a_stopped_one_is_started_again_without_a_new_release(site: Site) -> None:
    code, _ = site.deploy("final")
    assert (code, site.current, site.completion()) == (0, "2", "200")


def test_a_key_is_asked_for_and_shown_nowhere(site: Site) -> None:
    site.knobs()
    code, events = site.deploy("final", keyed=True)
    assert (code, site.completion()) == (0, "200")
    assert KEY not in repr(events)
    lines = "for f in /proc/[0-9]*/cmdline; do [ \"$(stat -c %U $f)\" != sglang ] || tr '\\0' ' ' <$f; done"
    shown = site.sh(lines)
    assert "launch.py" in shown
    assert KEY not in shown
    assert site.sh(f"journalctl --no-pager | grep -v sudo | grep -c {KEY} || :") == "0"
    holders = site.sh(f"grep -rl {KEY} /opt/runbooks /var/lib/runbooks /var/log/runbooks /etc/systemd 2>/dev/null || :")
    assert holders == f"/opt/runbooks/releases/{site.current}/api-key"
    assert site.sh(f"stat -c '%a %U' {holders}") == "600 root"


def test_a_rollback_brings_back_software_and_flags(site: Site) -> None:
    session = Session(load(site.inventory), [site.guest.name], Reporter(Silent()), True)
    assert rollback_hosts(session, 2) == 0
    assert site.current == "2"
    words = site.sh("tr '\\0' ' ' </proc/$(systemctl show -p MainPID --value sglang)/cmdline")
    record = json.loads(site.sh("cat /opt/runbooks/releases/2/software.json"))
    assert words.split()[:2] == [record["interpreter"], "/opt/runbooks/releases/2/launch.py"]
    assert "RUNBOOKS_RELEASE=2:" in site.sh("systemctl show -p Environment --value sglang")
    freeze = site.sh(f"{record['interpreter']} -m pip list --format=json 2>/dev/null")
    assert {one["name"]: one["version"] for one in json.loads(freeze)} == record["packages"]
    with pytest.raises(UsageError, match="there is no release 99"):
        rollback_hosts(session, 99)


def test_a_rollback_to_other_software_is_refused(site: Site) -> None:
    site.deploy("other")
    number, runtime = site.current, site.sh("grep -o '/opt/runbooks/runtimes/[0-9a-f]*' /opt/runbooks/current/env")
    folder = f"{runtime.split()[0]}/venv/lib/python3.11/site-packages/torch-9.dist-info"
    site.sh(f"mkdir {folder}; printf 'Metadata-Version: 2.1\\nName: intruder\\nVersion: 9\\n' >{folder}/METADATA")
    try:
        with pytest.raises(CheckFailed, match="release 2 is not what it was: 1 differences"):
            rollback_hosts(site.session()[0], 2)
        assert (site.current, site.completion()) == (number, "200")
    finally:
        site.sh(f"rm -r {folder}")


def test_releases_are_shown_in_full_and_those_that_nothing_needs_are_removed(site: Site) -> None:
    session, events = site.session()
    assert list_releases(session, show=2) == 0
    shown = {event.text: event.data["rows"] for event in events if event.kind == "table"}
    assert ["--dsa-decode-backend flashinfer_sparse_mla"] in shown["command line"]
    assert any(row[0] == "sglang" and row[1] == "0.5.23" for row in shown["software"])
    spare = "/opt/runbooks/runtimes/0123456789ab"
    site.sh(f"mkdir -p {spare}; touch {spare}/built; cp -r /opt/runbooks/releases/1 /opt/runbooks/releases/50")
    site.sh(
        "cd /opt/runbooks/releases; for n in $(seq 51 60); do cp -r 50 $n; done; "
        'for n in $(seq 50 60); do sed -i "s/\\"number\\": 1,/\\"number\\": $n,/" $n/release.json; done'
    )
    kept = site.sh("ls /opt/runbooks/releases; readlink /opt/runbooks/current")
    assert list_releases(site.session()[0], remove=True) == 0
    left = site.sh("ls /opt/runbooks/releases").split()
    assert {"2", site.current, "60", "51"} <= set(left), kept
    assert not {"1", "50"} & set(left)
    assert site.sh(f"ls -d {spare}") == ""
    assert site.completion() == "200"
    site.sh("cd /opt/runbooks/releases && rm -rf 5? 60")


def test_it_serves_again_after_a_reboot(site: Site) -> None:
    current = site.current
    site.guest.reboot()
    until = time.monotonic() + 40
    while time.monotonic() < until:
        with contextlib.suppress(subprocess.SubprocessError, OSError):
            if site.completion() == "200":
                break
        time.sleep(1)
    assert (site.completion(), site.current) == ("200", current)
    code, events = site.deploy("other")
    assert (code, events[-1].data["state"]) == (0, "unchanged")
