"""Waits for a server that was just started. Three ends: it answers, it died (at once, with the cause), or time is up.

Alive is not healthy: only a real completion counts. And slow is not dead: a server that loads, compiles or captures
graphs is left alone until the budget is spent.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from runbooks import paths
from runbooks.deploy.look import MARK, SHOWN
from runbooks.diagnose import Cause, classify
from runbooks.engine.errors import NoAnswer, RunbookError, Unreachable
from runbooks.engine.report import Reporter
from runbooks.engine.secret import Secret
from runbooks.engine.step import quote
from runbooks.engine.transport import Connection
from runbooks.inventory.beside import beside

POLL = 1.0  # seconds between two looks
ANSWER = 20  # seconds that one completion may take; the first compiles kernels, so it is asked again and again
COMES_BACK = 600.0  # seconds that a lost host gets: one with eight cards and 768 GB takes minutes to boot
STOPS = 130.0  # seconds that the server before has to end, beside the budget: a busy one takes TimeoutStopSec, 120
NO_START = 30.0  # seconds after which a unit that is down and was not started again counts as dead

# Only what belongs to this start: the old server's last words are no symptom of the new one. While systemd still has a
# job for the unit, what runs is not what was asked for: a crash or the host itself may have started the old one again.
_FOLLOW = """\
echo '{mark}boot'; cat /proc/sys/kernel/random/boot_id
echo '{mark}unit'; u=$(systemctl show -p {shown} {unit}); echo "$u"
id={invocation}; [ -n "$id" ] || echo "$u" | grep -q '^Job=[1-9]' || id=$(echo "$u" | sed -n 's/^InvocationID=//p')
echo '{mark}journal'
[ -z "$id" ] || [ "$id" = '{before}' ] ||
  journalctl _SYSTEMD_INVOCATION_ID=$id + INVOCATION_ID=$id {after} -o cat --all --no-pager --show-cursor -n 2000
"""

# What a start looks like from outside: a phase a pattern; two numbers are a part and a whole.
PHASES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("loading weights", re.compile(r"[Ll]oading .*shards.*?\| *(\d+)/(\d+)")),
    ("loading weights", re.compile(r"Load weight begin")),
    ("weights loaded", re.compile(r"Load weight end")),
    ("making the KV cache", re.compile(r"KV Cache is allocated|Memory pool end")),
    ("capturing graphs", re.compile(r"Capturing batches.*?\| *(\d+)/(\d+)")),
    ("capturing graphs", re.compile(r"Capture .*cuda graph begin", re.IGNORECASE)),
    ("compiling kernels", re.compile(r"autotune|Tuning|JIT compil|Loading JIT ops", re.IGNORECASE)),
    ("warming up", re.compile(r"Uvicorn running|Application startup complete")),
    ("ready", re.compile(r"fired up and ready to roll")),
)
NO_PORT = re.compile(r"error while attempting to bind on address")
"""After it SGLang neither serves nor ends: seen with 0.5.10.post1 and 0.5.23."""

LISTENS = re.compile(r"Uvicorn running|fired up and ready to roll")


@dataclass(frozen=True)
class Endpoint:
    """Where a release answers, and how it wants to be asked."""

    host: str
    port: int
    model: str
    key: Secret | None


@dataclass
class Start:
    """What was seen of one start. `journal` are its own lines; `text` is the first real completion."""

    before: str
    end: Literal["healthy", "died", "rebooted", "budget"] = "budget"
    seconds: float = 0.0
    journal: list[str] = field(default_factory=list)
    unit: dict[str, str] = field(default_factory=dict)
    cursor: str = ""
    invocation: str = ""
    phase: str = "stopping the old server"
    listens: bool = False
    text: str = ""
    last_answer: str = ""
    cause: Cause | None = None
    boot: str = ""  # the host's boot_id, as first seen
    rebooted: bool = False
    portless: bool = False

    @property
    def awaited(self) -> bool:
        """Whether systemd has not yet done what it was asked for."""
        return self.unit.get("Job", "") not in ("", "0")

    @property
    def died(self) -> bool:
        """Dead, or dead and coming again: a restart of systemd's is a death too."""
        if not self.invocation:
            down = self.unit.get("ActiveState") in ("failed", "inactive")
            return down and not self.awaited and self.seconds > NO_START
        ended = self.unit.get("ActiveState") == "failed" or self.unit.get("SubState") in ("auto-restart", "dead")
        return self.portless or ended or self.unit.get("InvocationID") != self.invocation


def wait(
    conn: Connection,
    endpoint: Endpoint,
    *,
    before: str,
    budget: float,
    report: Reporter,
    others: Sequence[tuple[Connection, str]] = (),
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Start:
    """Follow the start that comes after invocation `before` to one of the three ends. `budget`: seconds from then on.

    `others`: hosts that compute for this one, each with the invocation before; one that dies ends the start. A lost
    host gets COMES_BACK to answer again; that it was rebooted meanwhile is an end of its own.
    """
    start, began, heard, stopping = Start(before), clock(), clock(), 0.0
    if not before:
        start.phase = "waiting for systemd"  # nothing of ours has run since the host was booted
    watched = [(conn, start), *((other, Start(was)) for other, was in others)]
    while True:
        try:
            for one, seen in watched:
                _follow(one, seen)
                seen.seconds = clock() - began
            heard = clock()
        except (Unreachable, NoAnswer):
            if clock() - heard >= COMES_BACK:
                raise
            report.progress("start", 0, None, host=conn.name, detail="the host does not answer")
            conn.close()
            sleep(POLL)
            continue
        if ended := next(((one, seen) for one, seen in watched if seen.rebooted or seen.died), None):
            return _ended(start, *ended)
        if not start.invocation:
            stopping = min(start.seconds, STOPS)
        spent = start.seconds - stopping
        report.progress("start", round(min(spent, budget)), budget, host=conn.name, unit="s", detail=_phase(start))
        if start.listens:
            answer = ask(conn, endpoint, "completion")
            start.last_answer = str(answer.get("error") or answer.get("text") or "")
            if answer.get("status") == 200 and "error" not in answer:
                start.end, start.text = "healthy", str(answer.get("text"))
                _follow(conn, start)
                break
        if spent > budget:
            break
        sleep(POLL)
    report.progress("start", budget, budget, host=conn.name, unit="s")
    return start


def _ended(start: Start, conn: Connection, seen: Start) -> Start:
    """`start` with the death that was seen, its own or that of a host which computes for it."""
    if seen.rebooted:
        start.end, start.cause = "rebooted", None
        return start
    _follow(conn, seen)
    start.end = "died"
    start.cause = classify("\n".join(seen.journal), _kernel(conn, seen.seconds), seen.unit)
    return start


def passed(start: Start, number: int, name: str, budget: float) -> Start:
    """The start of release `number`, if it was a healthy one. Raises RunbookError with the cause and the last lines."""
    if start.end == "healthy":
        return start
    if start.end == "rebooted":
        raise RunbookError(
            f"the host was restarted while release {number} was starting",
            host=name,
            step="deploy",
            details=[f"it was {start.phase}"],
            next=f"journalctl -b -1 -p warning -n 50; invoke health --hosts {name}",
            page="host-unreachable",
        )
    if start.end == "died" and start.cause is not None:
        raise RunbookError(
            f"release {number} died after {start.seconds:.0f} s: {start.cause.text}",
            host=name,
            step="deploy",
            details=start.cause.evidence,
            next=start.cause.next,
            page=start.cause.page,
        )
    details = [f"it was {start.phase}"] + ([f"last answer: {start.last_answer[:200]}"] if start.last_answer else [])
    raise RunbookError(
        f"release {number} did not answer within {budget:.0f} s",
        host=name,
        step="deploy",
        details=details + start.journal[-3:],
        next="raise server.ready_budget if it was still making progress",
        page="server-down",
    )


def ask(conn: Connection, endpoint: Endpoint, what: str) -> dict[str, Any]:
    """One question to the server, on the host. An answer that cannot be had is one with status 0."""
    source = (Path(__file__).parent / "probe.py").read_text()
    question = {
        "url": f"http://{beside(endpoint)}",
        "key": endpoint.key.reveal() if endpoint.key else "",
        "model": endpoint.model,
        "ask": what,
        "timeout": ANSWER,
    }
    try:
        answer = conn.ask(f"python3 -c {quote(source)}", stdin=json.dumps(question).encode(), deadline=ANSWER + 10)
        return dict(json.loads(answer.out.splitlines()[-1]))
    except (ValueError, IndexError):
        return {"status": 0, "error": answer.err.strip()[-300:]}
    except NoAnswer as error:
        return {"status": 0, "error": error.message}


def _follow(conn: Connection, start: Start) -> None:
    """Read the unit's state and what its journal has new."""
    script = _FOLLOW.format(
        mark=MARK,
        shown=SHOWN,
        unit=paths.UNIT_NAME,
        invocation=start.invocation,
        before=start.before,
        after=f"--after-cursor={quote(start.cursor)}" if start.cursor else "",
    )
    parts = dict(part.split("\n", 1) for part in conn.ask(script, deadline=60).out.split(MARK)[1:])
    boot = parts.get("boot", "").strip()
    start.rebooted = bool(start.boot and boot and boot != start.boot)
    start.boot = start.boot or boot
    start.unit = dict(line.partition("=")[::2] for line in parts.get("unit", "").splitlines())
    now = start.unit.get("InvocationID", "")
    if not start.invocation and not start.awaited and now not in ("", start.before):
        start.invocation = now
    for line in parts.get("journal", "").splitlines():
        if line.startswith("-- cursor: "):
            start.cursor = line.removeprefix("-- cursor: ")
        elif line not in ("", "-- No entries --"):
            start.journal.append(line.strip("\r").rpartition("\r")[2])
            start.portless = start.portless or NO_PORT.search(line) is not None


def _phase(start: Start) -> str:
    recent = start.journal[-400:]
    start.listens = start.listens or any(LISTENS.search(line) for line in recent)
    if start.invocation:
        start.phase = "starting"
    for line in reversed(recent):
        if hit := next(((phase, found) for phase, pattern in PHASES if (found := pattern.search(line))), None):
            count = f" {hit[1][1]} of {hit[1][2]}" if hit[1].groups() else ""
            start.phase = hit[0] + count
            break
    return start.phase


def _kernel(conn: Connection, seconds: float) -> str:
    try:
        return conn.ask(f"journalctl -k --since=-{int(seconds) + 60}s -o cat --no-pager -n 500", deadline=20).out
    except NoAnswer:
        return ""
