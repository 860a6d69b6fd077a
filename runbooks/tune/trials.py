"""The experiment itself, on one host: the profile that serves is the baseline, and serves again at the end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from runbooks.bench import BenchOptions
from runbooks.bench.results import BenchResult, writable
from runbooks.bench.sweep import run_bench
from runbooks.deploy import hosts as deploying
from runbooks.deploy.flow import deploy
from runbooks.deploy.key import ready_key
from runbooks.engine import lock
from runbooks.engine.errors import CheckFailed, RunbookError, Unreachable, UsageError
from runbooks.paths import expand
from runbooks.session import Session
from runbooks.sglang.argv import resolve
from runbooks.tune import outcome
from runbooks.tune.predict import predict
from runbooks.tune.record import Record, Trial, unfinished

SHORT = (1, 8, 64)  # streams; of these, those that the inventory's sweep has
GARBAGE = ("nan-output", "canary-degraded")  # pages of errors that say: it answers, and not sense


def tune_host(
    session: Session, profiles: Sequence[str], *, concurrency: tuple[int, ...], window: float, out: str
) -> int:
    """Try profiles on one host. 0: every one was measured and VALID. Raises RunbookError when nothing serves."""
    wanted = [name for one in profiles for name in (part.strip() for part in one.split(",")) if name]
    if not wanted:
        known = ", ".join(session.loaded.inventory.profiles)
        raise UsageError("profiles: which are to be tried?", details=[f"the inventory has {known}"])
    profiles_known(session, wanted)
    if len(session.hosts) != 1:
        raise UsageError(
            f"one host at a time, not {len(session.hosts)}", next="invoke tune --hosts NAME --profiles a,b"
        )
    points = concurrency or _short(session)
    options = BenchOptions(concurrency=points, window=window, warmup=min(5.0, window), repeats=1, command="invoke tune")
    options.checked(session.loaded.inventory.bench)
    experiment = Experiment(session, list(dict.fromkeys(wanted)), options, writable(expand(out)))
    return experiment.run()


def profiles_known(session: Session, wanted: Sequence[str]) -> None:
    """Raises one UsageError with every name that cannot be tried."""
    mistakes: list[UsageError] = []
    for name in dict.fromkeys(wanted):
        try:
            resolve(session.loaded.inventory.profiles, name)
        except UsageError as error:
            mistakes.append(error)
    if len(mistakes) == 1:
        raise mistakes[0]
    if mistakes:
        told = [line for error in mistakes for line in (error.message, *error.details)]
        raise UsageError(f"profiles: {len(mistakes)} of these cannot be tried", details=told)


def _short(session: Session) -> tuple[int, ...]:
    usual = session.loaded.inventory.bench.concurrency
    return tuple(b for b in SHORT if b in usual) or usual[-1:]


class Experiment:
    def __init__(self, session: Session, profiles: list[str], options: BenchOptions, out: Path) -> None:
        self.session, self.profiles, self.options, self.out = session, profiles, options, out
        self.host = session.hosts[0]
        self.report = session.report

    def run(self) -> int:
        record = self._begin()
        outcome.show_predictions(record, self.report)
        question = f"{len(self._left(record))} deploys of {self.host}, each with its downtime, and then back."
        if not self.session.consent(f"{question} Go on?"):
            raise CheckFailed("nothing was changed: no consent to the downtime", host=self.host, step="tune")
        self.session.yes = True  # one answer for all of them
        ready_key(self.session)
        try:
            for name in [record.baseline, *self.profiles]:
                if record.trial(name) is None:
                    record.trials.append(self._try(record, name))
                    record.save()
        finally:
            self._restore(record)
        record.again = self._measure_again(record)
        record.done = True
        record.save()
        return outcome.show(record, self.report)

    def _begin(self) -> Record:
        asked = {
            "profiles": self.profiles,
            "concurrency": list(self.options.concurrency),
            "window": self.options.window,
        }
        with self.session.connect(self.host) as conn:
            found = deploying.glance(self.session, conn)
        if old := unfinished(self.out, self.host, asked):
            tried = ", ".join(one.profile for one in old.trials) or "nothing"
            self.report.note(f"going on with {old.folder.name}: {tried} tried before", host=self.host)
            return old
        current = found.release(found.current)
        if current is None or not found.serves:
            raise RunbookError(
                "no release of ours serves here, and it would be the baseline",
                host=self.host,
                step="tune",
                next=f"invoke deploy --hosts {self.host} --profile {self.profiles[0]}",
            )
        folder = self.out / f"{datetime.now(UTC):%Y-%m-%dT%H%M%SZ}-{self.host}-tune"
        record = Record(folder, self.host, current.number, current.profile, asked)
        top = max(self.options.concurrency)
        for name in self.profiles:
            told = predict(self.session.loaded, self.host, current.profile, name, top)
            record.predicted[name] = f"{told.say()}; {'; '.join(told.changes) or 'nothing differs'}"
        record.save()
        return record

    def _left(self, record: Record) -> list[str]:
        return [name for name in self.profiles if record.trial(name) is None and name != record.baseline]

    def _try(self, record: Record, name: str) -> Trial:
        self.report.heading(f"{name}{' (baseline)' if name == record.baseline else ''}")
        try:
            with self.session.connect(self.host) as conn:
                if name != record.baseline or record.trials:
                    deploy(
                        [conn],
                        self.session.loaded,
                        name,
                        report=self.report,
                        consent=self.session.consent,
                        full_canary=False,
                    )
                result = run_bench(
                    conn, self.session.loaded, self.host, options=self.options, report=self.report, out=record.folder
                )
        except (Unreachable, lock.Busy):  # says nothing of the profile: the next run tries it again
            raise
        except RunbookError as error:
            self.report.note(f"{name}: {error.message}", host=self.host, level="warning")
            return Trial(name, _kind(error), why=" ".join(error.message.split()))
        self.report.note(f"{name}: {result.verdict.word}: {result.verdict.line}", host=self.host)
        return judged(name, result)

    def _restore(self, record: Record) -> None:
        self.report.heading(f"back to release {record.before}, profile {record.baseline}")
        deploying.rollback_hosts(self.session, record.before)

    def _measure_again(self, record: Record) -> str | None:
        """The baseline once more: what lies between its two sweeps is noise that no single sweep can see."""
        first = record.trial(record.baseline)
        if first is None or first.outcome != "measured" or len(record.trials) < 2:
            return None
        with self.session.connect(self.host) as conn:
            result = run_bench(
                conn, self.session.loaded, self.host, options=self.options, report=self.report, out=record.folder
            )
        return result.folder.name


def judged(name: str, result: BenchResult) -> Trial:
    """A sweep that ended is not yet a good one."""
    run, word = result.folder.name, result.verdict.word
    if result.canary_failed:
        found = "; ".join(result.run["canary"]["found"][:2])
        return Trial(name, "garbage", run, f"canary {result.run['canary']['verdict']}: {found}", word)
    bad = [f"{point['concurrency']}: {point['faults'][0]}" for point in result.points if point["faults"]]
    garbage = any("garbage" in text or "NaN" in text for text in bad)
    if bad:
        return Trial(name, "garbage" if garbage else "invalid", run, "; ".join(bad[:2]), word)
    return Trial(name, "measured", run, verdict=word)


def _kind(error: RunbookError) -> outcome.Outcome:
    if error.page in GARBAGE:
        return "garbage"
    return "refused" if isinstance(error, (CheckFailed, UsageError)) else "crash"
