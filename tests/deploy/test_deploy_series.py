"""Several hosts: a roll-out stops at the first that fails, a preview looks at all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import msgspec
import pytest

from runbooks.deploy import deploy_hosts
from runbooks.deploy.unit import render
from runbooks.engine.errors import UsageError
from runbooks.engine.report import Event, Reporter
from runbooks.session import Session
from tests.deploy.deploy_fake import FakeHost, Silent
from tests.deploy.test_deploy_flow import HOST, LOADED, NEW, OLD, SAME, fake, looks

NAMES = ("a", "b", "c")


def _series(monkeypatch: pytest.MonkeyPatch, *, broken: str) -> tuple[Session, list[Event], dict[str, FakeHost]]:
    """Three hosts that are alike, but that one has no account to run the server as."""
    like = LOADED.inventory.hosts[HOST]
    inventory = msgspec.structs.replace(LOADED.inventory, hosts=dict.fromkeys(NAMES, like))
    hosts = {name: fake(looks(OLD).replace("996\n", "" if name == broken else "996\n")) for name in NAMES}

    @contextmanager
    def connect(self: Session, name: str) -> Iterator[object]:
        hosts[name].name = name
        yield hosts[name].conn

    monkeypatch.setattr(Session, "connect", connect)
    printer = Silent()
    return Session(replace(LOADED, inventory=inventory), list(NAMES), Reporter(printer), True), printer.events, hosts


def test_a_preview_looks_at_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    session, events, hosts = _series(monkeypatch, broken="b")
    assert deploy_hosts(session, "final", check=True) == 1
    assert hosts["c"].asked
    told = {event.host: event.data["state"] for event in events if event.kind == "result"}
    assert told == {"a": "would-change", "b": "failed", "c": "would-change"}
    assert not any("not touched" in event.text for event in events)


def test_a_roll_out_stops_and_names_what_it_did_not_touch(monkeypatch: pytest.MonkeyPatch) -> None:
    session, events, hosts = _series(monkeypatch, broken="a")
    assert deploy_hosts(session, "final", full_canary=False) == 1
    assert hosts["b"].asked == hosts["c"].asked == []
    told = {event.host: event.data["state"] for event in events if event.kind == "result"}
    assert told == {"a": "failed"}
    assert any(event.text == "not touched: b, c" for event in events)


def test_no_profile_is_asked_for_before_any_host(monkeypatch: pytest.MonkeyPatch) -> None:
    session, _, hosts = _series(monkeypatch, broken="a")
    with pytest.raises(UsageError, match="which profile") as failed:
        deploy_hosts(session, "")
    assert "next: invoke deploy --profile final --check --diff" in str(failed.value)
    assert not any(host.asked for host in hosts.values())


def test_a_preview_shows_what_changes_and_not_what_every_release_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Number, folder and stamp of a release; and an option stands with its value on one line."""
    session, events, hosts = _series(monkeypatch, broken="")
    session.hosts = ["a"]
    served = replace(SAME, number=1)
    files = render(NEW, 1)
    files["argv.json"] = files["argv.json"].replace('"0.9"', '"0.8"')
    files["sglang.service"] = files["sglang.service"].replace("profile final", "profile lower")
    hosts["a"].replies[:0] = [
        ("echo '-- rb: current'", looks(replace(served, content="0" * 12))),
        *((f"cat /opt/runbooks/current/{name}", text.replace(NEW.content, "0" * 12)) for name, text in files.items()),
    ]
    assert deploy_hosts(session, "final", check=True, diff=True) == 3
    lines = [event.text for event in events if event.kind == "output"]
    changed = [line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == [
        "-Description=SGLang 0.5.23 serving glm-5 (release 2, profile lower)",
        "+Description=SGLang 0.5.23 serving glm-5 (release 2, profile final)",
        "- --mem-fraction-static 0.8",
        "+ --mem-fraction-static 0.9",
    ]
    assert "+++ release 2/command line" in lines
