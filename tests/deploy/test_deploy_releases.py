"""Releases on a host: written whole, switched by one rename, judged in place; and what there is to go back to."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from runbooks.deploy.hosts import _target
from runbooks.deploy.look import Host, read
from runbooks.deploy.releases import Release, install, judge, key_of, parse, switch
from runbooks.engine.errors import RunbookError
from runbooks.engine.secret import Secret
from runbooks.engine.shell import Answer
from tests.deploy.deploy_fake import FakeHost

ONE = Release(
    number=1,
    profile="final",
    content="0123456789ab",
    sglang="0.5.23",
    runtime="/opt/runbooks/runtimes/r",
    model_path="/srv/m",
    served_name="glm-5",
    host="127.0.0.1",
    port=30000,
    has_key=False,
    created="2026-11-29T17:00:00+00:00",
    by="a@b",
)


def test_a_release_survives_its_file() -> None:
    assert parse(ONE.dump()) == ONE
    assert parse(ONE.dump().replace("\n", "")) == ONE
    assert parse(json.dumps({**json.loads(ONE.dump()), "from the future": 1})) == ONE
    for broken in ("", "{}", "[]", "null", "not json", '{"number": 1}'):
        assert parse(broken) is None


def test_a_folder_is_written_under_another_name_and_renamed_when_whole() -> None:
    host = FakeHost()
    install(host.conn, ONE, {"env": 'A="b"\n', "argv.json": "[]\n"}, Secret("sk-123456"))
    (script,) = host.asked
    steps = ["tar -xpf - -C /opt/runbooks/releases/.new-1", "sync -f", "mv -T -- /opt/runbooks/releases/.new-1"]
    places = [script.index(step) for step in steps]
    assert places == sorted(places)
    assert "sk-123456" not in script
    (files,) = host.archives
    modes = {name: mode for name, (mode, _) in files.items()}
    assert modes == {"release.json": 0o644, "env": 0o600, "argv.json": 0o644, "api-key": 0o600}
    assert files["api-key"][1] == b"sk-123456\n"
    assert b"sk-123456" not in files["release.json"][1]


def test_a_folder_that_cannot_be_written_is_an_error_with_its_last_words() -> None:
    class Full(FakeHost):
        def ask(self, script: str, *, deadline: float = 30.0, stdin: bytes = b"") -> Answer:
            return Answer(1, b"", "tar: env: Cannot write: No space left on device\n")

    with pytest.raises(RunbookError) as failed:
        install(Full().conn, ONE, {}, None)
    assert "No space left on device" in str(failed.value)


def test_switching_is_one_rename_and_the_links_point_through_it() -> None:
    host = FakeHost()
    switch(host.conn, ONE)
    (script,) = host.asked
    assert script.splitlines()[0] == (
        "ln -sfn -- /opt/runbooks/releases/1 /opt/runbooks/current.new && "
        "mv -T -- /opt/runbooks/current.new /opt/runbooks/current || exit 1"
    )
    assert "/opt/runbooks/current/sglang.service" in script
    assert script.rstrip().endswith("systemctl daemon-reload")
    assert "rm " not in script, "at no moment is there no release"
    assert "sglang.service.before-runbooks" in script, "a unit that somebody wrote by hand is kept"


def test_judging_replaces_release_json_alone() -> None:
    host = FakeHost()
    judged = judge(host.conn, ONE, "promoted", ready_seconds=3.2)
    assert list(host.put_files) == ["/opt/runbooks/releases/1/release.json"]
    assert parse(host.put_files["/opt/runbooks/releases/1/release.json"].decode()) == judged


def test_an_old_release_is_asked_with_its_own_key() -> None:
    assert key_of(FakeHost().conn, ONE) is None
    assert key_of(FakeHost().conn, replace(ONE, has_key=True)) == Secret("old-key")


def _host(current: int | None, *releases: Release) -> Host:
    lines = "\n".join(release.dump().replace("\n", "") for release in releases)
    link = f"/opt/runbooks/releases/{current}" if current else ""
    return read(f"-- rb: current\n{link}\n-- rb: releases\n{lines}\n")


GOOD = replace(ONE, verdict="promoted")


def test_a_rollback_does_not_lead_to_the_same_again() -> None:
    """Deployed, taken back, deployed again: what was taken back is of the same content as what serves."""
    baseline, taken_back, again = GOOD, replace(GOOD, number=2, content="b"), replace(GOOD, number=3, content="b")
    assert _target(_host(3, replace(baseline, content="a"), taken_back, again), "h", None).number == 1
    with pytest.raises(RunbookError, match="no earlier release"):
        _target(_host(3, taken_back, again), "h", None)
    assert _target(_host(3, taken_back, again), "h", 2).number == 2, "unless it is asked for by its number"


def test_what_there_is_to_go_back_to() -> None:
    two, three = replace(GOOD, number=2), replace(ONE, number=3, verdict="failed")
    host = _host(1, GOOD, two, three)
    assert host.next_number == 4
    assert host.good(4)[0] == GOOD, "the one that serves, though a newer one was good once"
    assert host.good(1)[0] == two, "never the one that is being started again"
    assert _host(3, GOOD, two, three).good(4) == [two], "the same again is no other way back"
    older = replace(GOOD, content="f" * 12)
    assert _host(2, older, two, three).good(4) == [two, older]
    again = replace(older, number=5)
    assert _host(5, older, two, again).good(6) == [again, two], (
        "the one that serves comes first, if deployed before too"
    )
    assert _host(None).good(1) == []
    assert _host(None).next_number == 1


LOOK = """\
-- rb: current
/opt/runbooks/releases/2
-- rb: releases
-- rb: unit
ActiveState=active
InvocationID=abc
Environment=RUNBOOKS_RELEASE=2:0123 A=b
-- rb: runtime
/opt/runbooks/runtimes/without
-- rb: model
5
-- rb: user
996
-- rb: unreadable
find: '/srv/m/': Permission denied
-- rb: port
4242 python3 -m http.server 30000
-- rb: gpus
0
1
rc=0
-- rb: held
77 (1024 MiB) python train.py
-- rb: key
same
"""


def test_the_look_is_read_into_values() -> None:
    host = read(LOOK)
    assert (host.current, host.running, host.serves) == (2, "2:0123", True)
    assert (host.runtime, host.model_files, host.user) == ("/opt/runbooks/runtimes/without", 5, True)
    assert (host.gpus, host.key_same) == (2, True)
    assert host.port_taken == ("4242 python3 -m http.server 30000",)
    assert host.gpu_held == ("77 (1024 MiB) python train.py",)
    assert host.unreadable == ("find: '/srv/m/': Permission denied",)


def test_an_empty_host_has_nothing_and_a_hung_gpu_has_no_count() -> None:
    host = read("")
    assert (host.current, host.runtime, host.user, host.gpus, host.serves) == (None, None, False, None, False)
    assert read("-- rb: gpus\nUnable to determine the device handle\nrc=15\n").gpus is None
    assert read("-- rb: gpus\nrc=124\n").gpus is None


def test_what_runs_is_told_by_the_process_before_its_unit() -> None:
    unit = "-- rb: unit\nActiveState=active\nEnvironment=RUNBOOKS_RELEASE=2:new\n"
    assert read(unit).running == "2:new"
    assert read(f"{unit}-- rb: stamp\nRUNBOOKS_RELEASE=1:old\n").running == "1:old"
