"""What the fault matrix works with: a guest, a small play, a run of the engine, and eyes that are not the engine's."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lab.guest import Guest
from lab.lab import Lab
from runbooks import paths
from runbooks.engine.facts import Facts
from runbooks.engine.report import Event, Reporter
from runbooks.engine.run import HostResult, Options, converge
from runbooks.engine.step import Stage, Step
from runbooks.engine.transport import Connection, Target
from runbooks.steps.build import Command
from runbooks.steps.files import Directory, File, Line
from runbooks.steps.services import Unit, User
from tests.recorder import Recorder

ROOT = "/etc/faults"
ALONE = "/run/faults-alone"  # stands while a step is at work that must be alone
UNIT = "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
FILES = {f"{ROOT}/a.conf": "alpha = 1\n", f"{ROOT}/sub/b.conf": "beta = 2\n", f"{ROOT}/large.txt": "x" * 300_000 + "\n"}


def play(extra: Sequence[Step] = ()) -> list[Stage]:
    """Two stages with a step of most kinds; `extra` steps stand between them."""
    files: list[Step] = [Directory(path=ROOT), Directory(path=f"{ROOT}/sub")]
    files += [File(path=path, content=content) for path, content in FILES.items()]
    files += [Line(path=f"{ROOT}/lines", line="gamma = 3", owns="gamma")]
    service: list[Step] = [
        User(name="faulty", home="/nonexistent"),
        File(path="/etc/systemd/system/faulty.service", content=UNIT, then="systemctl daemon-reload"),
        Unit(name="faulty.service", enabled=True, active=True),
    ]
    middle = [Stage("middle", tuple(extra))] if extra else []
    return [Stage("files", tuple(files)), *middle, Stage("service", tuple(service))]


def slow(seconds: int, *, name: str = "slow") -> Command:
    """A step at work for a while, which leaves a mark when it came to its end."""
    script = f"for i in $(seq {seconds * 2}); do echo at work $i; sleep 0.5; done; : >{ROOT}/{name}"
    return Command(name=name, script=script, creates=f"{ROOT}/{name}", limit=60)


def alone(step: Command) -> Command:
    """The same, and it leaves a mark if it was ever at work twice at once."""
    script = f"mkdir {ALONE} || {{ : >{ALONE}-not; exit 1; }}; {step.script}; rmdir {ALONE}"
    return dataclasses.replace(step, script=script)


def make_pat(guest: Guest, *, password: str = "right horse", rule: str = "pat ALL=(ALL) ALL") -> None:
    """A login of a person, with a key, a password and a rule of sudo."""
    guest.run("id pat >/dev/null 2>&1 || useradd -m -s /bin/bash pat; chpasswd", stdin=f"pat:{password}\n")
    guest.run(
        "install -d -m 700 -o pat /home/pat/.ssh; install -o pat -m 600 /root/.ssh/authorized_keys /home/pat/.ssh/;"
        "cat >/etc/sudoers.d/pat",
        stdin=rule + "\n",
    )


class Said(Recorder):
    def __init__(self) -> None:
        super().__init__()
        self.watch: dict[str, Callable[[], object]] = {}

    def show(self, event: Event) -> None:
        """Keeps everything; the first time that a watched text turns up, it does what was asked for then."""
        super().show(event)
        for text in [text for text in self.watch if text in event.text]:
            self.watch.pop(text)()


@dataclass
class Ran:
    result: HostResult
    said: Said
    seconds: float
    exchanges: int

    @property
    def text(self) -> str:
        return "\n".join(
            [
                *map(str, self.result.failed),
                *self.said.texts,
                *(str(event.data.get("detail", "")) for event in self.said.events),
            ]
        )


@dataclass
class World:
    lab: Lab
    guest: Guest
    target: Target
    cleanup: list[Callable[[], object]] = field(default_factory=list)

    def run(
        self,
        extra: Sequence[Step] = (),
        *,
        when: Mapping[str, Callable[[], object]] | None = None,
        target: Mapping[str, object] | None = None,
        **options: object,
    ) -> Ran:
        """One run of the play. `when`: what to do once a text turns up in what the run says."""
        said = Said()
        said.watch = dict(when or {})

        def build(_facts: Facts) -> list[Stage]:
            return play(extra)

        began = time.monotonic()
        with Connection(dataclasses.replace(self.target, **(target or {}))) as connection:  # type: ignore[arg-type]
            chosen = Options(what="faults", **options)  # type: ignore[arg-type]
            result = converge(connection, build, options=chosen, report=Reporter(said))
            return Ran(result, said, time.monotonic() - began, connection.exchanges)

    def sh(self, script: str, *, user: str = "root") -> str:
        """Plain ssh, independent of the engine."""
        return self.guest.run(script, user=user).stdout

    def later(self, seconds: float, script: str) -> None:
        """In the guest, by itself: for what mends a link that nobody gets through any more."""
        timer = f"--quiet --collect --on-active={seconds} --timer-property=AccuracySec=50ms"
        self.sh(f"systemd-run {timer} sh -c {shlex.quote(script)}")

    def until(self, true: Callable[[], bool], *, seconds: float = 30.0) -> None:
        """Wait for what the guest does by itself."""
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, "the guest did not come back by itself"
            time.sleep(0.2)

    def mend(self) -> None:
        """Undo what the fault did, last first."""
        while self.cleanup:
            self.cleanup.pop()()

    def undo(self, script: str) -> None:
        """Shell text that mends, over plain ssh."""
        self.cleanup.append(lambda: self.sh(script))

    def reset(self) -> None:
        """A guest on which nothing of the play is there."""
        self.sh(
            f"systemctl disable -q --now faulty.service 2>/dev/null; rm -rf {ROOT} {paths.LOCK} {paths.STATE} {ALONE}*;"
            "rm -f /etc/systemd/system/faulty.service; systemctl daemon-reload; userdel faulty 2>/dev/null; true"
        )

    def half_done(self) -> list[str]:
        """What no run may leave: half a file, a lock, a private temporary folder, a job at work."""
        left = self.sh(
            f"find {ROOT} /etc/systemd/system -name '*.rb-*' 2>/dev/null; ls -d {paths.LOCK} 2>/dev/null;"
            "pgrep -fa '[j]obs/.*/supervisor'; true"
        )
        return left.split("\n")[:-1]

    def wrong(self) -> list[str]:
        """What plain ssh finds different from what the play wants; files are either absent or whole."""
        wants = [f"test -d {ROOT}/sub", "id faulty", "systemctl is-active faulty", "systemctl is-enabled faulty"]
        wants += [f"grep -qx 'gamma = 3' {ROOT}/lines"]
        wants += [f"test $(stat -c %s:%a:%U {path}) = {len(text)}:644:root" for path, text in FILES.items()]
        script = "\n".join(f"{{ {want}; }} >/dev/null 2>&1 || echo {want!r}" for want in wants)
        return self.sh(script).splitlines()
