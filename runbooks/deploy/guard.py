"""A release that nobody confirms takes itself back: by a timer on the host, for when the run that deploys is killed,
and before the server's start at boot, for when the host restarts as well.

It is set before a new release becomes current and taken away when that is judged. It acts only where that release is
current and not judged, so one that was left behind does nothing.

It and a run that deploys or goes back never act at the same time: both take the lock of `paths.SWITCHING` first. A run
that comes while it is at work waits until that is done, and looks again; one that comes before puts it off (`settle`).
"""

from __future__ import annotations

from runbooks import paths
from runbooks.deploy.releases import SYSTEM, Release, restarting, switching
from runbooks.engine import lock
from runbooks.engine.errors import RunbookError
from runbooks.engine.step import quote
from runbooks.engine.transport import Connection

UNIT = "runbooks-fallback"
SCRIPT = f"{paths.ROOT}/{UNIT}.sh"
PATIENCE = 60  # seconds; it is held for some
SERVICE, TIMER = f"{SYSTEM}/{UNIT}.service", f"{SYSTEM}/{UNIT}.timer"
AT_BOOT = f"{SYSTEM}/multi-user.target.wants/{UNIT}.service"
GRACE = 520.0  # seconds beside the budget of a start: the old server's end, reading back, and the canary at its slowest

_SERVICE = f"""\
[Unit]
Description=The release before comes back: nobody confirmed the one that is current
Before={paths.UNIT_NAME}

[Service]
Type=oneshot
ExecStart=/bin/sh {SCRIPT}
"""

_TIMER = """\
[Unit]
Description=Until a release has to be confirmed

[Timer]
OnActiveSec=%d
AccuracySec=1s
"""


def settle(conn: Connection, current: Release | None = None) -> None:
    """What a killed run left behind does nothing from now on, for as long as it waits by itself: its time begins anew.

    If it is at work, this returns when that is done. With `current`: raises RunbookError where that is no more current.
    """
    answer = conn.ask(
        f"{_LOCKED}; [ ! -e {TIMER} ] || systemctl restart {UNIT}.timer; systemctl stop {UNIT}.service 2>/dev/null; "
        f"readlink {paths.CURRENT}",
        deadline=PATIENCE + 30,
    )
    if answer.rc == BUSY:
        raise _busy(conn)
    there = answer.out.strip()
    if current is not None and there not in ("", current.folder):
        raise RunbookError(
            f"the host went back from release {current.number} by itself before it was confirmed",
            host=conn.name,
            step="deploy",
            details=[f"current is {there}"],
            next=f"invoke audit --hosts {conn.name}",
        )


def on(conn: Connection, release: Release, previous: Release, *, budget: float) -> None:
    """From now on `previous` comes back by itself, unless `off` is called within the budget and GRACE (seconds), or
    when the host restarts before. Raises RunbookError where that cannot be written down.
    """
    timer = _TIMER % round(budget + GRACE)
    answer = conn.ask(
        f"{_LOCKED}; {_OFF}; umask 022; cat >{SCRIPT} && printf %s {quote(_SERVICE)} >{SERVICE} && "
        f"printf %s {quote(timer)} >{TIMER} && mkdir -p $(dirname {AT_BOOT}) && ln -sfn ../{UNIT}.service {AT_BOOT} && "
        f"sync -f {SCRIPT} && sync -f {SERVICE} && systemctl daemon-reload && systemctl start {UNIT}.timer",
        stdin=script(release, previous).encode(),
        deadline=PATIENCE + 90,
    )
    if answer.rc == BUSY:
        raise _busy(conn)
    if answer.rc != 0:
        raise RunbookError(
            "the way back by itself could not be prepared",
            host=conn.name,
            step="deploy",
            details=answer.err.strip().splitlines()[-3:],
            next=f"df -h {paths.ROOT} {SYSTEM}",
        )


def off(conn: Connection) -> None:
    """It is judged, or brought back already."""
    conn.ask(f"{_LOCKED}; {_OFF}", deadline=PATIENCE + 30)


def _busy(conn: Connection) -> RunbookError:
    return RunbookError(
        f"the host is going back to an earlier release by itself, and was not done within {PATIENCE} s",
        host=conn.name,
        step="deploy",
        next=f"ssh to {conn.name}: systemctl status {UNIT}.service",
    )


BUSY = 75
_LOCKED = f"exec 9>>{paths.SWITCHING}; flock -w {PATIENCE} 9 || exit {BUSY}"
_OFF = f"systemctl stop {UNIT}.timer {UNIT}.service 2>/dev/null; rm -f {AT_BOOT} {TIMER} {SERVICE} {SCRIPT}"


def script(release: Release, previous: Release) -> str:
    """Pure: what the host does by itself. Nothing, where somebody went on meanwhile."""
    reason = "nobody confirmed it in time: the run that deployed it is gone"
    judged = f'/"verdict": null/s/null/"failed"/; /"reason": null/s/null/"{reason}"/'
    line = f"release {release.number}: {reason}; back to release {previous.number}"
    record = f"{release.folder}/release.json"
    return "\n".join(
        [
            f"exec 9>>{paths.SWITCHING}; flock -n 9 || exit 0  # a run is at it: it has set the time anew",
            f'if [ "$(readlink {paths.CURRENT})" = {quote(release.folder)} ] &&',
            f"  grep -q '\"verdict\": null' {record}; then",
            switching(previous),
            restarting(kill=True),
            f"sed -i {quote(judged)} {record}",
            "went=yes",
            "fi",
            f"rm -f {AT_BOOT} {TIMER} {SERVICE} {SCRIPT}",
            "exec 9>&-",
            '[ "${went:-}" = yes ] || exit 0',
            lock.audit_script("the host itself", "deploy", (line,)),
            "",
        ]
    )
