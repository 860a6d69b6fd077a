"""`python -m tests.faults.runner TARGET.json [--seconds N] [--wait] [--die N]`: the play in a process to be killed."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from pathlib import Path

from runbooks.engine.facts import Facts
from runbooks.engine.fleet import Fleet, Interrupt, Rollout
from runbooks.engine.printers import printer
from runbooks.engine.report import Reporter
from runbooks.engine.run import HostResult, Options, converge
from runbooks.engine.shell import Answer
from runbooks.engine.step import Stage
from runbooks.engine.transport import Connection, Target
from tests.faults.faults_world import alone, play, slow

DYING = 0.02  # seconds after a question was sent: the host has it, and has not answered yet


class Mortal(Connection):
    """Its process dies in the middle of a question, without a word."""

    die_in = 0

    def ask(self, script: str, *, deadline: float = 30.0, stdin: bytes = b"") -> Answer:
        if self.exchanges + 1 == self.die_in:
            self._open_shell()
            threading.Timer(DYING, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return super().ask(script, deadline=deadline, stdin=stdin)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("--seconds", type=int, default=0, help="of work in the middle, twice")
    parser.add_argument("--wait", action="store_true")
    parser.add_argument("--die", type=int, default=0, help="in the middle of this question")
    chosen = parser.parse_args()
    raw = json.loads(Path(chosen.target).read_text())
    target = Target(**{**raw, "key": raw["key"] and Path(raw["key"]), "known_hosts": Path(raw["known_hosts"])})
    report, interrupt = Reporter(printer(plain=True, verbose=True)), Interrupt()

    def build(_facts: Facts) -> list[Stage]:
        steps = [slow(chosen.seconds), slow(chosen.seconds, name="slow-too")] if chosen.seconds else []
        return play([alone(step) for step in steps])

    def work(_name: str) -> HostResult:
        options = Options(what="faults", wait=chosen.wait, stopping=lambda: interrupt)
        connection = Mortal(target)
        connection.die_in = chosen.die
        with connection:
            return converge(connection, build, options=options, report=report)

    fleet = Fleet(
        work=work,
        rollout=Rollout(),
        failed=lambda result: bool(result.failed),
        interrupt=interrupt,
        on_interrupt=lambda: report.note("interrupted"),
    )
    with interrupt.listening():
        (outcome,) = fleet.run([target.name])
    assert outcome.value is not None, outcome.error
    for error in outcome.value.failed:
        print(error)
    print(f"end: {outcome.value.changed} changed, {len(outcome.value.failed)} failed", flush=True)
    return int(bool(outcome.value.failed))


if __name__ == "__main__":
    sys.exit(main())
