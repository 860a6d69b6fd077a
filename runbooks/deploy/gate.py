"""Waits for a server that was just started. Three ends: it answers, it died (at once, with the cause), or time is up.

Alive is not healthy: only a real completion counts. And slow is not dead: a server that loads, compiles or captures
graphs is left alone until the budget is spent.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from runbooks import paths
from runbooks.deploy.deaths import Death, explain
from runbooks.deploy.look import MARK, SHOWN
from runbooks.engine.errors import NoAnswer
from runbooks.engine.report import Reporter
from runbooks.engine.secret import Secret
from runbooks.engine.step import quote
from runbooks.engine.transport import Connection
from runbooks.inventory.shape import Model, Server

POLL = 1.0  # seconds between two looks
ANSWER = 20  # seconds that one completion may take; the first compiles kernels, so it is asked again and again

_FOLLOW = """\
echo '{mark}unit'; systemctl show -p {shown} {unit}
echo '{mark}journal'; journalctl -u {unit} --after-cursor={cursor} -o cat --all --no-pager --show-cursor -n 2000
"""

# What a start looks like from outside: a phase a pattern; two numbers are a part and a whole.
PHASES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("loading weights", re.compile(r"[Ll]oading .*shards.*?\| *(\d+)/(\d+)")),
    ("loading weights", re.compile(r"Load weight begin")),
    ("weights loaded", re.compile(r"Load weight end")),
    ("making the KV cache", re.compile(r"KV Cache is allocated|Memory pool end")),
    ("capturing graphs", re.compile(r"Capturing batches.*?\| *(\d+)/(\d+)")),
    ("capturing graphs", re.compile(r"Capture .*cuda graph begin")),
    ("compiling kernels", re.compile(r"autotune|Tuning|JIT compil|Loading JIT ops", re.IGNORECASE)),
    ("warming up", re.compile(r"Uvicorn running|Application startup complete")),
    ("ready", re.compile(r"fired up and ready to roll")),
)
LISTENS = re.compile(r"Uvicorn running|fired up and ready to roll")


@dataclass
class Start:
    """What was seen of one start. `journal` are the lines of the unit since it was asked to start."""

    end: Literal["healthy", "died", "budget"] = "budget"
    seconds: float = 0.0
    journal: list[str] = field(default_factory=list)
    unit: dict[str, str] = field(default_factory=dict)
    text: str = ""
    death: Death | None = None
    phase: str = "starting"
    listens: bool = False
    last_answer: str = ""


def cursor(conn: Connection) -> str:
    """Where the journal ends now."""
    out = conn.ask("journalctl -n 0 --show-cursor --no-pager", deadline=20).out
    found = re.search(r"^-- cursor: (\S+)", out, re.MULTILINE)
    return found[1] if found else ""


def wait(
    conn: Connection,
    *,
    server: Server,
    model: Model,
    key: Secret | None,
    since: str,
    report: Reporter,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Start:
    """Follow the start from a journal cursor until one of the three ends. Budget: server.ready_budget seconds."""
    start, began = Start(), clock()
    at, first_pid = since, ""
    while True:
        at = _follow(conn, start, at)
        start.seconds = clock() - began
        first_pid = first_pid or _pid(start.unit)
        if _died(start.unit, first_pid):
            at = _follow(conn, start, at)
            start.end, start.death = "died", explain(start.journal, _kernel(conn, start.seconds), start.unit)
            return start
        _tell(start, report, conn.name, server.ready_budget)
        if start.listens:
            answer = ask(conn, "completion", server=server, model=model, key=key)
            start.last_answer = str(answer.get("error") or answer.get("text") or "")
            if answer.get("status") == 200 and "error" not in answer:
                start.end, start.text = "healthy", str(answer.get("text"))
                _follow(conn, start, at)
                report.progress("start", 1, 1, host=conn.name)
                return start
        if start.seconds > server.ready_budget:
            return start
        sleep(POLL)


def ask(conn: Connection, what: str, *, server: Server, model: Model, key: Secret | None) -> dict[str, Any]:
    """One question to the server, on the host. An answer that cannot be had is one with status 0."""
    source = (Path(__file__).parent / "probe.py").read_text()
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(server.host, server.host)
    question = {
        "url": f"http://{host}:{server.port}",
        "key": key.reveal() if key else "",
        "model": model.served_name,
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


def _follow(conn: Connection, start: Start, at: str) -> str:
    """Read what is new; returns the new cursor."""
    script = _FOLLOW.format(mark=MARK, shown=SHOWN, unit=paths.UNIT_NAME, cursor=quote(at))
    parts = dict(part.split("\n", 1) for part in conn.ask(script, deadline=60).out.split(MARK)[1:])
    start.unit = dict(line.partition("=")[::2] for line in parts.get("unit", "").splitlines())
    for line in parts.get("journal", "").splitlines():
        if line.startswith("-- cursor: "):
            at = line.removeprefix("-- cursor: ")
        elif line != "-- No entries --":
            start.journal.append(line.rpartition("\r")[2] if "\r" in line.strip("\r") else line.strip("\r"))
    return at


def _died(unit: Mapping[str, str], first_pid: str) -> bool:
    """Dead, or dead and coming again: a restart of systemd's is a death too."""
    if unit.get("ActiveState") == "failed" or unit.get("SubState") in ("auto-restart", "dead", "failed"):
        return True
    pid = _pid(unit)
    return bool(first_pid and pid and pid != first_pid)


def _pid(unit: Mapping[str, str]) -> str:
    pid = unit.get("MainPID", "")
    return "" if pid == "0" else pid


def _kernel(conn: Connection, seconds: float) -> list[str]:
    script = f"journalctl -k --since=-{int(seconds) + 60}s -o cat --no-pager -n 500"
    try:
        return conn.ask(script, deadline=20).out.splitlines()
    except NoAnswer:
        return []


def _tell(start: Start, report: Reporter, host: str, budget: int) -> None:
    """One live line: the phase, with its own count where it has one, and the time against the budget."""
    start.listens = start.listens or any(LISTENS.search(line) for line in start.journal[-400:])
    count = ""
    for line in reversed(start.journal[-400:]):
        if hit := next(((phase, found) for phase, pattern in PHASES if (found := pattern.search(line))), None):
            start.phase = hit[0]
            count = f" {hit[1][1]} of {hit[1][2]}" if hit[1].groups() else ""
            break
    report.progress("start", min(start.seconds, budget), budget, host=host, unit="s", detail=start.phase + count)
