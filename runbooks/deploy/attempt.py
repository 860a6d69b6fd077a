"""From the first write of a deploy to its verdict: write, switch, start, gate, read back, canary, or go back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from runbooks import paths
from runbooks.canary import run_canary
from runbooks.deploy import evidence, gate, prune, releases, software
from runbooks.deploy.look import Host
from runbooks.deploy.releases import Release
from runbooks.deploy.unit import Plan, render
from runbooks.engine import lock
from runbooks.engine.errors import RunbookError, Unreachable
from runbooks.engine.report import Reporter
from runbooks.engine.secret import Secret
from runbooks.engine.transport import Connection
from runbooks.inventory import Loaded
from runbooks.inventory.shape import Model
from runbooks.sglang import readback
from runbooks.sglang.flags import Value


@dataclass(frozen=True)
class Served:
    """A release that came through, and what it really runs."""

    release: Release
    observed: dict[str, Value]


def speaks_sense(
    conn: Connection,
    loaded: Loaded,
    model: Model,
    key: Secret | None,
    battery: Literal["quick", "full"],
    *,
    report: Reporter,
) -> None:
    """Ask the canary. Raises RunbookError with what it found."""
    result = run_canary(conn, server=loaded.inventory.server, model=model, battery=battery, report=report, api_key=key)
    if result.verdict != "healthy":
        faults = [f"{finding.prompt}: {finding.kind}: {finding.evidence}"[:200] for finding in result.faults]
        raise RunbookError(
            f"it answers, but the {battery} canary says {result.verdict}",
            host=conn.name,
            step="deploy",
            details=faults[:5],
            next=f"invoke canary --battery {battery} --hosts {conn.name}",
            page=result.page,
        )


@dataclass
class Attempt:
    """From the first write on."""

    conn: Connection
    loaded: Loaded
    report: Reporter
    new: Plan
    found: Host
    key: Secret | None
    software: str = ""  # what the runtime held when its parser was asked
    full_canary: bool = True

    def run(self) -> Served:
        """Raises RunbookError after the release before was brought back."""
        release = self._release()
        previous = self.found.previous_good(release.number)
        if release.verdict is None:
            files = {**render(self.new, release.number), software.FILE: self.software}
            releases.install(self.conn, release, files, self.key)
            self._audit(f"release {release.number} of profile {release.profile} written; it becomes current")
            self.report.note(f"release {release.number} is written; starting it", host=self.conn.name)
        else:
            self.report.note(f"release {release.number} is this very one; starting it again", host=self.conn.name)
        before = self.found.unit.get("InvocationID", "")
        try:
            releases.switch(self.conn, release)
            releases.restart(self.conn)
            start = self._gate(release, before)
            software.runs_from(self.conn, release)
            observed = self._read_back(release, start)
            self._canary("quick")
        except RunbookError as error:
            self._give_up(release, previous, error)
            raise
        except KeyboardInterrupt:
            text = f"release {release.number} is current and not judged: deploy again, or invoke rollback"
            self.report.note(text, host=self.conn.name, level="warning")
            raise
        seconds = round(start.seconds, 1)
        release = releases.judge(self.conn, release, "promoted", judged=now(), ready_seconds=seconds)
        self._audit(f"release {release.number} promoted")
        text = f"release {release.number} is promoted: profile {release.profile}, ready after {seconds:.0f} s"
        self.report.note(text, host=self.conn.name, level="good")
        self._watch(release, previous)
        self._prune(release)
        return Served(release, observed)

    def _watch(self, release: Release, previous: Release | None) -> None:
        """The full canary, while the new release already serves; the way back where it finds something."""
        if not self.full_canary:
            return
        try:
            self._canary("full")
        except RunbookError as error:
            self._give_up(replace(release, verdict=None), previous, error)
            raise
        except KeyboardInterrupt:
            text = f"release {release.number} serves; its full canary was cut off: invoke canary --battery full"
            self.report.note(text, host=self.conn.name, level="warning")
            raise

    def _prune(self, release: Release) -> None:
        """Old releases that nothing can need. Their runtimes stay: those go by `invoke releases --prune`."""
        there = [*self.found.releases, release]
        going = prune.spare(there, serving=(release.number,))
        prune.remove(self.conn, [one.folder for one in going])
        if going:
            numbers = ", ".join(str(one.number) for one in going)
            self._audit(f"old releases removed: {numbers}")
            self.report.note(f"old releases removed: {numbers}", host=self.conn.name)

    def _release(self) -> Release:
        """The current one, where it is what is wanted and was good (but does not serve); else a new one."""
        current = self.found.release(self.found.current)
        same_key = self.key is None or self.found.key_same
        if current is not None and current.content == self.new.content and current.verdict == "promoted" and same_key:
            return current
        return Release(
            number=self.found.next_number,
            profile=self.new.launch.profile,
            content=self.new.content,
            sglang=self.new.launch.version,
            runtime=self.new.runtime,
            model_path=self.new.model.path,
            served_name=self.new.model.served_name,
            host=self.new.host,
            port=self.new.port,
            has_key=self.new.has_key,
            created=now(),
            by=lock.who(),
        )

    def _endpoint(self, release: Release, key: Secret | None) -> gate.Endpoint:
        return gate.Endpoint(release.host, release.port, release.served_name, key)

    def _gate(self, release: Release, before: str) -> gate.Start:
        budget = self.loaded.inventory.server.ready_budget
        start = gate.wait(
            self.conn, self._endpoint(release, self.key), before=before, budget=budget, report=self.report
        )
        return passed(start, release, self.conn.name, budget)

    def _read_back(self, release: Release, start: gate.Start) -> dict[str, Value]:
        """What runs against what the profile expects."""
        info = gate.ask(self.conn, self._endpoint(release, self.key), "info").get("info")
        observed = readback.observe(start.journal, info if isinstance(info, dict) else {})
        expected = self.new.launch.expect
        rows = [
            [name, str(observed.get(name, "-")), str(expected.get(name, ""))]
            for name in readback.SHOWN
            if name in observed or name in expected
        ]
        self.report.table("what runs", ["setting", "runs", "expected"], rows, host=self.conn.name)
        wrong = readback.compare(expected, observed)
        if wrong:
            raise RunbookError(
                "the server runs with other settings than the profile expects",
                host=self.conn.name,
                step="deploy",
                details=[str(one) for one in wrong],
                next="look at `expect` of the profile, and at the runtime's version",
            )
        return {name: observed[name] for name in readback.SHOWN if name in observed}

    def _canary(self, battery: Literal["quick", "full"]) -> None:
        speaks_sense(self.conn, self.loaded, self.new.model, self.key, battery, report=self.report)

    def _give_up(self, release: Release, previous: Release | None, error: RunbookError) -> None:
        """Write the failure down and bring the release before back; what became of that is added to the error."""
        name, saved = self.conn.name, None
        self.report.note(f"release {release.number} failed: {error.message}", host=name, level="error")
        try:
            if release.verdict is None:
                releases.judge(self.conn, release, "failed", judged=now(), reason=error.message)
            self._audit(f"release {release.number} failed: {error.message}")
            saved = self._save(release, error)
            if previous is None:
                releases.stop(self.conn)
                end = "there is no earlier release that worked: the server is stopped"
            else:
                bring_back(self.conn, previous, budget=self.loaded.inventory.server.ready_budget, report=self.report)
                self._audit(f"back to release {previous.number}")
                end = f"release {previous.number} (profile {previous.profile}) serves again"
        except Unreachable as lost:
            end = f"and the host was lost before the release before could be brought back: {lost.message}"
        except RunbookError as second:
            number = previous.number if previous else 0
            end = f"and release {number} did not come back either: {second.message}"
            error.details += second.details
        kept = [f"what it left to be read is on the host, in {saved}"] if saved else []
        error.details = (*error.details, *kept, end)
        error.host, error.step = error.host or name, error.step or "deploy"

    def _save(self, release: Release, error: RunbookError) -> str | None:
        """What it leaves to be read; no trouble with that may keep the release before from coming back."""
        try:
            return evidence.save(self.conn, release, error, self.report)
        except Unreachable:
            raise
        except RunbookError as trouble:
            text = f"what it left could not be saved: {trouble.message}"
            self.report.note(text, host=self.conn.name, level="warning")
            return None

    def _audit(self, line: str) -> None:
        self.conn.ask(lock.audit_script(self.new.content, "deploy", (line,)))


def passed(start: gate.Start, release: Release, name: str, budget: float) -> gate.Start:
    """The start, if it was a healthy one. Raises RunbookError with the cause and the last lines."""
    if start.end == "healthy":
        return start
    if start.end == "died" and start.cause is not None:
        raise RunbookError(
            f"release {release.number} died after {start.seconds:.0f} s: {start.cause.text}",
            host=name,
            step="deploy",
            details=start.cause.evidence,
            next=start.cause.next,
            page=start.cause.page,
        )
    details = [f"it was {start.phase}"] + ([f"last answer: {start.last_answer[:200]}"] if start.last_answer else [])
    raise RunbookError(
        f"release {release.number} did not answer within {budget:.0f} s",
        host=name,
        step="deploy",
        details=details + start.journal[-3:],
        next="raise server.ready_budget if it was still making progress",
        page="server-down",
    )


def bring_back(conn: Connection, release: Release, *, budget: float, report: Reporter) -> gate.Start:
    """Switch to a release that is on the host, start it, and wait until it answers. Raises RunbookError."""
    key = releases.key_of(conn, release)
    if key:
        report.hide(key)
    before = conn.ask(f"systemctl show -p InvocationID --value {paths.UNIT_NAME}").out.strip()
    report.note(f"bringing back release {release.number}", host=conn.name)
    releases.switch(conn, release)
    releases.restart(conn)
    endpoint = gate.Endpoint(release.host, release.port, release.served_name, key)
    start = gate.wait(conn, endpoint, before=before, budget=budget, report=report)
    passed(start, release, conn.name, budget)
    software.runs_from(conn, release)
    return start


def answers(conn: Connection) -> bool:
    """Whether the release that is current completes a request now; a host that cannot be asked does not."""
    try:
        release = releases.parse(conn.ask(f"cat {paths.CURRENT}/release.json").out)
        if release is None:
            return False
        at = gate.Endpoint(release.host, release.port, release.served_name, releases.key_of(conn, release))
        said = gate.ask(conn, at, "completion")
        return said.get("status") == 200 and "error" not in said
    except RunbookError:
        return False


def running(conn: Connection) -> float | None:
    """Requests that the current release works on or keeps waiting; None where it serves and does not show them."""
    release = releases.parse(conn.ask(f"cat {paths.CURRENT}/release.json 2>/dev/null").out)
    if release is None:
        return 0.0
    at = gate.Endpoint(release.host, release.port, release.served_name, releases.key_of(conn, release))
    live = gate.ask(conn, at, "live")
    if live.get("status") == 200:
        return float(live["running"] + live["queued"])
    return None if live.get("status") else 0.0


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
