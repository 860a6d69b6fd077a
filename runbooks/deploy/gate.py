"""Waits for a server that was just started. Three ends: it answers, it died (at once, with the cause), or time is up.

Alive is not healthy: only a real completion counts. And slow is not dead: a server that loads, compiles or captures
graphs is left alone until the budget is spent.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from runbooks import paths
from runbooks.deploy.look import MARK, SHOWN
from runbooks.diagnose import Cause, classify
from runbooks.engine.errors import NoAnswer
from runbooks.engine.report import Reporter
from runbooks.engine.secret import Secret
from runbooks.engine.step import quote
from runbooks.engine.transport import Connection

POLL = 1.0  # seconds between two looks
ANSWER = 20  # seconds that one completion may take; the first compiles kernels, so it is asked again and again
NO_START = 30.0  # seconds after which a unit that is down and was not started again counts as dead

# Only what belongs to this start: the old server's last words are no symptom of the new one.
_FOLLOW = """\
echo '{mark}unit'; systemctl show -p {shown} {unit}
id={invocation}; [ -n "$id" ] || id=$(systemctl show -p InvocationID --value {unit})
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
    end: Literal["healthy", "died", "budget"] = "budget"
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

    @property
    def died(self) -> bool:
        """Dead, or dead and coming again: a restart of systemd's is a death too."""
        if not self.invocation:
            down = self.unit.get("ActiveState") in ("failed", "inactive")
            return down and self.seconds > NO_START
        ended = self.unit.get("ActiveState") == "failed" or self.unit.get("SubState") in ("auto-restart", "dead")
        return ended or self.unit.get("InvocationID") != self.invocation


def wait(
    conn: Connection,
    endpoint: Endpoint,
    *,
    before: str,
    budget: float,
    report: Reporter,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Start:
    """Follow the start that comes after invocation `before` until one of the three ends. `budget` in seconds."""
    start, began = Start(before), clock()
    while True:
        _follow(conn, start)
        start.seconds = clock() - began
        if start.died:
            _follow(conn, start)
            start.end = "died"
            start.cause = classify("\n".join(start.journal), _kernel(conn, start.seconds), start.unit)
            break
        report.progress(
            "start", round(min(start.seconds, budget)), budget, host=conn.name, unit="s", detail=_phase(start)
        )
        if start.listens:
            answer = ask(conn, endpoint, "completion")
            start.last_answer = str(answer.get("error") or answer.get("text") or "")
            if answer.get("status") == 200 and "error" not in answer:
                start.end, start.text = "healthy", str(answer.get("text"))
                _follow(conn, start)
                break
        if start.seconds > budget:
            break
        sleep(POLL)
    report.progress("start", budget, budget, host=conn.name, unit="s")
    return start


def ask(conn: Connection, endpoint: Endpoint, what: str) -> dict[str, Any]:
    """One question to the server, on the host. An answer that cannot be had is one with status 0."""
    source = (Path(__file__).parent / "probe.py").read_text()
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(endpoint.host, endpoint.host)
    question = {
        "url": f"http://{host}:{endpoint.port}",
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
    start.unit = dict(line.partition("=")[::2] for line in parts.get("unit", "").splitlines())
    now = start.unit.get("InvocationID", "")
    if not start.invocation and now not in ("", start.before):
        start.invocation = now
    for line in parts.get("journal", "").splitlines():
        if line.startswith("-- cursor: "):
            start.cursor = line.removeprefix("-- cursor: ")
        elif line not in ("", "-- No entries --"):
            start.journal.append(line.strip("\r").rpartition("\r")[2])


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
