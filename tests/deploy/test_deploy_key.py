"""The server's key: made once, brought from a host rather than made again, and no file is written by looking."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from runbooks.deploy.key import ready_key
from runbooks.engine.report import Event, Reporter
from runbooks.engine.secret import Secret
from runbooks.inventory import Loaded, load
from runbooks.inventory.shape import Gateway, Group, Login
from runbooks.session import Session
from tests.deploy.deploy_fake import FakeHost, Silent

SHIPPED = load(Path(__file__).parents[2] / "inventory.yaml")


def _session(
    loaded: Loaded, hosts: dict[str, FakeHost], monkeypatch: pytest.MonkeyPatch
) -> tuple[Session, list[Event]]:
    @contextmanager
    def connect(self: Session, name: str) -> Iterator[object]:
        yield hosts[name].conn

    monkeypatch.setattr(Session, "connect", connect)
    printer = Silent()
    return Session(loaded, list(hosts), Reporter(printer)), printer.events


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    return replace(SHIPPED, path=tmp_path / "my.yaml")


def test_the_first_deploy_makes_it_and_says_where(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    session, events = _session(loaded, {"glm5-a": FakeHost(), "glm5-b": FakeHost()}, monkeypatch)
    assert [session.api_key() for _ in range(3)] == [None] * 3, "and says so once"
    assert not (loaded.folder / "secrets").exists()
    key = ready_key(session)
    assert key is not None
    assert key == session.api_key() == ready_key(session)
    assert (loaded.folder / "secrets/api-key").read_text() == key.reveal() + "\n"
    texts = [event.text for event in events]
    assert texts[1:] == [f"an API key is made: {loaded.folder}/secrets/api-key"]
    assert texts[0].startswith(f"asking without a key: {loaded.folder}/secrets/api-key is not there")


def test_another_controller_brings_it_from_the_host(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second key would shut the clients of the first out."""
    second = FakeHost([("cat /opt/runbooks/current/api-key", "sk-of-the-first\n")], name="glm5-b")
    session, events = _session(loaded, {"glm5-a": FakeHost(), "glm5-b": second}, monkeypatch)
    assert ready_key(session) == Secret("sk-of-the-first")
    assert (loaded.folder / "secrets/api-key").read_text() == "sk-of-the-first\n"
    assert (loaded.folder / "secrets/api-key").stat().st_mode & 0o777 == 0o600
    assert "sk-of-the-first" not in repr(events)
    assert events[0].text.startswith("the API key of glm5-b is kept, and now here too")


def test_or_from_their_gateway_that_was_set_up_first(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(ssh=Login(address="192.0.2.9"))
    pool = Group(hosts=("glm5-a",), gateway=gateway)
    inventory = msgspec.structs.replace(loaded.inventory, groups={"pool": pool})
    session, events = _session(replace(loaded, inventory=inventory), {"glm5-a": FakeHost()}, monkeypatch)
    holder = FakeHost([("cat /opt/runbooks/gateway/api-key", "sk-of-the-gateway\n")], name="gateway-pool")
    monkeypatch.setattr(Session, "connect_gateway", lambda self, name: nullcontext(holder.conn))
    assert ready_key(session) == Secret("sk-of-the-gateway")
    assert events[0].text.startswith("the API key of gateway-pool is kept, and now here too")


def test_a_key_that_is_here_is_not_asked_for(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = loaded.inventory.server.api_key
    assert ref is not None
    loaded.source(ref).make(Secret("sk-here"))
    host = FakeHost()
    session, events = _session(loaded, {"glm5-a": host}, monkeypatch)
    assert ready_key(session) == Secret("sk-here")
    assert (host.asked, events) == ([], [])


@pytest.mark.parametrize(
    ("host", "level", "said"),
    [
        ("127.0.0.1", "info", "whoever is logged in on the host may use 127.0.0.1:30000"),
        ("0.0.0.0", "warning", "whoever reaches the host may use 0.0.0.0:30000"),
    ],
)
def test_an_open_server_says_so_at_every_deploy(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch, host: str, level: str, said: str
) -> None:
    server = msgspec.structs.replace(loaded.inventory.server, api_key=None, host=host)
    inventory = msgspec.structs.replace(loaded.inventory, server=server)
    session, events = _session(replace(loaded, inventory=inventory), {"glm5-a": FakeHost()}, monkeypatch)
    assert ready_key(session) is None
    assert [(event.data["level"], event.text) for event in events] == [
        (level, f"the server is open (server.api_key): {said}")
    ]
    assert not (loaded.folder / "secrets").exists()
