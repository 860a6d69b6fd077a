"""The client over real TLS: whom it believes, what it asks again, what it never sends twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lab.proxmox import certificate
from lab.proxmox.server import Fault
from runbooks.engine.errors import RunbookError, Unreachable, UsageError
from runbooks.engine.secret import Secret
from runbooks.inventory.shape import Vm
from runbooks.proxmox.client import ApiError, Client, LostAnswer
from runbooks.proxmox.config import Wanted, creation
from runbooks.proxmox.plan import Create, Download, Map, Start
from runbooks.proxmox.work import IMPORT, TaskFailed, Upid, follow
from tests.proxmox.conftest import Lab

pytestmark = pytest.mark.served

MakeVm = Callable[..., Vm]
MakeWanted = Callable[..., Wanted]
ENTRY = "node=pve,path=0000:01:00.0,id=10de:2bb5,iommugroup=20,subsystem-id=10de:204e"


def created(pve: Lab, client: Client, wanted: Wanted) -> None:
    hands = pve.hands(client, wanted.vm)
    hands.do(Map("", entries=(ENTRY,), new=True))
    hands.do(Download(""))
    hands.do(Create("", settings=tuple(creation(wanted).items())))


# -- whom it believes ------------------------------------------------------------------------------------------------


def test_a_pinned_fingerprint_is_enough(pve: Lab) -> None:
    with pve.client() as client:
        assert client.get("/version")["version"] == "9.1.2"
    with pve.client(fingerprint=pve.fingerprint.replace(":", "").lower()) as client:
        assert client.get("/version")["repoid"] == "lab stand-in"


def test_a_ca_is_enough(pve: Lab) -> None:
    with pve.client(fingerprint=None, ca=pve.folder / "pve-api.pem") as client:
        assert client.get("/version")


@pytest.mark.parametrize("pinned", [None, "AA:" * 31 + "AA"])
def test_an_unknown_certificate_is_refused_and_shown(pve: Lab, pinned: str | None) -> None:
    with pve.client(fingerprint=pinned) as client, pytest.raises(Unreachable) as caught:
        client.get("/version")
    assert "is not trusted; nothing was sent" in str(caught.value)
    assert pve.fingerprint in str(caught.value)
    assert pve.api.calls == []


def test_another_nodes_ca_is_refused(pve: Lab, tmp_path: Path) -> None:
    other, _ = certificate.ensure(tmp_path / "other", "127.0.0.1")
    with pve.client(fingerprint=None, ca=other) as client, pytest.raises(Unreachable, match="not trusted"):
        client.get("/version")


def test_a_ca_that_is_not_there(pve: Lab, tmp_path: Path) -> None:
    with (
        pve.client(fingerprint=None, ca=tmp_path / "nope.pem") as client,
        pytest.raises(UsageError, match="is not there"),
    ):
        client.get("/version")


def test_what_never_answered_is_given_up_soon(pve: Lab) -> None:
    """Mostly a wrong address; and a wrong name of the node is no outage."""
    pve.api.faults.append(Fault("GET", "/version", "596", times=10**6))
    with pve.client() as client:
        with pytest.raises(ApiError):
            client.get("/version")
        assert 20 < client.clock.monotonic() < 45
        with pytest.raises(ApiError, match="no node of this name"):
            client.get("/nodes/pv1/status")
        assert client.clock.monotonic() < 45


def test_the_environment_overrides_neither(pve: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """REQUESTS_CA_BUNDLE beats what a session says: so nothing is left to the session."""
    other, _ = certificate.ensure(tmp_path / "other", "127.0.0.1")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(other))
    monkeypatch.setenv("CURL_CA_BUNDLE", str(other))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    with pve.client(fingerprint=None, ca=pve.folder / "pve-api.pem") as client:
        assert client.get("/version")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(pve.folder / "pve-api.pem"))
    with pve.client(fingerprint=None) as client, pytest.raises(Unreachable, match="not trusted"):
        client.get("/version")


# -- who it is -------------------------------------------------------------------------------------------------------


def test_a_ticket_with_its_csrf_token(pve: Lab, make_vm: MakeVm) -> None:
    with pve.root() as client:
        assert client.login.is_root
        pve.hands(client, make_vm()).do(Map("", entries=(ENTRY,), new=True))
        assert client.writes == 1
    assert {user for *_, user in pve.api.calls} == {"root@pam"}


def test_a_token_of_root_is_not_root(pve: Lab) -> None:
    client = pve.client()
    assert not client.login.is_root


def test_a_refused_login_says_so_and_not_the_secret(pve: Lab) -> None:
    wrong = pve.client(user="root@pam", token=None, password=Secret("wrong-secret"))
    with wrong, pytest.raises(RunbookError) as caught:
        wrong.get("/version")
    assert "refused the login of root@pam" in str(caught.value)
    assert "wrong-secret" not in str(caught.value)
    with pve.client(token=Secret("no-such-token")) as client, pytest.raises(ApiError) as refused:
        client.get("/version")
    assert "no-such-token" not in str(refused.value)


def test_a_second_factor_is_told_with_the_way_out(pve: Lab) -> None:
    pve.api.accounts.second_factor.add("root@pam")
    with pve.root() as client, pytest.raises(RunbookError) as caught:
        client.get("/version")
    assert "root@pam has a second factor, which a tool cannot answer" in str(caught.value)
    assert "an API token" in str(caught.value)
    assert pve.api.calls == []


# -- what it says ----------------------------------------------------------------------------------------------------


def test_errors_and_reason_are_both_shown(pve: Lab, make_vm: MakeVm) -> None:
    with pve.client() as client, pytest.raises(ApiError) as caught:
        client.write("POST", "/nodes/pve/qemu", {"vmid": "129", "hostpci0": "mapping=rtx,pcie=2", "bios": "uefi"})
    said = str(caught.value)
    assert "Parameter verification failed." in said
    assert "hostpci0.pcie: value does not match the regex pattern" in said
    assert "bios: type check failed" in said
    assert caught.value.status == 400


# -- what it asks again, and what never ------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["595", "596", "599", "drop"])
def test_a_read_is_asked_again(pve: Lab, what: str) -> None:
    pve.api.faults.append(Fault("GET", "/version", what, times=3))
    with pve.client() as client:
        assert client.get("/version")
        assert client.reads == 1
    assert pve.api.faults[0].times == 0


def test_a_read_is_not_asked_for_ever(pve: Lab) -> None:
    pve.api.faults.append(Fault("GET", "/version", "596", times=10**6))
    with pve.client() as client, pytest.raises(ApiError, match="proxy gave up waiting"):
        client.get("/version")


@pytest.mark.parametrize("what", ["drop", "596", "599"])
@pytest.mark.parametrize("after", [False, True])
def test_a_lost_answer_creates_nothing_twice(pve: Lab, make_wanted: MakeWanted, what: str, after: bool) -> None:
    """Whether the POST arrived or not: one VM, one create task, one start task."""
    pve.api.faults += [Fault("POST", "/nodes/pve/qemu$", what, after), Fault("POST", "status/start", what, after)]
    wanted = make_wanted()
    with pve.client() as client:
        created(pve, client, wanted)
        pve.hands(client, wanted.vm).do(Start(""))
    assert list(pve.pve.vms) == [129]
    assert [task.kind for task in pve.pve.tasks] == ["qmstart", "qmcreate", "download"]
    assert pve.machines.starts == 1


@pytest.mark.parametrize("what", ["drop", "596"])
def test_a_lost_answer_of_a_mapping_is_written_once_more(pve: Lab, make_vm: MakeVm, what: str) -> None:
    for after in (False, True):
        pve.api.pve.mappings.clear()
        pve.api.faults = [Fault("POST", "/cluster/mapping/pci", what, after)]
        with pve.client() as client:
            pve.hands(client, make_vm()).do(Map("", entries=(ENTRY,), new=True))
        assert pve.pve.mappings == {"rtxpro6000": [ENTRY]}


def test_a_failing_poll_is_no_failure_of_the_task(pve: Lab, make_wanted: MakeWanted) -> None:
    pve.machines.slow = 0.5
    wanted = make_wanted()
    with pve.client() as client:
        created(pve, client, wanted)
        pve.api.faults += [Fault("GET", "/tasks/.*/status", what, times=2) for what in ("599", "drop", "596")]
        pve.hands(client, wanted.vm).do(Start(""))
    assert pve.machines.on == {129}


def test_a_restart_of_the_api_in_the_middle_of_a_task(pve: Lab, make_wanted: MakeWanted) -> None:
    pve.machines.slow = 1.0
    wanted = make_wanted()
    with pve.client() as client:
        created(pve, client, wanted)
        upid = Upid(client.write("POST", "/nodes/pve/qemu/129/status/start"))
        pve.restart(0.3)
        done = follow(client, upid, what="start", limit=600, tell=lambda _line: None)
    assert done.warnings == ()
    assert pve.machines.starts == 1


def test_a_write_waits_for_an_api_that_restarts(pve: Lab, make_vm: MakeVm) -> None:
    """A refused connection has sent nothing: it is safe to try again."""
    with pve.client() as client:
        client.get("/version")  # an address that has answered once is waited for longer
        pve.restart(0.4)
        pve.hands(client, make_vm()).do(Map("", entries=(ENTRY,), new=True))
    assert len([call for call in pve.api.calls if call[0] == "POST"]) == 1


def test_nothing_is_repeated_that_may_have_arrived(pve: Lab) -> None:
    pve.api.faults.append(Fault("DELETE", "/nodes/pve/qemu/129", "drop"))
    with pve.client() as client, pytest.raises(LostAnswer, match="was lost"):
        client.write("DELETE", "/nodes/pve/qemu/129")


# -- tasks -----------------------------------------------------------------------------------------------------------


def test_warnings_are_a_success_and_shown(pve: Lab, make_wanted: MakeWanted) -> None:
    """community.proxmox #96 took `WARNINGS: 1` for a task that never ends."""
    line = "WARN: failed to reset PCI device '0000:01:00.0', but trying to continue as not all devices need a reset"
    pve.pve.start_warnings = [line]
    wanted, said = make_wanted(), list[str]()
    with pve.client() as client:
        created(pve, client, wanted)
        pve.hands(client, wanted.vm, said).do(Start(""))
    assert said == [f"start of VM 129: {line}"]
    assert pve.machines.on == {129}


def test_a_busy_lock_is_waited_for(pve: Lab, make_wanted: MakeWanted) -> None:
    pve.pve.lock_failures = 2
    wanted = make_wanted()
    with pve.client() as client:
        created(pve, client, wanted)
        pve.hands(client, wanted.vm).do(Start(""))
    assert pve.machines.starts == 1


def test_a_failed_start_is_not_tried_again(pve: Lab, make_wanted: MakeWanted) -> None:
    pve.pve.start_failure = "start failed: QEMU exited with code 1"
    wanted = make_wanted()
    with pve.client() as client:
        created(pve, client, wanted)
        with pytest.raises(TaskFailed, match="QEMU exited with code 1"):
            pve.hands(client, wanted.vm).do(Start(""))
    assert [task.kind for task in pve.pve.tasks].count("qmstart") == 1


def test_a_task_that_takes_too_long_goes_on_and_is_not_lost(pve: Lab, make_wanted: MakeWanted) -> None:
    """Small fixed time-outs gave up on imports that went well (community.proxmox #67, #55, #233)."""
    pve.machines.slow = 0.6
    wanted = make_wanted()
    with pve.client() as client:
        created(pve, client, wanted)
        upid = Upid(client.write("POST", "/nodes/pve/qemu/129/status/start"))
        with pytest.raises(RunbookError) as caught:
            follow(client, upid, what="start of VM 129", limit=1.0, tell=lambda _line: None)
        assert "takes longer than 1 s; it goes on by itself on the node" in str(caught.value)
        assert "the same command again" in str(caught.value)
        follow(client, upid, what="start of VM 129", limit=IMPORT, tell=lambda _line: None)
    assert pve.machines.starts == 1


def test_no_start_timeout_is_ever_sent(pve: Lab, make_wanted: MakeWanted) -> None:
    """A smaller one than PVE's own ends the start: `got timeout` (bpg #935)."""
    wanted = make_wanted()
    with pve.client() as client:
        created(pve, client, wanted)
        pve.hands(client, wanted.vm).do(Start(""))
    (start,) = [parameters for method, path, parameters, _ in pve.api.calls if path.endswith("status/start")]
    assert start == {}


def test_a_shutdown_never_forces(pve: Lab, make_wanted: MakeWanted) -> None:
    wanted = make_wanted()
    with pve.client() as client:
        created(pve, client, wanted)
        hands = pve.hands(client, wanted.vm)
        hands.do(Start(""))
        hands.shutdown()
    (call,) = [call for call in pve.api.calls if "status/shutdown" in call[1]]
    assert "forceStop" not in call[2]
    assert not any(path.endswith("status/stop") for _, path, _, _ in pve.api.calls)


def test_a_wrong_checksum_stops_at_the_download(pve: Lab, make_wanted: MakeWanted) -> None:
    wanted = make_wanted()
    pve.machines.fetch = lambda url: b"something else"  # type: ignore[method-assign]
    with pve.client() as client, pytest.raises(TaskFailed, match="checksum mismatch"):
        created(pve, client, wanted)
    assert pve.pve.vms == {}


@pytest.mark.parametrize("pve", ["8.4.5"], indirect=True)
def test_an_older_node_takes_the_same_calls(pve: Lab, make_wanted: MakeWanted) -> None:
    wanted = make_wanted("8.4.5")
    with pve.client() as client:
        created(pve, client, wanted)
        pve.hands(client, wanted.vm).do(Start(""))
    assert pve.machines.on == {129}
