"""One changing run per host at a time, and who it is; and the audit log of what was changed."""

from __future__ import annotations

import getpass
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from runbooks import paths
from runbooks.engine.errors import RunbookError
from runbooks.engine.step import quote
from runbooks.engine.transport import Connection

EXPIRY = 2 * 3600  # seconds after its holder last refreshed it; a reboot clears /run, and the lock with it

_TAKE = """\
if mkdir {lock} 2>/dev/null; then :
elif [ "$(cat {lock}/run 2>/dev/null)" = {run} ]; then :
elif [ $(( $(date +%s) - $(stat -c %Y {lock} 2>/dev/null || date +%s) )) -gt {expiry} ]; then echo expired >&2
else cat {lock}/holder; exit 75
fi
printf %s {run} >{lock}/run; printf '%s\\n' {holder} >{lock}/holder; touch {lock}
"""

_RELEASE = """[ "$(cat {lock}/run 2>/dev/null)" != {run} ] || rm -rf {lock}"""


class Busy(RunbookError):
    """Another run holds the host."""


def who() -> str:
    """The person and machine that this run is for, as the lock and the audit log name it."""
    return f"{os.environ.get('SUDO_USER') or getpass.getuser()}@{socket.gethostname()}"


@contextmanager
def held(connection: Connection, run: str, what: str) -> Iterator[None]:
    """Hold the host's lock for a while. `run` names this run: taking it again refreshes it. Raises Busy."""
    take(connection, run, what)
    try:
        yield
    finally:
        release(connection, run)


def take(connection: Connection, run: str, what: str) -> None:
    """Take or refresh the lock; one exchange. Raises Busy, with the holder, since when, and how to release it."""
    holder = json.dumps({"who": who(), "pid": os.getpid(), "what": what, "since": int(time.time())})
    answer = connection.ask(
        _TAKE.format(lock=paths.LOCK, run=quote(run), holder=quote(holder), expiry=EXPIRY), deadline=10
    )
    if answer.rc == 75:
        raise busy(connection.name, answer.out)
    if answer.rc != 0:
        raise RunbookError("the lock could not be taken", host=connection.name, details=answer.err.splitlines()[-3:])


def busy(host: str, holder: str) -> Busy:
    """The error for a lock that somebody else holds."""
    try:
        found: Mapping[str, object] = json.loads(holder)
        minutes = (time.time() - float(str(found["since"]))) / 60
        line = f"held by {found['who']} (pid {found['pid']}) for {minutes:.0f} min: {found['what']}"
    except (ValueError, KeyError, TypeError):
        line = "held by a run that is just starting"
    return Busy("another run is changing this host", host=host, details=[line], next=f"invoke unlock --hosts {host}")


def release(connection: Connection, run: str) -> None:
    """Give the lock back if it is ours."""
    connection.ask(_RELEASE.format(lock=paths.LOCK, run=quote(run)), deadline=10)


def force_release(connection: Connection) -> str:
    """Take the lock away from whoever holds it; returns what it said of its holder, "" where there was none."""
    return connection.ask(f"cat {paths.LOCK}/holder 2>/dev/null; rm -rf {paths.LOCK}", deadline=10).out.strip()


def audit_script(run: str, step: str, lines: tuple[str, ...]) -> str:
    """Shell text that writes one JSON line to the audit log and to the journal. The caller has masked `lines`."""
    entry = json.dumps({"run": run, "who": who(), "step": step, "changes": list(lines)})
    return (
        f'rb_audit=$(printf \'{{"time":"%s",%s\' "$(date -u +%FT%TZ)" {quote(entry[1:])})\n'
        f"mkdir -p {os.path.dirname(paths.AUDIT)} && printf '%s\\n' \"$rb_audit\" >>{paths.AUDIT}\n"  # noqa: PTH120
        'logger -t runbooks -- "$rb_audit" 2>/dev/null || :'
    )
