"""Two who would change what serves at the same moment: a run, and the host that goes back by itself or starts it again.

Whoever comes later waits, looks again, and comes through.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.guest import Guest
from lab.lab import Lab
from runbooks.deploy import guard, releases, rollback_hosts
from runbooks.engine.transport import Connection
from tests.deploy.site import Site, provisioned

pytestmark = [pytest.mark.lab, pytest.mark.slow]


@pytest.fixture(scope="module")
def site(lab: Lab, guest: Guest) -> Iterator[Site]:
    yield from provisioned(lab, guest, budget=90)


@pytest.fixture
def killed(site: Site) -> tuple[str, str]:
    """`final` was promoted, the run that deployed another was killed: their numbers."""
    site.knobs()
    assert site.deploy("final")[0] == 0
    return site.killed_in_the_middle()


def _came_through(site: Site, new: str) -> None:
    """The unconfirmed release was not promoted, one after it was, and nothing of the guard is left."""
    assert int(site.current) > int(new)
    assert (site.verdict(site.current), site.completion()) == ("promoted", "200")
    assert site.sh("ls /etc/systemd/system /opt/runbooks | grep -c runbooks-fallback") == "0"


def test_a_deploy_waits_for_a_host_that_is_going_back(site: Site, killed: tuple[str, str]) -> None:
    """The host is held up in the middle of it: when the run asks for the lock, it looks again, and sees the change."""
    before, new = killed
    site.sh("sed -i 's/^if /sleep 10; if /' /opt/runbooks/runbooks-fallback.sh")
    site.sh("systemctl start --no-block runbooks-fallback.service")
    code, events = site.deploy("other")
    assert code == 0
    assert any(event.text == f"release {before} became current meanwhile" for event in events)
    assert site.verdict(new) == "failed"
    _came_through(site, new)


def test_a_deploy_puts_off_what_a_killed_run_left(site: Site, killed: tuple[str, str]) -> None:
    """Its time would end in the middle of the new run: it begins anew, and the host does nothing."""
    before, new = killed
    site.fallback_after(600, before, new)
    site.sh("sed -i 's/^OnActiveSec=.*/OnActiveSec=20/' /etc/systemd/system/runbooks-fallback.timer")
    site.sh("systemctl daemon-reload && systemctl restart runbooks-fallback.timer && sleep 5")
    with site.session()[0].connect(site.guest.name) as conn:
        left = _left(site)
        guard.settle(conn)
        assert _left(site) > left + 3
    assert site.deploy("other")[0] == 0
    assert site.verdict(new) == "None"
    _came_through(site, new)


def _left(site: Site) -> float:
    """Seconds until the host goes back, by the clock that never jumps."""
    then = site.sh("systemctl show -p NextElapseUSecMonotonic --value runbooks-fallback.timer")
    now = float(site.sh("cut -d' ' -f1 /proc/uptime"))
    units = {"min": 60.0, "s": 1.0, "ms": 0.001, "us": 1e-6, "h": 3600.0, "d": 86400.0, "w": 604800.0}
    total = 0.0
    for word in then.split():
        number = word.rstrip("abcdefghijklmnopqrstuvwxyz")
        total += float(number) * units[word[len(number) :]]
    return total - now


@pytest.mark.parametrize("seconds", [1, 3, 5, 7, 9])
def test_a_deploy_comes_through_whenever_the_time_is_up(site: Site, killed: tuple[str, str], seconds: int) -> None:
    before, new = killed
    site.fallback_after(seconds, before, new)
    assert site.deploy("other")[0] == 0
    _came_through(site, new)


def test_a_deploy_at_once_after_the_host_is_back_comes_through(site: Site, killed: tuple[str, str]) -> None:
    _, new = killed
    site.guest.reboot()
    assert site.deploy("other")[0] == 0
    _came_through(site, new)


def test_a_rollback_comes_through_while_the_host_goes_back(site: Site, killed: tuple[str, str]) -> None:
    before, _ = killed
    site.sh("sed -i 's/^if /sleep 6; if /' /opt/runbooks/runbooks-fallback.sh")
    site.sh("systemctl start --no-block runbooks-fallback.service")
    assert rollback_hosts(site.session()[0], int(before)) == 0
    assert (site.current, site.completion()) == (before, "200")


def test_a_server_that_systemd_starts_again_meanwhile_is_not_taken_for_the_new_one(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash of the old one after the look: systemd brings it back just before the new one is asked for."""
    site.knobs()
    assert site.deploy("final")[0] == 0
    restart = releases.restart

    def crashed(conn: Connection, *, kill: bool = False) -> None:
        conn.ask("systemctl restart sglang")
        restart(conn, kill=kill)

    monkeypatch.setattr(releases, "restart", crashed)
    assert site.deploy("other")[0] == 0
