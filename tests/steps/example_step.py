"""The example of CONTRIBUTING: a whole kind of step. `test_steps_example.py` is the test that it needs."""

from __future__ import annotations

from dataclasses import dataclass

from runbooks.engine.step import Answers, Change, Diff, Question, Verdict, quote
from runbooks.steps import ask

ZONES = "/usr/share/zoneinfo"


@dataclass(frozen=True, kw_only=True)
class Timezone:
    """The machine's time zone: `zone` as below /usr/share/zoneinfo, e.g. Europe/Berlin."""

    zone: str
    path: str = "/etc/localtime"

    @property
    def id(self) -> str:
        return f"time zone {self.zone}"

    @property
    def _wanted(self) -> str:
        return f"{ZONES}/{self.zone}"

    def questions(self) -> tuple[Question, ...]:
        return (ask.path(self.path), ask.path(self._wanted))

    def plan(self, answers: Answers) -> Change | Verdict | None:
        now, zone = answers[ask.path(self.path)], answers[ask.path(self._wanted)]
        if zone.get("type") is None:
            return Verdict(ok=False, line=f"this host has no zone {self.zone}", next=f"ls {ZONES}")
        if now.get("target") == self._wanted:
            return None
        script = f"""\
t=$(mktemp -d {quote(self.path)}.rb-XXXXXXXX)
ln -s -- {quote(self._wanted)} "$t/zone"
mv -fT -- "$t/zone" {quote(self.path)}
rmdir -- "$t\""""
        old = str(now.get("target") or "none").removeprefix(f"{ZONES}/")
        return Change(script=script, diff=(Diff(f"{old} -> {self.zone}"),))
