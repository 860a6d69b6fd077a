"""What a preview says is what a run then does, for every kind of step; and a secret is on no surface of either."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from lab.lab import Lab
from runbooks import paths
from runbooks.engine.facts import Facts
from runbooks.engine.look import look
from runbooks.engine.printers import JsonPrinter, PlainPrinter
from runbooks.engine.report import Event, Reporter
from runbooks.engine.run import HostResult, Options, converge
from runbooks.engine.secret import Secret
from runbooks.engine.step import Answers, Change, Diff, Question, Stage, Step, shell
from runbooks.engine.transport import Connection, Target
from tests.faults.faults_world import World
from tests.steps.every_kind import AFTER, BEFORE, BY_NAME, ROOT, SAMPLES, SENTINEL

pytestmark = pytest.mark.lab


class Tee:
    """Keeps the events, and prints them as lines and as JSON."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.plain, self.json = io.StringIO(), io.StringIO()
        self._printers = (PlainPrinter(self.plain, verbose=True), JsonPrinter(self.json))

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


@pytest.fixture(
    params=["dash", pytest.param("bash", marks=pytest.mark.slow), pytest.param("busybox", marks=pytest.mark.slow)]
)
def shell_is(request: pytest.FixtureRequest, world: World) -> str:
    """The guest's /bin/sh: what every question, step and supervisor is run by."""
    if request.param == "busybox":
        world.sh("apt-get -q update >/dev/null; apt-get -q -y install busybox >/dev/null")
    world.undo("ln -sf dash /bin/sh")
    world.sh(f"ln -sf {request.param} /bin/sh")
    return str(request.param)


def test_preview_and_run_agree_on_every_kind(world: World, shell_is: str) -> None:
    """And nothing is left to change after the change; under each shell that a /bin/sh may be."""
    assert world.sh("readlink /bin/sh").strip() == shell_is
    world.undo(AFTER)
    world.guest.run("sh -s", stdin=BEFORE, timeout=180)
    preview, previewed = _run(world, SAMPLES, check=True)
    assert preview.failed == []
    assert set(previewed.told("would-change")) == {sample.id for sample in SAMPLES}
    assert world.sh(f"ls -d {ROOT} {paths.JOBS} 2>/dev/null; true") == ""
    ran, done = _run(world, SAMPLES)
    assert ran.failed == [], str(ran.failed[0])
    assert ran.changed == len(SAMPLES)
    assert done.told("changed") == previewed.told("would-change")
    again, nothing = _run(world, SAMPLES, check=True)
    assert (again.failed, again.would_change, nothing.told("would-change")) == ([], 0, {})


PWN = "touch /run/pwned"
HOSTILE = {
    "spaces": " a b  c ",
    "quotes": f'it\'s "q" `{PWN}` $({PWN})',
    "commands": f"x; {PWN}; {PWN} & | {PWN} #",
    "newline": f"two\n{PWN}\nlines",
    "dash": "-rf",
    "long dash": "--help",
    "utf-8": "größe-模型-🙂",
    "backslash": f"back\\slash\\n\\$({PWN})",
    "breaks out": f"'; {PWN}; '",
}
OURS_ALONE = ("Directory", "File", "Symlink", "Line", "Command", "BuiltOnce")
"""Kinds that take any name that a file may have. For the others the tool they call says what a name is."""


@pytest.fixture(scope="module")
def hostile(lab: Lab) -> Iterator[Connection]:
    """A guest to be thrown away: whatever these names do, they do it here."""
    guest = lab.add()
    guest.run("sh -s", stdin=BEFORE, timeout=180)
    target = Target(
        name=guest.name, address=guest.address, key=guest.keys / "id_ed25519", known_hosts=guest.keys / "known_hosts"
    )
    try:
        with Connection(target) as connection:
            yield connection
    finally:
        lab.remove(guest)


@pytest.mark.slow
@pytest.mark.parametrize("kind", BY_NAME)
def test_a_hostile_name_is_a_name_and_nothing_else(hostile: Connection, kind: str) -> None:
    steps = [BY_NAME[kind](name) for name in HOSTILE.values()]
    answers = look(hostile, [question for step in steps for question in step.questions()])
    for name, step in zip(HOSTILE, steps, strict=True):
        change = step.plan(answers)
        if not isinstance(change, Change) or change.reboot:
            continue
        done = hostile.ask(f"export JOB=/run/faults UPLOADS=/run/faults\nset -e\n{change.script}", deadline=60)
        if kind in OURS_ALONE:
            assert done.rc == 0, f"{name}: {done.err}"
            assert step.plan(look(hostile, step.questions())) is None, f"{name}: something is left to change"
        assert hostile.ask("ls /run/pwned 2>/dev/null").out == "", f"{name} was run as a command"
    assert hostile.ask("ls /run/pwned 2>/dev/null; ls -d /etc /usr /root/given").out.split()[0] == "/etc"


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
    steps = SAMPLES[:3]
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
