"""A release that nobody confirms takes itself back: a timer on the host, for when the run that deploys is killed.

It is set when a new release becomes current and stopped when that is judged. Script and timer live in /run, so a full
disk stops neither, and a reboot clears both: a host that restarts comes up with the release that is current, whole.
"""

from __future__ import annotations

from runbooks import paths
from runbooks.deploy.releases import Release, switching
from runbooks.engine import lock
from runbooks.engine.step import quote
from runbooks.engine.transport import Connection

UNIT = "runbooks-fallback"
SCRIPT = f"/run/{UNIT}.sh"
GRACE = 400.0  # seconds beside the budget of a start: reading back, and the canary at its slowest


def on(conn: Connection, release: Release, previous: Release, *, budget: float) -> None:
    """From now on `previous` comes back by itself, unless `off` is called within the budget and GRACE (seconds)."""
    seconds = round(budget + GRACE)
    timer = f"--on-active={seconds} --timer-property=AccuracySec=1s"
    conn.ask(
        f"systemctl stop {UNIT}.timer 2>/dev/null; umask 077; cat >{SCRIPT} && "
        f"systemd-run --quiet --collect --unit={UNIT} {timer} /bin/sh {SCRIPT}",
        stdin=script(release, previous).encode(),
    )


def off(conn: Connection) -> None:
    """It is judged, or brought back already."""
    conn.ask(f"systemctl stop {UNIT}.timer 2>/dev/null; rm -f {SCRIPT}")


def script(release: Release, previous: Release) -> str:
    """Pure: what the host does by itself. Nothing, where somebody went on meanwhile."""
    reason = "nobody confirmed it in time: the run that deployed it is gone"
    judged = f'/"verdict": null/s/null/"failed"/; /"reason": null/s/null/"{reason}"/'
    line = f"release {release.number}: {reason}; back to release {previous.number}"
    return "\n".join(
        [
            f'[ "$(readlink {paths.CURRENT})" = {quote(release.folder)} ] || exit 0',
            switching(previous),
            f"systemctl reset-failed {paths.UNIT_NAME} 2>/dev/null; systemctl restart --no-block {paths.UNIT_NAME}",
            f"sed -i {quote(judged)} {release.folder}/release.json",
            lock.audit_script(release.content, "deploy", (line,)),
            "",
        ]
    )
