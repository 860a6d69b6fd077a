"""Reboot a host and know that it was rebooted: its boot_id differs, and it answers."""

from __future__ import annotations

import time

from runbooks.engine.errors import HostKeyChanged, HostKeyUnknown, NoAnswer, StepFailed, Unreachable
from runbooks.engine.report import Reporter
from runbooks.engine.transport import Connection

_BOOT_ID = "cat /proc/sys/kernel/random/boot_id"

# Detached, so that the answer still gets through; an inhibitor (apt at work) makes systemctl refuse, and is heard.
_REBOOT = """\
if [ -d /run/systemd/system ]; then
  systemd-inhibit --list --no-legend --mode=block 2>/dev/null | grep -w shutdown >&2 && exit 75
  systemd-run --quiet --collect --on-active=1 --timer-property=AccuracySec=100ms systemctl reboot
else (sleep 1; reboot) >/dev/null 2>&1 </dev/null & fi
"""


def reboot(connection: Connection, *, limit: float, report: Reporter) -> None:
    """Restart the host and wait until it is back with another boot_id.

    `limit` is in seconds, from the command to the first answer. Raises StepFailed when something inhibits the reboot,
    when the host never went down, and when it did not come back; HostKeyChanged at once when another one came back.
    """
    before = connection.ask(_BOOT_ID).out.strip()
    answer = connection.ask(_REBOOT)
    if answer.rc != 0:
        raise StepFailed(
            "the host refuses to reboot",
            host=connection.name,
            details=answer.err.splitlines()[-3:],
            next="the same command once nothing stands there any more: systemd-inhibit --list --mode=block",
        )
    connection.close()
    began, wait = time.monotonic(), 1.0
    while time.monotonic() - began < limit:
        time.sleep(wait)
        wait = min(1.5 * wait, 10.0)
        now = _boot_id(connection)
        if now and now != before:
            report.progress("reboot", limit, limit, host=connection.name)
            report.note(f"back after {time.monotonic() - began:.0f} s, with a new boot_id", host=connection.name)
            return
        state = "still up" if now else "down"
        report.progress("reboot", time.monotonic() - began, limit, host=connection.name, unit="s", detail=f"({state})")
    what = "never went down" if _boot_id(connection) == before else "did not come back"
    raise StepFailed(
        f"the host {what} within {limit:.0f} s of its reboot",
        host=connection.name,
        next=connection.target.ssh,
        page="host-unreachable",
    )


def _boot_id(connection: Connection) -> str | None:
    try:
        return connection.ask(_BOOT_ID, deadline=5).out.strip()
    except (HostKeyChanged, HostKeyUnknown):
        raise  # it is back, as somebody else: no waiting mends that
    except (Unreachable, NoAnswer):
        connection.close()
        return None
