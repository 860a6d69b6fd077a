"""What people see of events: times, chatter, a dead lock."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runbooks.engine import lock
from runbooks.engine.errors import HostKeyChanged, RunbookError
from runbooks.engine.follow import MARK, _Follower
from runbooks.engine.printers import JsonPrinter, PlainPrinter
from runbooks.engine.reboot import reboot
from runbooks.engine.report import Printer, Reporter, moment_text
from runbooks.engine.shell import Answer
from runbooks.engine.transport import Connection, Target
from tests.recorder import Recorder


def test_moments_read_alike_wherever_they_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of a job, ISO text of a release, an audit line: one form and one zone, whatever this machine's is."""
    monkeypatch.setenv("TZ", "CET-1")
    time.tzset()
    try:
        told = {
            moment_text(1764439200.0),
            moment_text("2025-11-29T18:00:00Z"),
            moment_text("2025-11-29T18:00:00+00:00"),
        }
        assert told == {"2025-11-29 18:00 UTC"}
        assert [moment_text(odd) for odd in ("", "yesterday", 1e300)] == ["", "yesterday", "1e+300"]
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (lambda out: PlainPrinter(out), ["h      a line of a followed log"]),
        (lambda out: PlainPrinter(out, verbose=True), ["h      Get:1 tree", "h      a line of a followed log"]),
    ],
)
def test_a_pipe_gets_no_chatter_unless_it_asks(make: Callable[[io.StringIO], Printer], shown: list[str]) -> None:
    out = io.StringIO()
    report = Reporter(make(out))
    report.output("Get:1 tree", host="h", chatter=True)
    report.output("a line of a followed log", host="h")
    assert out.getvalue().splitlines() == shown


def test_numbers_stand_to_the_right_and_options_do_not() -> None:
    out = io.StringIO()
    rows = [["--tp-size 8", "-", "8"], ["--page-size 64", "< 0.5", "64"], ["--x", "", "-1"]]
    Reporter(PlainPrinter(out)).table("t", ["option", "took", "n"], rows)
    assert out.getvalue().splitlines()[1:] == [
        "  option           took   n",
        "  --tp-size 8         -   8",
        "  --page-size 64  < 0.5  64",
        "  --x                    -1",
    ]


def test_a_line_says_its_host_once() -> None:
    out = io.StringIO()
    error = RunbookError("release 2 died", host="glm5-a", details=["killed (glm5-a)"], next="look")
    Reporter(PlainPrinter(out)).emit("result", str(error), host="glm5-a", state="failed")
    assert out.getvalue().splitlines() == [
        "glm5-a  ✗ release 2 died",
        "glm5-a        killed (glm5-a)",
        "glm5-a        next: look",
    ]


def test_json_has_every_line() -> None:
    out = io.StringIO()
    Reporter(JsonPrinter(out)).output("Get:1 tree", host="h", chatter=True)
    assert json.loads(out.getvalue())["chatter"] is True


def test_a_dead_holder_is_called_dead() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    holder = {"who": "ann@desk", "what": "provision", "since": time.time() - 600, "run": "x", "place": lock._place()}
    alive = lock.describe(json.dumps({**holder, "pid": os.getpid()}))
    assert alive == f"held by ann@desk (pid {os.getpid()}) for 10 min: provision"
    dead = lock.describe(json.dumps({**holder, "pid": gone.pid}))
    assert dead == f"held by ann@desk (pid {gone.pid}, dead: the next run takes it over) for 10 min: provision"
    elsewhere = lock.describe(json.dumps({**holder, "pid": gone.pid, "place": "elsewhere 1"}))
    assert "dead" not in elsewhere


@pytest.mark.parametrize("holder", ["", "half a li", "[]", "{}", '{"since": "soon"}', '{"since": 1}'])
def test_a_torn_holder_is_no_traceback(holder: str) -> None:
    assert lock.describe(holder) == "held by a run that is just starting"


def test_a_host_that_comes_back_as_another_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    asked: list[str] = []

    class Rebuilt(Connection):
        def ask(self, script: str, **_options: object) -> Answer:
            asked.append(script)
            if len(asked) > 2:
                raise HostKeyChanged("the host h shows another host key than the one pinned for it")
            return Answer(0, b"boot-id", "")

    connection = Rebuilt(Target(name="h", address="192.0.2.1", known_hosts=Path("/nowhere")))
    with pytest.raises(HostKeyChanged):
        reboot(connection, limit=900, report=Reporter(Recorder()))
    assert len(asked) == 3


@pytest.mark.parametrize(("pinned", "believes"), [(True, "ours"), (False, "the person's")])
def test_a_pin_beside_the_inventory_stands_above_the_persons_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pinned: bool, believes: str
) -> None:
    """An address that was another machine's before: an old key in ~/.ssh/known_hosts does not speak for the new one."""
    import paramiko

    keys = {name: paramiko.ECDSAKey.generate() for name in ("ours", "the person's")}
    line = {name: f"192.0.2.1 {key.get_name()} {key.get_base64()}\n" for name, key in keys.items()}
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/known_hosts").write_text(line["the person's"])
    (tmp_path / "known_hosts").write_text(line["ours"] if pinned else "")
    monkeypatch.setenv("HOME", str(tmp_path))
    client = paramiko.SSHClient()
    target = Target(name="h", address="192.0.2.1", known_hosts=tmp_path / "known_hosts")
    Connection(target)._check_host_keys(client, "192.0.2.1")
    first, second = vars(client)["_system_host_keys"], client.get_host_keys()  # the order in which Paramiko looks
    known = first.lookup("192.0.2.1") or second.lookup("192.0.2.1")
    assert known is not None
    assert next(iter(known.values())) == keys[believes]


def test_our_marks_and_a_power_cuts_zeros_are_not_in_a_tail() -> None:
    lines: list[str] = []
    follower = _Follower(Connection.__new__(Connection), "/x", lines.append, lambda: False, lambda _text, _level: None)
    follower._take(f"{MARK} begin 0\nat work\n\0\0\0\n".encode())
    assert follower.tail == ["at work", ""]
    assert lines[0] == f"{MARK} begin 0"


def test_an_error_has_its_parts_for_programs_and_its_host_once_for_people() -> None:
    error = RunbookError("no route", host="a", step="base", details=["x"], next="ssh a", page="host-unreachable")
    for host, said in ((None, "base: no route"), ("a", "base: no route"), ("b", "base: no route   (a)")):
        out = io.StringIO()
        Reporter(JsonPrinter(out)).failed(error, host=host)
        event = json.loads(out.getvalue())
        parts = ("event", "host", "state", "message", "details", "step", "next", "page")
        assert [event[name] for name in parts] == [
            "result", host or "a", "failed", "no route", ["x"], "base", "ssh a", "host-unreachable",
        ]  # fmt: skip
        assert event["text"].splitlines()[0] == said
    bare = io.StringIO()
    Reporter(JsonPrinter(bare)).failed(RunbookError("no"))
    assert {name: json.loads(bare.getvalue())[name] for name in ("host", "next", "page", "step")} == dict.fromkeys(
        ("host", "next", "page", "step")
    )
    plain = io.StringIO()
    Reporter(PlainPrinter(plain)).failed(error)
    assert plain.getvalue().splitlines()[0] == "a  ✗ base: no route"


def test_every_error_of_a_host_is_told_in_its_parts() -> None:
    """`emit("result", str(error))` would be text alone."""
    root = Path(__file__).parents[2] / "runbooks"
    texts = {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*.py")}
    assert [name for name, text in texts.items() if 'emit("result", str(error)' in text] == []
