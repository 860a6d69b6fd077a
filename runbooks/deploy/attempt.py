"""From the first write of a deploy to its verdict: write, switch, start, gate, read back, canary, or go back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from runbooks.canary import Battery
from runbooks.deploy import evidence, gate, guard, prune, releases, software
from runbooks.deploy.back import Placed, at, invocation, prove, speaks_sense, start_again
from runbooks.deploy.look import Host
from runbooks.deploy.releases import Release
from runbooks.deploy.unit import Plan, render
from runbooks.engine import lock
from runbooks.engine.errors import RunbookError, Unreachable
from runbooks.engine.report import Reporter
from runbooks.engine.secret import Secret
from runbooks.engine.transport import Connection
from runbooks.inventory import Loaded
from runbooks.sglang import readback
from runbooks.sglang.flags import Value

T = TypeVar("T")

EARLIER = 3  # releases that are tried on the way back, until one serves


@dataclass(frozen=True)
class Served:
    """A release that came through, and what it really runs."""

    release: Release
    observed: dict[str, Value]


@dataclass
class Node:
    """One host of a server, and what it becomes. `software`: what its runtime held when the parser was asked.
    `run`: whose lines the audit log keeps together."""

    conn: Connection
    new: Plan
    found: Host
    software: str = ""
    run: str = ""

    def __post_init__(self) -> None:
        self.number(self.found.next_number)

    def number(self, number: int) -> None:
        """A new release gets this number: the same on all hosts of a server, which is how they are found together."""
        self.release = self._release(number)
        self.earlier = self.found.good(but=self.release.number)
        self.previous = next(iter(self.earlier), None)

    def _release(self, number: int) -> Release:
        """The current one, where it is what is wanted and was good (but does not serve); else a new one."""
        current, new = self.found.release(self.found.current), self.new
        same_key = not new.has_key or self.found.key_same
        if current is not None and current.content == new.content and current.verdict == "promoted" and same_key:
            return current
        return Release(
            number=number,
            profile=new.launch.profile,
            content=new.content,
            sglang=new.launch.version,
            runtime=new.runtime,
            model_path=new.model.path,
            served_name=new.model.served_name,
            host=new.host,
            port=new.port,
            has_key=new.has_key,
            created=now(),
            by=lock.who(),
            hosts=new.launch.hosts,
        )

    def audit(self, line: str) -> None:
        self.conn.ask(lock.audit_script(self.run, "deploy", (line,)))


@dataclass
class Attempt:
    """From the first write on. Most servers have one node; of several the first answers, and all stand or fall."""

    nodes: Sequence[Node]
    loaded: Loaded
    report: Reporter
    key: Secret | None
    full_canary: bool
    hold: Callable[[Connection], object]  # takes the host's lock again, which a reboot clears

    @property
    def head(self) -> Node:
        return self.nodes[0]

    @property
    def budget(self) -> float:
        return self.loaded.inventory.server.ready_budget

    @property
    def minutes(self) -> float:
        """Until a release that nobody confirms takes itself back."""
        return (self.budget + guard.GRACE) / 60

    def run(self) -> Served:
        """Raises RunbookError after the release before was brought back."""
        name = self.head.conn.name
        for node in self.nodes:
            self._write(node)
        try:
            start = self._start()
            observed = self._read_back(start)
            self._canary("gate")
            for node in self.nodes:
                guard.settle(node.conn, node.release)
            for node in self.nodes:
                facts = {"judged": now(), "ready_seconds": round(start.seconds, 1), "reason": None}
                node.release = releases.judge(node.conn, node.release, "promoted", **facts)
                guard.off(node.conn)
                node.audit(f"release {node.release.number} promoted")
        except RunbookError as error:
            self._give_up(error)
            raise
        except KeyboardInterrupt:
            text = f"release {self.head.release.number} is current and not judged: deploy again, or invoke rollback"
            if self.head.previous is not None:
                text += f"; left alone, it goes back by itself in {self.minutes:.0f} min"
            self.report.note(text, host=name, level="warning")
            raise
        release = self.head.release
        text = f"release {release.number} is promoted: profile {release.profile}, ready after {start.seconds:.0f} s"
        self.report.note(text, host=name, level="good")
        self._watch()
        for node in self.nodes:
            self._prune(node)
        return Served(release, observed)

    def _write(self, node: Node) -> None:
        release = node.release
        if release.verdict is not None:
            self.report.note(f"release {release.number} is this very one; starting it again", host=node.conn.name)
            return
        files = {**render(node.new, release.number), software.FILE: node.software}
        releases.install(node.conn, release, files, self.key)
        node.audit(f"release {release.number} of profile {release.profile} written; it becomes current")
        self.report.note(f"release {release.number} is written; starting it", host=node.conn.name)

    def _start(self) -> gate.Start:
        """Everywhere at once; the head's answer counts, and a death anywhere."""
        before = [node.found.unit.get("InvocationID", "") for node in self.nodes]
        for node in self.nodes:
            if node.previous is not None and node.release.verdict is None:
                guard.on(node.conn, node.release, node.previous, budget=self.budget)
            releases.switch(node.conn, node.release)
        for node in self.nodes:
            releases.restart(node.conn)
        others = [(node.conn, was) for node, was in zip(self.nodes[1:], before[1:], strict=True)]
        conn, release = self.head.conn, self.head.release
        start = gate.wait(
            conn, at(release, self.key), before=before[0], budget=self.budget, report=self.report, others=others
        )
        gate.passed(start, release.number, conn.name, self.budget)
        for node in self.nodes:
            software.runs_from(node.conn, node.release)
        return start

    def _watch(self) -> None:
        """The full canary, while the new release already serves; the way back where it finds something."""
        if not self.full_canary:
            return
        try:
            self._canary("full")
        except RunbookError as error:
            for node in self.nodes:
                node.release = replace(node.release, verdict=None)
            self._give_up(error)
            raise
        except KeyboardInterrupt:
            number = self.head.release.number
            text = f"release {number} serves; its full canary was cut off: invoke canary --battery full"
            self.report.note(text, host=self.head.conn.name, level="warning")
            raise

    def _prune(self, node: Node) -> None:
        """Old releases that nothing can need. Their runtimes stay: those go by `invoke releases --prune`."""
        there = [*node.found.releases, node.release]
        going = prune.spare(there, serving=(node.release.number,))
        prune.remove(node.conn, [one.folder for one in going])
        if going:
            numbers = ", ".join(str(one.number) for one in going)
            node.audit(f"old releases removed: {numbers}")
            self.report.note(f"old releases removed: {numbers}", host=node.conn.name)

    def _read_back(self, start: gate.Start) -> dict[str, Value]:
        """What runs against what the profile expects."""
        conn, expected = self.head.conn, self.head.new.launch.expect
        info = gate.ask(conn, at(self.head.release, self.key), "info").get("info")
        observed = readback.observe(start.journal, info if isinstance(info, dict) else {})
        rows = [
            [name, str(observed.get(name, "-")), readback.shown(name, expected.get(name))]
            for name in readback.SHOWN
            if name in observed or name in expected
        ]
        self.report.table("what runs", ["setting", "runs", "expected"], rows, host=conn.name)
        wrong = readback.compare(expected, observed)
        if wrong:
            raise RunbookError(
                "the server runs with other settings than the profile expects",
                host=conn.name,
                step="deploy",
                details=[str(one) for one in wrong],
                next="look at `expect` of the profile, and at the runtime's version",
            )
        return {name: observed[name] for name in readback.SHOWN if name in observed}

    def _canary(self, battery: Battery) -> None:
        head = self.head
        speaks_sense(head.conn, self.loaded.inventory.server, head.new.model, self.key, battery, report=self.report)

    def _give_up(self, error: RunbookError) -> None:
        """Write the failure down and bring the release before back; what became of that is added to the error.

        What a full disk keeps from being written must not keep the release before from coming back.
        """
        name, release = self.head.conn.name, self.head.release
        told = error.message.startswith(f"release {release.number} ")
        text = error.message if told else f"release {release.number} failed: {error.message}"
        self.report.note(text, host=name, level="error")
        saved = None
        try:
            if isinstance(error, Unreachable):
                self._reach()
            for node in self.nodes:
                self.hold(node.conn)
            for node in self.nodes:
                self._try(partial(self._condemn, node, error))
            saved = self._try(lambda: evidence.save(self.head.conn, release, error, self.report))
            end = self._bring_back(error)
        except lock.Busy as busy:
            end = f"the host was taken by another run meanwhile, and is left to that: {'; '.join(busy.details)}"
        except Unreachable as lost:
            end = f"and the host was lost before the release before could be brought back: {lost.message}"
            end += f"; it goes back by itself: when it restarts, or {self.minutes:.0f} min after the start"
        kept = [f"what it left to be read is on the host, in {saved}"] if saved else []
        error.details = (*error.details, *kept, end)
        error.host, error.step = error.host or name, error.step or "deploy"

    def _bring_back(self, error: RunbookError) -> str:
        """The newest release that worked, or the one before it, and so on; what became of it, in words. Raises
        Unreachable."""
        ways = list(zip(*(node.earlier for node in self.nodes), strict=False))[:EARLIER]
        if not ways:
            for node in self.nodes:
                releases.stop(node.conn)
            return "there is no earlier release that worked: the server is stopped"
        said = ""  # of those that did not
        for way in ways:
            head, placed = way[0], [(node.conn, one) for node, one in zip(self.nodes, way, strict=True)]
            drifted = software.differences(self.head.conn, head)
            try:
                self._start_earlier(placed)
                also = f", with other software than it was promoted with: {'; '.join(drifted[:3])}" if drifted else ""
                return f"{said}release {head.number} (profile {head.profile}) serves again{also}"
            except Unreachable:
                raise
            except RunbookError as second:
                error.details += second.details
                said += f"and release {head.number} did not come back either: {second.message}; "
                for node in self.nodes:
                    self._try(partial(node.audit, f"release {head.number} did not come back: {second.message}"))
        if len(ways) > 1:
            for node in self.nodes:
                releases.switch(node.conn, node.earlier[0])
                releases.restart(node.conn, kill=True)
        return f"{said}release {ways[0][0].number} is left to be started by systemd"

    def _start_earlier(self, placed: Sequence[Placed]) -> None:
        """Start it and have it speak sense. Raises RunbookError."""
        _, release = placed[0]
        together = all(one.hosts == release.hosts for _, one in placed) and release.hosts
        for group in [placed] if together or len(placed) == 1 else [[one] for one in placed]:
            start_again(group, budget=self.budget, report=self.report, kill=True)
        for node in self.nodes:
            node.audit(f"back to release {release.number}")
        prove(self.head.conn, self.loaded, release, self.report)

    def _condemn(self, node: Node, error: RunbookError) -> None:
        if node.release.verdict is None:
            releases.judge(node.conn, node.release, "failed", judged=now(), reason=error.message)
        node.audit(f"release {node.release.number} failed: {error.message}")

    def _try(self, work: Callable[[], T]) -> T | None:
        """No trouble with what is only written down may keep the release before from coming back."""
        try:
            return work()
        except RunbookError as trouble:
            text = f"the failure could not be written down: {trouble.message}"
            self.report.note(text, host=self.head.conn.name, level="warning")
            return None

    def _reach(self) -> None:
        """Wait for hosts that were lost, by a reboot or a cut link. Raises Unreachable after gate.COMES_BACK."""
        until = time.monotonic() + gate.COMES_BACK
        for node in self.nodes:
            while True:
                try:
                    invocation(node.conn)
                    break
                except RunbookError:
                    if time.monotonic() > until:
                        raise
                    node.conn.close()
                    time.sleep(gate.POLL)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
