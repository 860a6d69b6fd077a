"""What a preview says is what a run then does, for every kind of step; and a secret is on no surface of either."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass

import pytest

from runbooks import paths
from runbooks.engine.facts import Facts
from runbooks.engine.printers import JsonPrinter, PlainPrinter
from runbooks.engine.report import Event, Reporter
from runbooks.engine.run import HostResult, Options, converge
from runbooks.engine.secret import Secret
from runbooks.engine.step import Answers, Change, Diff, Question, Stage, Step, shell
from runbooks.engine.transport import Connection
from runbooks.steps.build import BuiltOnce, Command
from runbooks.steps.files import Directory, File, Line, Symlink
from runbooks.steps.packages import Hold, Packages
from runbooks.steps.services import Unit, User
from tests.faults.faults_world import ROOT, World

pytestmark = pytest.mark.lab

SENTINEL = "sentinel-4711-'q\"uote"
KINDS: tuple[Step, ...] = (
    Directory(path=ROOT),
    File(path=f"{ROOT}/file", content="one\ntwo\n", mode=0o640),
    File(path=f"{ROOT}/secret", content=Secret(SENTINEL), mode=0o600),
    Symlink(path=f"{ROOT}/link", target="file"),
    Line(path=f"{ROOT}/lines", line="gamma = 3", owns="gamma"),
    Command(name="command", script=f": >{ROOT}/made", creates=f"{ROOT}/made"),
    BuiltOnce(name="built", folder=f"{ROOT}/built", recipe=': >"$FOLDER/x"', shown=("x",)),
    Packages(names=("tree",)),
    Hold(names=("tree",)),
    User(name="faulty", home="/nonexistent"),
    Unit(name="faulty.service", enabled=True, active=True),
)
UNIT = "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"


class Tee:
    """Keeps the events, and prints them as lines and as JSON."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.plain, self.json = io.StringIO(), io.StringIO()
        self._printers = (PlainPrinter(self.plain), JsonPrinter(self.json))

    def show(self, event: Event) -> None:
        self.events.append(event)
        for printer in self._printers:
            printer.show(event)

    def close(self) -> None: ...

    def told(self, state: str) -> dict[str, tuple[str, ...]]:
        """What was said of each step in this state."""
        return {
            event.text: tuple(event.data["diff"])
            for event in self.events
            if event.kind == "step" and event.data["state"] == state
        }


def _run(world: World, steps: tuple[Step, ...], *, check: bool = False) -> tuple[HostResult, Tee]:
    said = Tee()
    report = Reporter(said)
    report.hide(Secret(SENTINEL))

    def build(_facts: Facts) -> list[Stage]:
        return [Stage("kinds", steps)]

    with Connection(world.target) as connection:
        return converge(connection, build, options=Options(check=check, diff=True), report=report), said


def test_preview_and_run_agree_on_every_kind(world: World) -> None:
    world.sh("apt-mark unhold tree >/dev/null 2>&1; dpkg -P tree >/dev/null 2>&1; true")
    world.guest.run("cat >/etc/systemd/system/faulty.service; systemctl daemon-reload", stdin=UNIT)
    preview, previewed = _run(world, KINDS, check=True)
    assert (preview.failed, preview.would_change) == ([], len(KINDS))
    assert world.sh(f"ls -d {ROOT} {paths.STATE} 2>/dev/null; true") == ""
    ran, done = _run(world, KINDS)
    assert (ran.failed, ran.changed) == ([], len(KINDS))
    assert done.told("changed") == previewed.told("would-change")
    again, nothing = _run(world, KINDS, check=True)
    assert (again.would_change, nothing.told("would-change")) == (0, {})
    world.sh("apt-mark unhold tree >/dev/null")


@dataclass(frozen=True, kw_only=True)
class Leak:
    """A step whose command prints the secret that it was given, and fails."""

    id: str = "leak"

    def questions(self) -> tuple[Question, ...]:
        return (shell("false"),)

    def plan(self, _answers: Answers) -> Change:
        script = 'echo "my key is $(cat "$UPLOADS/key")"; exit 3'
        return Change(script=script, diff=(Diff(f"key {SENTINEL}"),), uploads={"key": Secret(SENTINEL)})


def test_a_secret_is_on_no_surface(world: World) -> None:
    """Screen, JSON, diff, error, audit log, journal, job logs, command lines and environments of the whole run."""
    watch = "while :; do ps axwwe; cat /proc/*/environ 2>/dev/null; sleep 0.05; done >/root/watched"
    world.sh(f"systemd-run --quiet --collect --unit=watch sh -c '{watch}'")
    world.undo("systemctl stop watch 2>/dev/null; rm -f /root/watched")
    steps = KINDS[:3]
    _, previewed = _run(world, steps, check=True)
    ran, done = _run(world, steps)
    leaked, told = _run(world, (Leak(),))
    assert (ran.failed, len(leaked.failed)) == ([], 1)
    report = Reporter(Tee())
    report.hide(Secret(SENTINEL))
    error = str(report.redact(str(leaked.failed[0])))
    for surface in (previewed.plain, previewed.json, done.plain, done.json, told.plain, told.json):
        assert "sentinel-4711" not in surface.getvalue()
        assert "***" in surface.getvalue()
    assert "sentinel-4711" not in error
    assert [json.loads(line)["event"] for line in told.json.getvalue().splitlines()]
    assert world.sh(f"cat {ROOT}/secret") == SENTINEL
    world.sh("systemctl stop watch; test $(stat -c %s /root/watched) -gt 10000")
    folders = "/etc /var /run /tmp /opt /usr/local /root/watched"
    found = world.sh(f"grep -rlF sentinel-4711 {folders} 2>/dev/null | sort; true").split()
    # The leaking command wrote to its own log: root's alone, and gone with the job.
    logs = [path for path in found if path.startswith(paths.JOBS)]
    assert [path for path in found if path not in logs] == [f"{ROOT}/secret"]
    assert all(path.startswith(f"{paths.JOBS}/kinds-") and path.endswith("/log") for path in logs)
    assert world.sh(f"stat -c %a {paths.JOBS}/kinds-*; journalctl | grep -cF sentinel-4711; true").split()[-1] == "0"
