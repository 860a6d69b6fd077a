"""The gateway's unit and words, and a replica's way out of traffic and back."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from runbooks.deploy import check_gateways
from runbooks.deploy import gateway as gateways
from runbooks.deploy.traffic import Replica, group_of
from runbooks.engine.errors import RunbookError
from runbooks.engine.facts import Facts
from runbooks.engine.secret import Secret
from runbooks.engine.step import Stage
from runbooks.inventory import load
from runbooks.inventory.shape import Gateway, Group, Host, Inventory, Login
from runbooks.session import Session
from runbooks.steps.files import File
from tests.deploy.deploy_fake import FakeHost, silent

SHIPPED = load(Path(__file__).parents[2] / "inventory.yaml")
OPEN = msgspec.structs.replace(SHIPPED.inventory.server, api_key=None)
LOADED = replace(SHIPPED, inventory=msgspec.structs.replace(SHIPPED.inventory, server=OPEN))
BASE = LOADED.inventory
GATEWAY = Gateway(ssh=Login(address="192.0.2.20"), host="0.0.0.0", drain=30)
HOSTS = {name: Host(address=f"192.0.2.1{number}") for number, name in enumerate(("a", "b", "c"))}
POOL: Inventory = msgspec.structs.replace(
    BASE,
    hosts=HOSTS,
    groups={"all": Group(hosts=("a", "b", "c")), "pool": Group(hosts=("a", "b"), gateway=GATEWAY)},
    server=msgspec.structs.replace(BASE.server, host="0.0.0.0"),
)
A, B = "http://192.0.2.10:30000", "http://192.0.2.11:30000"


def _stages(key: Secret | None) -> list[Stage]:
    return gateways.stages(cast(Facts, None), inventory=POOL, name="pool", key=key)


def _files(key: Secret | None) -> dict[str, File]:
    steps = [step for stage in _stages(key) for step in stage.steps]
    return {step.path: step for step in steps if isinstance(step, File)}


def test_a_host_has_the_gateway_of_its_group() -> None:
    assert [group_of(POOL, host) for host in ("a", "b", "c")] == ["pool", "pool", None]


def test_its_words_name_every_server_and_no_key() -> None:
    words = json.loads(str(_files(Secret("sk-gw-123"))["/opt/runbooks/gateway/argv.json"].content))
    assert words[words.index("--worker-urls") + 1 :] == [A, B]
    assert "--prometheus-host=127.0.0.1" in words
    assert not any("key" in word for word in words)


def test_its_key_is_in_a_private_file_and_changes_what_must_run() -> None:
    files, other, none = _files(Secret("sk-gw-123")), _files(Secret("sk-gw-456")), _files(None)
    assert (files["/opt/runbooks/gateway/api-key"].mode, "/opt/runbooks/gateway/api-key" in none) == (0o600, False)
    units = [str(one[f"/etc/systemd/system/{gateways.UNIT}"].content) for one in (files, other, none)]
    assert len(set(units)) == 3
    assert "sk-gw" not in "".join(units)
    assert ["LoadCredential" in unit for unit in units] == [True, True, False]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_takes_its_unit(tmp_path: Path) -> None:
    text = str(_files(Secret("sk-gw-123"))[f"/etc/systemd/system/{gateways.UNIT}"].content)
    runtime = gateways.runtime_of(GATEWAY)
    unit = tmp_path / gateways.UNIT
    unit.write_text(text.replace(f"{runtime}/venv/bin/python", "/usr/bin/true"))
    verify = ["systemd-analyze", "verify", "--recursive-errors=one", "--man=no", str(unit)]
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    score = ["systemd-analyze", "security", "--offline=true", "--threshold=25", "--no-pager", str(unit)]
    done = subprocess.run(score, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-600:]


def _gateway(*healthy: str) -> FakeHost:
    """A gateway that holds these servers, and takes in what is added."""
    held = list(healthy)

    def answer(script: str, stdin: bytes) -> str:
        question = json.loads(stdin)
        if question["ask"] == "remove":
            held.remove(question["worker"])
        if question["ask"] == "add" and question["worker"] not in held:
            held.append(question["worker"])
        return json.dumps({"status": 200, "workers": [{"url": url, "healthy": True} for url in held]})

    return FakeHost([("python3 -c", answer)], name="gateway-pool")


def _replica(host: FakeHost) -> tuple[Replica, Callable[[], list[str]]]:
    report, events = silent()
    replica = Replica(host.conn, GATEWAY, "a", A, None, report, sleep=lambda _seconds: None)
    return replica, lambda: [event.text for event in events if event.kind == "note"]


def test_out_drained_and_in_again() -> None:
    host, left = _gateway(A, B), [3.0, 2.0, 0.0, 1.0, 0.0, 0.0, 0.0, 9.0]
    replica, said = _replica(host)
    seen: list[Any] = []
    assert replica.others() == [B]
    with replica.aside(running=lambda: left.pop(0), serves=lambda: True):
        seen = [one["url"] for one in replica._ask("workers")]
    assert (seen, left) == ([B], [9.0])
    assert replica.others() == [B]
    assert said()[-1] == "the gateway sends it requests"


def test_one_that_does_not_serve_stays_out_and_the_error_goes_on() -> None:
    host = _gateway(A, B)
    replica, said = _replica(host)
    with pytest.raises(RunbookError, match="died"), replica.aside(running=lambda: 0.0, serves=lambda: False):
        raise RunbookError("release 7 died")
    assert [one["url"] for one in replica._ask("workers")] == [B]
    assert "stays out of the gateway" in said()[-1]


def test_requests_that_cannot_be_counted_get_their_time() -> None:
    waited: list[float] = []
    replica, said = _replica(_gateway(A, B))
    replica.sleep = waited.append
    with replica.aside(running=lambda: None, serves=lambda: True):
        assert waited == [30.0]
    assert any("cannot be counted" in text for text in said())


def test_a_gateway_that_does_not_answer_is_told_with_the_next_command() -> None:
    replica, _ = _replica(FakeHost([("python3 -c", '{"status": 0, "error": "ConnectionRefusedError"}')]))
    with pytest.raises(RunbookError, match="the gateway does not answer") as failed:
        replica.others()
    assert str(failed.value.next).startswith("invoke gateway")


@pytest.mark.parametrize(
    ("held", "code", "said"),
    [
        ({A: True, B: True}, 0, "all 2 servers get requests"),
        ({A: True, B: False}, 1, "1 of 2 servers get requests"),
        ({A: True, "http://192.0.2.99:30000": True}, 1, "invoke health --hosts b; invoke gateway"),
        (None, 1, "the gateway does not answer"),
    ],
    ids=["all", "one unhealthy", "one taken out", "down"],
)
def test_health_of_a_gateway_is_read_from_its_workers(
    held: dict[str, bool] | None, code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = [{"url": url, "healthy": well} for url, well in (held or {}).items()]
    answer = {"status": 200, "workers": workers} if held is not None else {"status": 0, "error": "refused"}
    host = FakeHost([("python3 -c", json.dumps(answer)), ("NRestarts", "active\n0\n")], name="gateway-pool")
    report, events = silent()
    session = Session(replace(LOADED, inventory=POOL), ["a"], report)
    monkeypatch.setattr(session, "connect_gateway", lambda _group: nullcontext(host.conn))
    assert check_gateways(session) == code
    assert said in events[-1].text
