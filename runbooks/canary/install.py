"""`invoke canary.install`: a systemd timer on each host that runs the battery and writes metrics for Prometheus."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from runbooks import paths
from runbooks.canary.hosts import seconds_of
from runbooks.canary.run import BATTERIES, LIMIT, probe_words
from runbooks.engine import lock
from runbooks.engine.artefact import push_zipapp
from runbooks.engine.errors import RunbookError, UsageError
from runbooks.engine.step import quote
from runbooks.surface import CHANGES_FOUND

if TYPE_CHECKING:
    from runbooks.engine.transport import Connection
    from runbooks.inventory.shape import Model, Server
    from runbooks.session import Session

TEMPLATES = Path(__file__).parents[2] / "templates"
SYSTEMD = "/etc/systemd/system"
SERVICE, TIMER = "runbooks-canary.service", "runbooks-canary.timer"
STATE = f"{paths.STATE}/canary/state.json"
IDLE = (
    f"for job in {paths.JOBS}/bench-* {paths.JOBS}/collectives-*; do "
    '[ ! -e "$job/lock" ] || flock -s -n "$job/lock" true || exit 9; done'
)
"""Fails while a job that measures is at work: its supervisor holds its lock to its end. 9: of the unit's successes
(SuccessExitStatus) a condition must be none."""
TEXTFILE = "/var/lib/prometheus/node-exporter/runbooks_canary.prom"
"""Where Debian's and Ubuntu's prometheus-node-exporter reads text files."""


def install_hosts(session: Session, *, every: str, battery: str, check: bool = False, remove: bool = False) -> int:
    """Exit code 3 where `check` found something to change. `remove`: take it off the hosts again."""
    if battery not in LIMIT:
        raise UsageError(f"there is no battery {battery!r}", details=[BATTERIES])
    pause = f"{seconds_of(every, '--every')}s"

    def one(conn: Connection) -> bool:
        if remove:
            return uninstall(conn, check=check)
        server, model = session.loaded.inventory.server, session.loaded.model_for(conn.name)
        return install(conn, server, model, every=pause, battery=battery, check=check)

    outcomes = session.each(one)
    failed = session.tell_errors(outcomes)
    done, about = ("removed", "its metrics and state too") if remove else ("installed", f"{battery}, every {every}")
    for outcome in outcomes:
        if outcome.value is not None:
            said = (f"would be {done}" if check else done) if outcome.value else f"{done} already"
            text = f"canary {said}: {about}" + ("" if remove else f"; metrics in {TEXTFILE}")
            state = ("would-change" if check else "changed") if outcome.value else "ok"
            session.report.emit("result", text, host=outcome.host, state=state)
    changes = any(outcome.value for outcome in outcomes)
    return failed or (CHANGES_FOUND if check and changes else 0)


def uninstall(conn: Connection, *, check: bool) -> bool:
    """Units, metrics and state; True when there was, or is, something to remove."""
    left = [f"{SYSTEMD}/{TIMER}", f"{SYSTEMD}/{SERVICE}", TEXTFILE, STATE]
    there = conn.ask(f"ls -d -- {shlex.join(left)} 2>/dev/null").out.split()
    if not there or check:
        return bool(there)
    run = secrets.token_hex(8)
    with lock.held(conn, run, "canary.install"):
        conn.ask(
            f"systemctl disable -q --now {TIMER} 2>/dev/null; systemctl stop {SERVICE} 2>/dev/null\n"
            f"rm -f -- {shlex.join(left)} && systemctl daemon-reload",
            deadline=60,
        )
        conn.ask(lock.audit_script(run, "canary.install", ("removed",)))
    return True


def install(conn: Connection, server: Server, model: Model, *, every: str, battery: str, check: bool) -> bool:
    """True when something was, or would be, changed."""
    files = units(push_zipapp(conn, "runbooks.canary.probe", "cli:main"), server, model, every=every, battery=battery)
    script = "\n".join(f"cat {quote(path)} 2>/dev/null; echo" for path in files)
    wanted = "\n".join(files.values()) + "\n"
    there = conn.ask(f"{script}\nsystemctl is-enabled {TIMER} 2>/dev/null; systemctl is-active {TIMER}").out
    if there == f"{wanted}enabled\nactive\n":
        return False
    if check:
        return True
    folders = [str(PurePosixPath(STATE).parent), str(PurePosixPath(TEXTFILE).parent)]
    run = secrets.token_hex(8)
    with lock.held(conn, run, "canary.install"):
        for path, content in files.items():
            conn.put(content.encode(), path)
        done = conn.ask(
            f"mkdir -p {shlex.join(folders)} && systemctl daemon-reload && systemctl enable -q {TIMER}"
            f" && systemctl restart {TIMER}",
            deadline=60,
        )
        if done.rc:
            raise RunbookError("the timer does not start", host=conn.name, details=done.err.splitlines()[-5:])
        conn.ask(lock.audit_script(run, "canary.install", (f"{battery}, every {every}",)))
    return True


def units(artefact: str, server: Server, model: Model, *, every: str, battery: str) -> Mapping[str, str]:
    """Path -> content of the two units. Pure."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    words = ["/usr/bin/env", *probe_words(artefact, server, model, battery), "--state", STATE, "--textfile", TEXTFILE]
    key_file = f"{paths.CURRENT}/api-key" if server.api_key is not None else ""
    folders = {str(PurePosixPath(STATE).parent), str(PurePosixPath(TEXTFILE).parent)}
    values = {
        "battery": battery,
        "unit": paths.UNIT_NAME,
        "key_file": key_file,
        "idle": IDLE.replace("$", "$$"),  # systemd would put its own variables in
        "command": shlex.join(words) + (" --key-file %d/api-key" if key_file else ""),
        "limit": f"{LIMIT[battery]:.0f}",
        "folders": " ".join(sorted(folders)),
        "every": every,
    }
    make = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    return {f"{SYSTEMD}/{name}": make.get_template(f"{name}.j2").render(values) for name in (SERVICE, TIMER)}
