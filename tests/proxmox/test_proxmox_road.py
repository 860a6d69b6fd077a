"""The whole road of a VM through the API: made once, then left alone; each call as PVE documents it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lab.proxmox.server import Fault
from runbooks.engine.errors import CheckFailed, RunbookError
from runbooks.proxmox.client import ApiError, Client
from runbooks.proxmox.config import Wanted
from runbooks.proxmox.plan import Act, Configure, PowerCycle, plan
from runbooks.proxmox.seen import look
from tests.proxmox.apidoc import ApiDoc, apidoc, needs_apidoc
from tests.proxmox.conftest import Lab

pytestmark = pytest.mark.served

__all__ = ["apidoc"]

MakeWanted = Callable[..., Wanted]
READS = 12  # of a run that finds everything as it should be


def walk(pve: Lab, client: Client, wanted: Wanted) -> list[Act]:
    """Look, plan, do; what was done."""
    seen = look(client, wanted.vm, wanted.node, "pve")
    acts = plan(wanted, seen, is_root=client.login.is_root, has_shell=False)
    hands = pve.hands(client, wanted.vm)
    for act in acts:
        if isinstance(act, PowerCycle):
            hands.shutdown()
            hands.start()
        else:
            hands.do(act)
    return acts


@pytest.mark.parametrize("pve", ["8.4.5", "9.0.10", "9.2.11"], indirect=True)
@pytest.mark.parametrize("root", [False, True])
def test_made_once_and_then_left_alone(pve: Lab, make_wanted: MakeWanted, root: bool) -> None:
    wanted = make_wanted(pve.pve.version, hugepages=root, clique=root)
    with pve.root() if root else pve.client() as client:
        assert len(walk(pve, client, wanted)) == 5
    pve.api.calls.clear()
    with pve.root() if root else pve.client() as client:
        assert walk(pve, client, wanted) == []
        assert (client.writes, client.reads) == (0, 6)
        assert client.reads <= READS
    assert pve.written() == []


def test_a_change_is_written_once_and_cycled_once(pve: Lab, make_wanted: MakeWanted) -> None:
    with pve.client() as client:
        walk(pve, client, make_wanted())
        pve.api.calls.clear()
        changed = walk(pve, client, make_wanted(memory_gib=512))
        assert [type(act) for act in changed] == [Configure, PowerCycle]
        config = next(
            parameters for method, path, parameters, _ in pve.api.calls if path.endswith("/config") and method == "POST"
        )
        assert set(config) == {"memory", "numa0", "numa1", "digest"}
        assert walk(pve, client, make_wanted(memory_gib=512)) == []
    assert [path.rpartition("/")[2] for _, path in pve.written()] == ["config", "shutdown", "start"]


def test_somebody_elses_change_in_between_is_not_lost(pve: Lab, make_wanted: MakeWanted) -> None:
    with pve.client() as client:
        walk(pve, client, make_wanted())
        hands = pve.hands(client, make_wanted().vm)
        real = client.get

        def get(path: str, /, **query: Any) -> Any:
            answer = real(path, **query)
            if path.endswith("/config"):
                pve.pve.vms[129].config["description"] = "changed by a person"
            return answer

        client.get = get  # type: ignore[method-assign]
        with pytest.raises(ApiError, match="detected modified configuration"):
            hands.do(Configure("", settings=(("balloon", "0"),)))


def test_a_run_that_was_cut_off_goes_on_where_it_was(pve: Lab, make_wanted: MakeWanted) -> None:
    """Cut after the download, after the creation, before the start: each time the rest, and nothing twice."""
    wanted = make_wanted()
    for stop in ("/nodes/pve/qemu$", "resize", "status/start"):
        method = "PUT" if stop == "resize" else "POST"
        pve.api.faults = [Fault(method, stop, "drop", times=10)]
        with pve.client() as client, pytest.raises(RunbookError):
            walk(pve, client, wanted)
    pve.api.faults = []
    with pve.client() as client:
        assert [act.line for act in walk(pve, client, wanted)] == ["start"]
    kinds = [task.kind for task in pve.pve.tasks]
    assert (kinds.count("download"), kinds.count("qmcreate"), kinds.count("resize")) == (1, 1, 1)
    assert pve.machines.starts == 1


@pytest.mark.parametrize("pve", ["8.3.4"], indirect=True)
def test_an_old_node_is_told_at_once(pve: Lab, make_wanted: MakeWanted) -> None:
    """Content `import` is 8.4's (bpg #2076): said before anything is written."""
    with pve.client() as client, pytest.raises(RunbookError, match=r"8\.3 is too old"):
        walk(pve, client, make_wanted())
    assert pve.written() == []


def test_a_vm_under_another_name_is_left_alone(pve: Lab, make_wanted: MakeWanted) -> None:
    with pve.client() as client:
        walk(pve, client, make_wanted())
        pve.pve.vms[129].config["name"] = "database"
        pve.api.calls.clear()
        with pytest.raises(CheckFailed, match="called 'database'"):
            walk(pve, client, make_wanted())
    assert pve.written() == []


def test_without_the_right_to_look_at_ha(pve: Lab, make_wanted: MakeWanted) -> None:
    with pve.client() as client:
        walk(pve, client, make_wanted())
        pve.pve.ha = ["vm:129"]
        with pytest.raises(CheckFailed, match="high availability"):
            walk(pve, client, make_wanted())


@needs_apidoc
@pytest.mark.parametrize("pve", ["8.4.5", "9.2.11"], indirect=True)
def test_each_call_is_as_documented(pve: Lab, make_wanted: MakeWanted, apidoc: ApiDoc) -> None:
    """Everything that is ever sent, with its sub-keys: nothing unknown, nothing missing."""
    from runbooks.provision import contact

    version = pve.pve.version
    with pve.root() as client:
        walk(pve, client, make_wanted(version, hugepages=True, affinity="0-3", clique=True))
        walk(pve, client, make_wanted(version, memory_gib=512))
        pve.pve.cards = [card.replace("0000:", "0001:") for card in pve.pve.cards]
        walk(pve, client, make_wanted(version, memory_gib=512, disk_gib=2000, protection=False))
        assert contact._by_agent(client, make_wanted().vm, "pve") == "ssh-ed25519 " + "A" * 68
        hands = pve.hands(client, make_wanted().vm)
        hands.shutdown()
        hands.destroy()
        client.get("/access/permissions")
    assert pve.pve.vms == {}
    assert len({(method, path) for method, path, *_ in pve.api.calls}) > 20
    wrong = [f for method, path, parameters, _ in pve.api.calls for f in apidoc.faults(method, path, parameters)]
    assert wrong == []
