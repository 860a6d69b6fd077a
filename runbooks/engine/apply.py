"""The changes of one stage as one job on the host, each change told as it happens."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

from runbooks.engine import lock
from runbooks.engine.errors import RunbookError, StepFailed, page_of
from runbooks.engine.follow import MARK
from runbooks.engine.jobs import full_disk, run_job
from runbooks.engine.progress import Gauge
from runbooks.engine.reboot import reboot
from runbooks.engine.report import Reporter
from runbooks.engine.secret import Secret
from runbooks.engine.step import Change, Step
from runbooks.engine.transport import Connection

if TYPE_CHECKING:
    from runbooks.engine.run import Options

STOPPED = 79  # the exit code of a job that was asked to stop between two steps

# In a subshell of its own, and not as a condition: there `set -e` would be off.
_STEP = """\
[ ! -e "$JOB/stop" ] || exit {stopped}
echo '{mark} begin {number}'
set +e
( set -e
{script}
)
rb_rc=$?
set -e
echo "{mark} end {number} $rb_rc"
[ "$rb_rc" -eq 0 ] || exit "$rb_rc"
{audit}"""

_ENDS = {
    124: "took longer than its limit, and was ended",
    137: "was killed from outside (signal 9); most often the kernel does that when memory runs out: journalctl -k",
    143: "was cancelled, or ended by a shutdown of the host",
}


class Stopped(RunbookError):
    """The run was asked to stop, and stopped between two steps."""

    def __init__(self, *, host: str, step: str) -> None:
        super().__init__(
            "stopped as asked; what came before it is done and whole",
            host=host,
            step=step,
            next="the same command goes on from here",
        )


def apply(
    connection: Connection, stage: str, changes: Sequence[tuple[Step, Change]], *, options: Options, report: Reporter
) -> None:
    """Apply changes in order, as one job; or one reboot. Raises StepFailed at the first that fails."""
    step, change = changes[0]
    if change.reboot:
        _reboot(connection, step, change, options, report)
    else:
        _run(connection, stage, changes, options, report)


def _run(
    connection: Connection, stage: str, changes: Sequence[tuple[Step, Change]], options: Options, report: Reporter
) -> None:
    teller = _Teller(connection.name, changes, options, report)
    uploads: dict[str, Secret | bytes] = {}
    for _, change in changes:
        uploads |= change.uploads
    result = run_job(
        connection,
        job_name(stage),
        teller.script(),
        limit=sum(change.limit for _, change in changes),
        report=report,
        uploads=uploads,
        on_line=teller.line,
        on_live=teller.live,
        changes=True,
        run=options.run,
        stopping=options.stopping,
    )
    if result.rc == STOPPED and options.stopping():
        raise Stopped(host=connection.name, step=stage)
    if result.rc != 0:
        step, change = changes[teller.current]
        said = [*teller.said[-12:], *full_disk(connection)]
        raise StepFailed(
            _ENDS.get(result.rc, f"failed with exit code {result.rc}"),
            host=connection.name,
            step=step.id,
            details=[*said, f"the whole log: {result.folder}/log on {connection.name}"],
            next=change.next or connection.target.ssh,
            page=change.page or page_of(said),
        )


class _Teller:
    """Builds the job's script with marks between the changes, and reads them again in its log."""

    def __init__(self, host: str, changes: Sequence[tuple[Step, Change]], options: Options, report: Reporter) -> None:
        # The mark must not depend on the run: the same content is the same job, and attaches.
        self._mark = MARK
        self._host = host
        self._changes = changes
        self._options = options
        self._report = report
        self._gauge = Gauge(host, report)
        self.live = self._gauge.live
        self.current = 0
        self.said: list[str] = []

    def script(self) -> str:
        parts = [lock.audit_function()]
        for number, (step, change) in enumerate(self._changes):
            lines = tuple(self._report.redact(diff.line) for diff in change.diff)
            audit = lock.audit_call(self._options.what, step.id, lines)
            parts.append(
                _STEP.format(mark=self._mark, number=number, script=change.script, audit=audit, stopped=STOPPED)
            )
        return "\n".join(parts)

    def line(self, text: str) -> None:
        match = re.fullmatch(rf"{self._mark} (begin|end) (\d+)(?: (\d+))?", text)
        if match is None:
            self.said = [*self.said[-40:], text]
            self._report.output(text, host=self._host, chatter=True)
            self._gauge.read(text)
        elif match[1] == "begin":
            self.current, self.said = int(match[2]), []
            self._gauge.begin(self._changes[self.current][0].id)
            self._report.output(self._changes[self.current][0].id, host=self._host)
        elif match[3] == "0":
            self._tell(*self._changes[int(match[2])])

    def _tell(self, step: Step, change: Change) -> None:
        unified = "".join(diff.unified for diff in change.diff) if self._options.diff else ""
        diff = [diff.line for diff in change.diff]
        self._report.emit("step", step.id, host=self._host, state="changed", diff=diff, unified=unified)


def _reboot(connection: Connection, step: Step, change: Change, options: Options, report: Reporter) -> None:
    why = "; ".join(diff.line for diff in change.diff)
    if not options.consent(f"{connection.name}: reboot now? ({why})"):
        raise StepFailed(
            f"needs a reboot: {why}",
            host=connection.name,
            step=step.id,
            next=f"invoke provision --hosts {connection.name} --yes",
        )
    report.note(f"rebooting: {why}", host=connection.name)
    reboot(connection, limit=change.limit, report=report)
    report.emit("step", step.id, host=connection.name, state="changed", diff=[d.line for d in change.diff], unified="")


def job_name(stage: str) -> str:
    """What the jobs of a stage are called."""
    return re.sub(r"[^a-z0-9]+", "-", stage.lower()).strip("-") or secrets.token_hex(4)
