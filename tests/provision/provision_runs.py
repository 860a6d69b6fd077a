"""`provision` as a value for tests on lab hosts: what a run said, did and cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.guest import Guest
from lab.lab import Lab
from runbooks.engine.facts import Facts
from runbooks.engine.report import Reporter
from runbooks.engine.run import HostResult, Options, converge
from runbooks.engine.step import Stage, Step
from runbooks.inventory import load
from runbooks.inventory.runtimes import runtime_path
from runbooks.provision import stages
from runbooks.session import Session
from tests.recorder import Recorder


class Said(Recorder):
    def steps(self, state: str) -> list[str]:
        return [event.text for event in self.events if event.kind == "step" and event.data["state"] == state]


@dataclass
class Run:
    result: HostResult
    said: Said
    exchanges: int
    execs: int

    @property
    def errors(self) -> list[str]:
        return [str(error) for error in self.result.failed]


@dataclass
class Provision:
    lab: Lab
    guest: Guest
    inventory: Path | None = None  # another one than the lab's

    def __call__(self, *, check: bool = False, tags: frozenset[str] = frozenset()) -> Run:
        loaded = load(self.inventory or self.lab.inventory)
        return self._run(lambda facts: stages(facts, loaded, self.guest.name), Options(check=check, tags=tags))

    def steps(self, *steps: Step) -> Run:
        """These steps alone, as a stage of their own."""
        return self._run(lambda _facts: [Stage("steps", steps)], Options())

    def _run(self, build: Callable[[Facts], Sequence[Stage]], options: Options) -> Run:
        said = Said()
        session = Session(load(self.inventory or self.lab.inventory), [self.guest.name], Reporter(said), yes=True)
        with session, session.connect(self.guest.name) as connection:
            result = converge(connection, build, options=options, report=session.report)
            return Run(result, said, connection.exchanges, connection.execs)

    @property
    def runtime(self) -> str:
        loaded = load(self.lab.inventory)
        return runtime_path(loaded.runtime_for(self.guest.name), loaded.inventory.flash_attn)

    @property
    def runtime_without(self) -> str:
        return runtime_path(load(self.lab.inventory).runtime_for(self.guest.name), None)

    def wheels(self) -> str:
        return self.guest.run("ls -d /var/lib/runbooks/wheels/*").stdout.strip()
