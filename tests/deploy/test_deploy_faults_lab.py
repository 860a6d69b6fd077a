"""What happens to the machine in the middle of a deploy: the old release serves again, and a client counts.

Slow: hosts restart, and disks fill.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from lab.guest import Guest
from lab.lab import Lab
from runbooks.engine.errors import RunbookError
from tests.deploy.site import Site, provisioned

pytestmark = [pytest.mark.lab, pytest.mark.slow]

SMALL_DISK = (
    "rm -rf /run/kept && cp -a /opt/runbooks/releases /run/kept && "
    "mount -t tmpfs -o size=256m none /opt/runbooks/releases && cp -a /run/kept/. /opt/runbooks/releases/"
)
FILL = "head -c 512M /dev/zero >/opt/runbooks/releases/.filler"


@pytest.fixture(scope="module")
def site(lab: Lab, guest: Guest) -> Iterator[Site]:
    yield from provisioned(lab, guest, budget=90)


@pytest.fixture(autouse=True)
def _serving(site: Site) -> None:
    """Each begins with `final`, promoted and serving."""
    site.knobs()
    assert site.deploy("final")[0] == 0


def test_a_port_that_is_taken_in_the_middle_is_seen_at_once(site: Site) -> None:
    """The thief waits until the old server lets the port go. The new one says so, and neither serves nor ends."""
    site.knobs(start_delay=3)
    code = (
        "import socket, time\n"
        "while True:\n"
        "    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        "    try: s.bind(('0.0.0.0', 30000)); s.listen(); break\n"
        "    except OSError: s.close(); time.sleep(0.01)\n"
        "time.sleep(9)\n"  # then it is gone: what comes back finds the port free
    )
    site.guest.write("/tmp/thief.py", code)
    site.sh("systemd-run --collect --unit=thief python3 /tmp/thief.py")
    with pytest.raises(RunbookError, match="died after") as failed:
        site.deploy("other")
    assert "address already in use" in str(failed.value)
    site.sh("systemctl stop thief; systemctl restart sglang")
    site.knobs()


def test_a_full_disk_touches_nothing_and_fails_no_request(site: Site) -> None:
    before = site.current
    with site.client() as client:
        site.sh(f"{SMALL_DISK} && {FILL}")
        assert site.sh("df --output=avail /opt/runbooks/releases | tail -n 1") == "0"
        try:
            with pytest.raises(RunbookError, match="no room for what a deploy writes") as failed:
                site.deploy("other")
        finally:
            site.sh("umount /opt/runbooks/releases")
        assert client.all_good_from_now()
    assert "/opt/runbooks/releases: 0 MB free, 200 MB needed" in str(failed.value)
    assert (client.ends["failed"], site.current) == (0, before)


def test_a_disk_that_fills_in_the_middle_leads_back(site: Site) -> None:
    """Nothing can be written down any more, and the old one serves again all the same."""
    before = site.current
    site.knobs(fail="die_at_start", start_delay=4, fail_when={"mem_fraction_static": [0.85]})
    waits = f"until [ -d /opt/runbooks/releases/{site.next} ]; do sleep 0.1; done; {FILL}"
    site.sh(f"{SMALL_DISK}; systemd-run --collect sh -c '{waits}'")
    try:
        with site.client() as client:
            with pytest.raises(RunbookError, match="died after") as failed:
                site.deploy("other")
            assert client.all_good_from_now(), client.went_wrong[-3:]
        assert f"release {before} (profile final) serves again" in str(failed.value)
        assert site.current == before
    finally:
        site.sh("umount /opt/runbooks/releases; systemctl restart sglang")
        site.knobs()


def test_a_host_that_is_restarted_in_the_middle_comes_back_with_the_old_one(site: Site) -> None:
    """The run waits for the host, and goes back."""
    before = site.current
    site.knobs(start_delay=8)

    def reboot() -> None:
        site.until_current_is_not(before)
        site.guest.reboot()

    restart = threading.Thread(target=reboot)
    restart.start()
    with site.client() as client:
        with pytest.raises(RunbookError, match="the host was restarted while release") as failed:
            site.deploy("other")
        restart.join(60)
        assert client.all_good_from_now(), client.went_wrong[-3:]
    assert f"release {before} (profile final) serves again" in str(failed.value)
    assert site.current == before
    site.knobs()


def _is_back(site: Site, before: str, new: str) -> None:
    until = time.monotonic() + 90
    while site.current != before and time.monotonic() < until:
        time.sleep(0.5)
    with site.client() as client:
        while not client.all_good_from_now(5, 15) and time.monotonic() < until:
            time.sleep(0.2)
        assert client.all_good_from_now(), client.went_wrong[-3:]
    assert (site.current, site.verdict(new)) == (before, "failed")
    assert f"back to release {before}" in site.sh("tail -n 1 /var/log/runbooks/audit.jsonl")
    assert site.sh("ls /etc/systemd/system /opt/runbooks | grep -c runbooks-fallback") == "0"
    site.knobs()


def test_a_controller_killed_in_the_middle_and_the_old_one_serves_again(site: Site) -> None:
    """Nobody confirms the new release: when its time is up, the host itself goes back. A second run mends it sooner."""
    before, new = site.killed_in_the_middle()
    site.fallback_after(3, before, new)
    _is_back(site, before, new)
    code, _ = site.deploy("other")
    assert (code, site.verdict(site.current), site.completion()) == (0, "promoted", "200")


def test_a_controller_killed_and_the_host_restarted_and_the_old_one_serves_again(site: Site) -> None:
    before, new = site.killed_in_the_middle()
    site.guest.reboot()
    _is_back(site, before, new)
