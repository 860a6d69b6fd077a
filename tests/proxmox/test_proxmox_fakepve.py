"""The client against somebody else's fake of the API, over TLS: fakepve (AGPL: a tool of the tests, never shipped).

It knows PVE's state machine, tickets, locks and faults, and not what cards are: those are told to the plan beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runbooks.engine.secret import Secret
from runbooks.proxmox.act import Hands
from runbooks.proxmox.client import ApiError, Client, Login
from runbooks.proxmox.config import Wanted
from runbooks.proxmox.plan import Act, Create, Grow, Start, plan
from runbooks.proxmox.properties import MapEntry
from runbooks.proxmox.seen import Seen, look
from tests.proxmox.conftest import QuickClock

pytestmark = pytest.mark.served

MakeWanted = Callable[..., Wanted]
NODE = "pve1"
CARDS = tuple(MapEntry(NODE, f"0000:{bus:02x}:00.0", "10de:2bb5", 20 + bus, "10de:204e") for bus in range(1, 9))


@pytest.fixture
def client(fakepve_url: str, fakepve_cafile: str) -> Iterator[Client]:
    login = Login(api=fakepve_url, user="root@pam", password=Secret("secret"), ca=Path(fakepve_cafile))
    with Client(login, clock=QuickClock()) as client:
        yield client


@pytest.fixture
def wanted(make_wanted: MakeWanted) -> Wanted:
    return make_wanted("9.0.10", storage="local-lvm", hugepages=True, affinity="0-63", clique=True)


def seen(client: Client, wanted: Wanted) -> Seen:
    there = look(client, wanted.vm, wanted.node, NODE)
    storages = {"local": "iso,import", "local-lvm": "images"}
    return replace(there, cards=CARDS, storages=storages, has_image=True, mapping=tuple(map(str, CARDS)))


def walk(client: Client, wanted: Wanted) -> list[Act]:
    hands = Hands(client, NODE, wanted.vm, None, lambda _line: None, lambda _line: None)
    acts = plan(wanted, seen(client, wanted), is_root=True, has_shell=False)
    for act in acts:
        hands.do(act)
    return acts


def sent(fakepve: Any, suffix: str) -> int:
    return sum(method == "POST" and path.endswith(suffix) for method, path, *_ in fakepve.requests)


def test_made_once_and_left_alone(client: Client, wanted: Wanted) -> None:
    assert [type(act) for act in walk(client, wanted)] == [Create, Grow, Start]
    writes = client.writes
    found = [act for act in walk(client, wanted) if not isinstance(act, Grow)]  # its disks are no images
    assert found == []
    assert client.writes - writes <= 1


@pytest.mark.parametrize("status", [595, 596, 599])
@pytest.mark.parametrize("suffix", ["/qemu", "/status/start"])
def test_a_proxy_that_gives_up(fakepve: Any, client: Client, wanted: Wanted, status: int, suffix: str) -> None:
    fakepve.fail("POST", suffix, status=status, message="Connection timed out", times=1)
    walk(client, wanted)
    tasks = [row["type"] for row in client.get(f"/nodes/{NODE}/tasks", vmid=129)]
    assert (tasks.count("qmcreate"), tasks.count("qmstart")) == (1, 1)
    assert sent(fakepve, suffix) == 2


@pytest.mark.parametrize("seed", range(4))
def test_a_network_that_drops_connections(fakepve: Any, client: Client, wanted: Wanted, seed: int) -> None:
    """Three of ten requests are dropped before PVE sees them, whatever they are."""
    fakepve.flaky_network(drop_rate=0.3, seed=seed)
    walk(client, wanted)
    fakepve.flaky_network()
    tasks = [row["type"] for row in client.get(f"/nodes/{NODE}/tasks", vmid=129)]
    assert (tasks.count("qmcreate"), tasks.count("qmstart")) == (1, 1)


def test_a_ticket_that_is_taken_away(fakepve: Any, client: Client) -> None:
    assert client.get("/version")
    fakepve.revoke_tickets()
    assert client.get("/version")
    assert sent(fakepve, "/access/ticket") == 2


def test_its_words_for_what_is_wrong(client: Client) -> None:
    with pytest.raises(ApiError) as caught:
        client.write("POST", f"/nodes/{NODE}/qemu", {"vmid": 129, "bios": "uefi", "numa0": "cpus=0,nonsense=1"})
    said = str(caught.value)
    assert "bios: value 'uefi' does not have a value in the enumeration 'seabios, ovmf'" in said
    assert "numa0: invalid format - " in said
    client.write("POST", f"/nodes/{NODE}/qemu", {"vmid": 130})
    with pytest.raises(ApiError, match="the VM's number is taken"):
        client.write("POST", f"/nodes/{NODE}/qemu", {"vmid": 130})
