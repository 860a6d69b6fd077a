"""`python -m bench.engine.ours TARGETS`: the play by our engine, a whole process as people start it.

TARGETS is a JSON file: [{"name", "address", "port", "key", "known_hosts"}]. `--record FILE` writes the questions that
were asked of the first host, as one script: the least that anybody has to send.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from pathlib import Path

from bench.engine.play import Play
from runbooks.engine.fleet import Fleet, Interrupt, Rollout
from runbooks.engine.printers import printer
from runbooks.engine.report import Reporter
from runbooks.engine.run import HostResult, Options, converge
from runbooks.engine.shell import Answer
from runbooks.engine.transport import Connection, Target


class Recording(Connection):
    """Keeps what it asks."""

    script = ""

    def ask(self, script: str, *, deadline: float = 30.0, stdin: bytes = b"") -> Answer:
        self.script += f"(\n{script}\n)\n"
        return super().ask(script, deadline=deadline, stdin=stdin)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("targets")
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--record")
    chosen = parser.parse_args()
    targets = {
        raw["name"]: Target(**{**raw, "key": Path(raw["key"]), "known_hosts": Path(raw["known_hosts"])})
        for raw in json.loads(Path(chosen.targets).read_text())
    }
    report = Reporter(printer(plain=True))
    play = Play(chosen.copies)

    def work(name: str) -> HostResult:
        kind = Recording if chosen.record else Connection
        with kind(targets[name]) as connection:
            result = converge(connection, play.stages, options=Options(what="bench"), report=report)
            counts = f"{connection.connects} connect, {connection.execs} exec, {connection.exchanges} exchanges"
            report.note(f"{result.changed} changed, {result.unchanged} unchanged; {counts}", host=name)
            if isinstance(connection, Recording):
                Path(chosen.record).write_text(connection.script)
            return result

    fleet = Fleet(
        work=work,
        rollout=Rollout(),
        failed=lambda result: bool(result.failed),
        interrupt=Interrupt(),
        on_interrupt=lambda: None,
    )
    outcomes = fleet.run(list(targets))
    for outcome in outcomes:
        for error in [outcome.error, *(outcome.value.failed if outcome.value else [])]:
            if error is not None:
                print(error, file=sys.stderr)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report.note(f"{len(targets)} hosts, {peak:.0f} MiB at most")
    return int(any(outcome.error or (outcome.value and outcome.value.failed) for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
