"""Two real SGLang on CPUs behind SGLang's real gateway: a roll-out fails no request, and a broken one stops at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab import engine
from lab.lab import Lab
from runbooks.deploy import check_gateways, deploy_hosts, gateways
from tests.deploy.asking import Client
from tests.deploy.real import KEY, Site, serving

pytestmark = [pytest.mark.lab, pytest.mark.slow]


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[Site]:
    with serving(lab, engine.VERSION, count=2) as made:
        yield made


def _client(site: Site) -> Client:
    return Client(f"http://{site.guest.address}:30080", KEY, threads=2)


def test_a_roll_out_fails_no_request(site: Site) -> None:
    session, events = site.session(yes=False)
    assert gateways(session) == 0, [event.text for event in events][-5:]
    assert deploy_hosts(site.session(yes=False)[0], "final", full_canary=False) == 0
    assert check_gateways(site.session()[0]) == 0
    with _client(site) as client:
        session, events = site.session(yes=False)
        assert deploy_hosts(session, "other", full_canary=False) == 0, [event.text for event in events][-8:]
        assert client.all_good_from_now()
    assert site.current == ["2", "2"]
    assert client.ends["failed"] == 0, client.went_wrong[:3]
    assert client.ends["good"] > 30


def test_one_that_dies_stops_the_roll_out_and_fails_no_request(site: Site) -> None:
    with _client(site) as client:
        session, events = site.session(yes=False)
        assert deploy_hosts(session, "lost", full_canary=False) == 1
        assert client.all_good_from_now()
    assert any(event.text == f"not touched: {site.guests[1].name}" for event in events)
    assert site.current == ["2", "2"]
    assert client.ends["failed"] == 0, client.went_wrong[:3]
