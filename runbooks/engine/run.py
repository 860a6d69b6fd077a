"""A run on one host: facts, one look, then stage by stage a job and a second look.

'Converged' is only ever said after a look. A step that still wants a change after it was applied has failed.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from runbooks.engine import lock
from runbooks.engine.apply import Stopped, apply, job_name
from runbooks.engine.errors import CheckFailed, RunbookError, StepFailed
from runbooks.engine.facts import Facts, ask_facts
from runbooks.engine.follow import MARK, Job, follow, list_jobs
from runbooks.engine.look import Look, waited_for
from runbooks.engine.progress import Gauge
from runbooks.engine.report import Reporter
from runbooks.engine.step import Change, Question, Stage, State, Step, Verdict
from runbooks.engine.transport import Connection

MAX_ROUNDS = 6  # of one stage: changes that are seen only after others (a reboot between them counts as one)

Build = Callable[[Facts], Sequence[Stage]]
Plan = Change | Verdict | None
Plans = list[tuple[Step, Plan]]


@dataclass(frozen=True, kw_only=True)
class Options:
    """`consent(question) -> bool` is asked before a reboot. `stopping()` true: begin nothing more.

    `wait`: while another run holds the host, wait for it instead of leaving.
    """

    check: bool = False
    diff: bool = False
    tags: frozenset[str] = frozenset()
    skip_tags: frozenset[str] = frozenset()
    run: str = field(default_factory=lambda: f"{int(time.time())}-{time.monotonic_ns() % 10**6}")
    what: str = "provision"
    consent: Callable[[str], bool] = lambda _question: True
    stopping: Callable[[], object] = lambda: False
    wait: bool = False


@dataclass(kw_only=True)
class HostResult:
    """What a run did to one host; counts are of steps."""

    host: str
    unchanged: int = 0
    changed: int = 0
    would_change: int = 0
    undecided: list[str] = field(default_factory=list)
    warnings: list[RunbookError] = field(default_factory=list)
    failed: list[RunbookError] = field(default_factory=list)


def converge(connection: Connection, build: Build, *, options: Options, report: Reporter) -> HostResult:
    """Make the stages true on one host. Errors of the host are in the result, not raised; Ctrl-C is."""
    run = _Run(connection, build, options, report)
    try:
        run.go()
    except RunbookError as error:
        error.host = error.host or connection.name
        run.result.failed.append(error)
    finally:
        run.unlock()
    return run.result


class _Run:
    def __init__(self, connection: Connection, build: Build, options: Options, report: Reporter) -> None:
        self._connection = connection
        self._build = build
        self._options = options
        self._report = report
        self._answers: dict[Question, State] = {}
        self._stages: list[Stage] = []
        self._locked = False
        self._told_wait = False
        self._inherited: dict[str, list[tuple[Step, Change]]] = {}  # by stage: what an earlier run's job was at
        self._stale = False  # something was applied since the last look
        self._pending = ""  # check mode: the first stage that would change something
        self.result = HostResult(host=connection.name)

    def go(self) -> None:
        self._gather()
        position = 0
        while position < len(self._stages):
            stage = self._stages[position]
            began = time.monotonic()
            try:
                self._preview(stage) if self._options.check else self._converge(stage, position, began)
            except (StepFailed, CheckFailed) as error:  # its own failure: a lost lock or link, or a stop, ends the run
                if not stage.optional:
                    raise
                error.host = error.host or self._connection.name
                self.result.warnings.append(error)
                self._say_stage(stage, "failed", began, text=f"{stage.name}: optional, the run goes on\n{error}")
                if self._stale:  # a job that failed changed things too, and later stages may turn on them
                    self._look(position + 1)
            position += 1

    def _gather(self, from_stage: int = 0) -> None:
        """Facts (an exchange), then everything else (an exchange)."""
        facts = ask_facts(self._connection)
        self._stages = [stage for stage in self._build(facts) if self._is_selected(stage)]
        self._look(from_stage)

    def _is_selected(self, stage: Stage) -> bool:
        tags = stage.tags | {stage.name}
        if tags & self._options.skip_tags:
            return False
        return not self._options.tags or bool(tags & (self._options.tags | {Stage.ALWAYS}))

    def _look(self, from_stage: int) -> None:
        questions = [q for stage in self._stages[from_stage:] for step in stage.steps for q in step.questions()]
        self._seen = Look(self._connection, questions)
        self._answers.update(self._seen.answers)
        self._stale = False

    def _await(self, stage: Stage) -> None:
        """What takes longer than all the rest holds up the stage that asks for it, and none above."""
        questions = [question for step in stage.steps for question in step.questions()]
        self._say("note", f"{stage.name}: {waited_for(self._seen.late(questions))}", level="info")
        self._seen.wait(questions)
        self._answers.update(self._seen.answers)

    def _plans(self, stage: Stage) -> Plans:
        if self._seen.late(question for step in stage.steps for question in step.questions()):
            self._await(stage)
        return [(step, planned(step, self._answers)) for step in stage.steps]

    def _converge(self, stage: Stage, position: int, began: float) -> None:
        tried: set[str] = set()
        for _ in range(MAX_ROUNDS):
            plans = self._plans(stage)
            changes = [(step, plan) for step, plan in plans if isinstance(plan, Change)]
            self._refuse_failed(_leading_verdicts(plans) if changes else plans)
            self._refuse_repeated(changes, tried)
            if not changes:
                self._settle(stage, tried, began)
                return
            if self._options.stopping():
                raise Stopped(host=self._connection.name, step=stage.name)
            if not self._hold():
                self._look(position)  # somebody was at work meanwhile: what we saw may be gone
                continue
            self._stale = True
            tried |= self._apply(stage, changes)
            self._gather(position) if any(change.reboot for _, change in changes) else self._look(position)
            stage = self._stages[position]
        raise StepFailed(f"the stage does not come to rest in {MAX_ROUNDS} rounds", step=stage.name)

    def _apply(self, stage: Stage, changes: Sequence[tuple[Step, Change]]) -> set[str]:
        """All changes up to a reboot as one job, or the reboot itself; the look after it tells what is left."""
        first = next((n for n, (_, change) in enumerate(changes) if change.reboot), len(changes))
        batch = changes[: first or 1]
        apply(self._connection, stage.name, batch, options=self._options, report=self._report)
        return {step.id for step, _ in batch}

    def _settle(self, stage: Stage, tried: set[str], began: float) -> None:
        for step, change in self._inherited.pop(stage.name, []):
            if step.id not in tried:  # the job that was followed has made it true
                self._say_change(step, change, "changed")
                tried.add(step.id)
        self.result.changed += len(tried)
        self.result.unchanged += len(stage.steps) - len(tried)
        self._say_stage(stage, "changed" if tried else "ok", began, changed=len(tried))

    def _refuse_failed(self, plans: Plans) -> None:
        for step, plan in plans:
            if isinstance(plan, Verdict) and not plan.ok:
                raise CheckFailed(plan.line, step=step.id, details=plan.details, next=plan.next, page=plan.page)

    def _refuse_repeated(self, changes: Sequence[tuple[Step, Change]], tried: set[str]) -> None:
        for step, change in changes:
            if step.id in tried:
                left = [diff.line for diff in change.diff]
                raise StepFailed("applied, and a second look still wants a change", step=step.id, details=left)

    def _preview(self, stage: Stage) -> None:
        """Check mode: what would change. What depends on an earlier change is not guessed at."""
        began, plans = time.monotonic(), self._plans(stage)
        wanted = sum(isinstance(plan, Change) for _, plan in plans)
        for step, plan in plans:
            if isinstance(plan, Change):
                self._say_change(step, plan, "would-change")
                self._pending = self._pending or stage.name
            elif isinstance(plan, Verdict) and not plan.ok:
                if not self._pending:
                    self._refuse_failed([(step, plan)])
                self.result.undecided.append(step.id)
                self._say("step", f"{step.id}: decided after stage '{self._pending}'", state="undecided", diff=[])
        self.result.would_change += wanted
        self.result.unchanged += len(stage.steps) - wanted
        self._say_stage(stage, "would-change" if wanted else "ok", began, changed=wanted)

    def _say_change(self, step: Step, change: Change, state: str) -> None:
        unified = "".join(diff.unified for diff in change.diff) if self._options.diff else ""
        self._say("step", step.id, state=state, diff=[diff.line for diff in change.diff], unified=unified)

    def _say_stage(self, stage: Stage, state: str, began: float, *, changed: int = 0, text: str = "") -> None:
        total = len(stage.steps)
        now = ", as it looks now" if self._pending not in ("", stage.name) else ""  # an earlier one may change that
        counts = f"{changed} of {total} " + (f"would change{now}" if self._options.check else "changed")
        seconds = time.monotonic() - began
        took = f"   {seconds:.0f} s" if seconds >= 1 else ""
        text = text or f"{stage.name}   " + (counts if changed else f"{total} ok") + took
        self._say("stage", text, state=state, ok=total - changed, changed=changed, seconds=seconds)

    def _say(self, kind: str, text: str, **data: object) -> None:
        self._report.emit(kind, text, host=self._connection.name, **data)

    def _hold(self) -> bool:
        """Hold the host, and let what an earlier run left at work come to its end. False: look again first."""
        first = not self._locked
        met = lock.take(self._connection, self._options.run, self._options.what, waiting=self._waiting)
        self._locked = True
        if not first:
            return True
        running = [job for job in list_jobs(self._connection) if job.changes and job.state == "running"]
        for job in running:
            self._say("note", f"{job.name}: a job of an earlier run is at work; waiting for its end", level="info")
            self._inherit(job)
            with contextlib.suppress(StepFailed):  # how it ended is for the next look to tell
                self._attend(job)
        return not running and not met

    def _inherit(self, job: Job) -> None:
        """What its stage still wants is what it is at; what is true of that after its end, it has changed."""
        for stage in self._stages:
            questions = [question for step in stage.steps for question in step.questions()]
            if job_name(stage.name) == job.name and not self._seen.late(questions):
                with contextlib.suppress(StepFailed):  # an answer that did not come: its stage tells of it
                    wanted = [(step, plan) for step, plan in self._plans(stage) if isinstance(plan, Change)]
                    self._inherited[stage.name] = [(step, change) for step, change in wanted if not change.reboot]

    def _attend(self, job: Job) -> None:
        """Follow it to its end, as quietly as a job of our own."""
        gauge = Gauge(self._connection.name, self._report)
        gauge.begin(job.name)

        def line(text: str) -> None:
            if text.startswith(f"{MARK} begin"):
                gauge.begin(job.name)
            elif not text.startswith(MARK):
                self._report.output(text, host=self._connection.name, chatter=True)
                gauge.read(text)

        stopping = self._options.stopping
        follow(self._connection, job.label, report=self._report, on_line=line, on_live=gauge.live, stopping=stopping)

    def _waiting(self, busy: lock.Busy) -> bool:
        if not self._options.wait or self._options.stopping():
            return False
        if not self._told_wait:
            self._told_wait = True
            self._say("note", f"waiting: the host is {busy.details[0]}", level="warning")
        return True

    def unlock(self) -> None:
        if self._locked:
            with contextlib.suppress(RunbookError):  # the host is gone; the lock expires, or went with a reboot
                lock.release(self._connection, self._options.run)
            self._locked = False


def planned(step: Step, answers: Mapping[Question, State]) -> Plan:
    """A group that gave no answer decides nothing: that is an error of the look (StepFailed), not a state."""
    silent = [question for question in step.questions() if answers.get(question, {}).get("no answer")]
    if silent and not getattr(step, "accepts_silence", False):
        late = "the host did not answer this question in time"
        what = "the host's answer to this question is too long" if answers[silent[0]].get("too much") else late
        raise StepFailed(what, step=step.id, details=[f"asked by {silent[0]}"])
    return step.plan(answers)


def _leading_verdicts(plans: Plans) -> Plans:
    """The checks that stand before the first change of a stage: they guard it. Those below it judge its outcome."""
    return list(itertools.takewhile(lambda pair: not isinstance(pair[1], Change), plans))
