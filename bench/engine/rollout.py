"""The play on many hosts, which are being connected to."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping

from bench.engine.play import Play
from runbooks.engine.errors import RunbookError
from runbooks.engine.fleet import Fleet, Interrupt, Rollout
from runbooks.engine.printers import printer
from runbooks.engine.report import Reporter
from runbooks.engine.run import HostResult, Options, converge
from runbooks.engine.transport import Connection


def roll_out(connections: Mapping[str, Connection], *, copies: int) -> bool:
    """True when a host failed."""
    report = Reporter(printer(plain=True))
    play = Play(copies)

    def work(name: str) -> HostResult:
        with connections[name] as connection:
            result = converge(connection, play.stages, options=Options(what="bench"), report=report)
            counts = f"{connection.connects} connect, {connection.execs} exec, {connection.exchanges} exchanges"
            report.note(f"{result.changed} changed, {result.unchanged} unchanged; {counts}", host=name)
            return result

    fleet = Fleet(
        work=work,
        rollout=Rollout(),
        failed=lambda result: bool(result.failed),
        interrupt=Interrupt(),
        on_interrupt=lambda: None,
    )
    outcomes = fleet.run(list(connections))
    errors: list[RunbookError] = []
    for outcome in outcomes:
        errors += [outcome.error] if outcome.error else outcome.value.failed if outcome.value else []
    for error in errors:
        print(error, file=sys.stderr)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report.note(f"{len(connections)} hosts, {peak:.0f} MiB at most")
    return bool(errors)
