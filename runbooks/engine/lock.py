"""One changing run per host at a time, and who it is; and the audit log of what was changed.

The lock is a folder in /run, so a reboot clears it. It names its holder: person, machine, process. A holder that died
on this very machine is seen to be dead, and its lock taken over; from another machine that cannot be seen, so the lock
stands until it expires or `invoke unlock` takes it away. A job at work on the host keeps its run's lock fresh.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import posixpath
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runbooks import paths
from runbooks.engine.errors import RunbookError
from runbooks.engine.report import span
from runbooks.engine.step import quote
from runbooks.engine.transport import Connection

EXPIRY = 2 * 3600  # seconds after its holder, or a job of it, last refreshed it
WAIT_STEP = 2.0  # seconds between two tries of a run that waits

_left: set[tuple[str, str]] = set()
"""Host and run of the locks that this process may have left behind when its link broke: nobody else can know of it."""

# Under a second lock, which the kernel drops by itself: two runs that find it expired must not both take it.
_TAKE = """\
exec 8>>{lock}.guard && flock -w 5 8 || exit 1
if [ -d {lock} ] && [ "$(cat {lock}/run 2>/dev/null)" != {run} ] && [ "$(cat {lock}/run 2>/dev/null)" != {dead} ] &&
   [ $(( $(date +%s) - $(stat -c %Y {lock}) )) -le {expiry} ]; then cat {lock}/holder; exit 75
fi
mkdir -p {lock} && printf %s {run} >{lock}/run && printf '%s\\n' {holder} >{lock}/holder && touch {lock} ||
  {{ rm -rf {lock}; df -h {lock}.guard >&2; exit 1; }}
"""

# The journal's copy is written beside the work: waiting for it would cost as much as a small step does.
_AUDIT = """\
mkdir -p {folder} || :
rb_audit() {{
  rb_entry="{{\\"time\\":\\"$(date -u +%FT%TZ)\\",$1"
  printf '%s\\n' "$rb_entry" >>{file} ||
    echo 'the audit log cannot be written; the journal has it: journalctl -t runbooks'
  logger -t runbooks -- "$rb_entry" >/dev/null 2>&1 &
}}"""

_RELEASE = """[ "$(cat {lock}/run 2>/dev/null)" != {run} ] || rm -rf {lock}"""


class Busy(RunbookError):
    """Another run holds the host, or this one no more. `holder` is what the lock says of it."""

    holder: Mapping[str, object] = {}


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


def take(connection: Connection, run: str, what: str, *, waiting: Callable[[Busy], bool] = lambda _busy: False) -> bool:
    """Take or refresh the lock; one exchange when it is free. Returns whether it was somebody's before.

    While another run holds it, `waiting` is asked whether to go on trying; when not, Busy is raised, which names the
    holder, since when, and how to release it.
    """
    dead, met = "", False
    while True:
        try:
            _take(connection, run, what, dead)
            return met
        except Busy as busy:
            met = True
            holder = str(busy.holder.get("run", ""))
            if not dead and ((connection.name, holder) in _left or _is_dead(busy.holder)):
                dead = holder
            elif waiting(busy):
                time.sleep(WAIT_STEP)
            else:
                raise


def _take(connection: Connection, run: str, what: str, dead: str) -> None:
    holder = {"who": who(), "pid": os.getpid(), "what": what, "since": int(time.time()), "run": run, "place": _place()}
    _left.add((connection.name, run))  # until the host has said what became of it
    answer = connection.ask(
        _TAKE.format(
            lock=paths.LOCK, run=quote(run), dead=quote(dead or run), holder=quote(json.dumps(holder)), expiry=EXPIRY
        ),
        deadline=15,
    )
    _left.discard((connection.name, run))
    if answer.rc == 75:
        raise busy(connection.name, answer.out)
    if answer.rc != 0:
        raise RunbookError("the lock could not be taken", host=connection.name, details=answer.err.splitlines()[-3:])


def busy(host: str, holder: str) -> Busy:
    """The error for a lock that somebody else holds."""
    found = _parsed(holder)
    error = Busy(
        "another run is changing this host",
        host=host,
        details=[describe(holder)],
        next=f"the same command with --wait, or, if that run is gone: invoke unlock --hosts {host}",
    )
    error.holder = found
    return error


def lost(host: str) -> Busy:
    """The error for a run whose lock is not there any more."""
    return Busy(
        "this run holds the host no more",
        host=host,
        details=["the lock of this run is gone: it expired, or `invoke unlock` took it away"],
        next=f"invoke status --hosts {host}",
    )


def describe(holder: str) -> str:
    """What a lock's holder is, in a line; a dead one is called dead, for the next run takes its lock over."""
    found = _parsed(holder)
    try:
        age = span(time.time() - float(str(found["since"])))
        dead = ", dead: the next run takes it over" if _is_dead(found) else ""
        return f"held by {found['who']} (pid {found['pid']}{dead}) for {age}: {found['what']}"
    except (ValueError, KeyError):
        return "held by a run that is just starting"


def _parsed(holder: str) -> Mapping[str, object]:
    try:
        found = json.loads(holder)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _place() -> str:
    """This machine, boot and process namespace, and when this process began: what makes a pid mean one process."""
    here = [socket.gethostname(), _read("/proc/sys/kernel/random/boot_id")]
    here += [str(Path("/proc/self/ns/pid").readlink())] if Path("/proc/self/ns/pid").exists() else []
    return f"{hashlib.sha256(' '.join(here).encode()).hexdigest()[:12]} {_started(os.getpid())}"


def _is_dead(holder: Mapping[str, object]) -> bool:
    """Whether the holder was a process of this machine that is no more."""
    place, pid = str(holder.get("place", "")), holder.get("pid")
    if not holder.get("run") or not isinstance(pid, int) or place.split(" ")[0] != _place().split(" ")[0]:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return place.split(" ")[1:] != [_started(pid)]


def _started(pid: int) -> str:
    """Its start time in clock ticks; "" where there is no /proc."""
    return (_read(f"/proc/{pid}/stat").rpartition(")")[2].split() + [""] * 20)[19]


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def release(connection: Connection, run: str) -> None:
    """Give the lock back if it is ours. Where the link is gone, this process's next run takes it over."""
    _left.add((connection.name, run))
    connection.ask(_RELEASE.format(lock=paths.LOCK, run=quote(run)), deadline=10)
    _left.discard((connection.name, run))


def force_release(connection: Connection) -> str:
    """Take the lock away from whoever holds it; returns what it said of its holder, "" where there was none."""
    return connection.ask(f"cat {paths.LOCK}/holder 2>/dev/null; rm -rf {paths.LOCK}", deadline=10).out.strip()


@dataclass(frozen=True)
class Held:
    """A lock that stands. `life`: why its holder is believed to be at work; "" where the next run takes it anyway."""

    said: str
    life: str


def look(connection: Connection) -> Held | None:
    """Who holds the host, and whether that run is alive as far as it can be told from here; None: nobody."""
    age = f"echo $(( $(date +%s) - $(stat -c %Y {paths.LOCK}) ))"
    script = f"[ ! -d {paths.LOCK} ] || {{ {age}; cat {paths.LOCK}/holder 2>/dev/null; }}"
    old, _, holder = connection.ask(script, deadline=10).out.strip().partition("\n")
    if not old:
        return None
    found = _parsed(holder)
    if int(old) > EXPIRY or _is_dead(found):
        life = ""
    elif str(found.get("place", "")).split(" ")[0] == _place().split(" ")[0]:
        life = "that run is alive"
    else:
        life = "whether that run is alive cannot be told from here"
    return Held(describe(holder), life)


def audit_script(run: str, step: str, lines: tuple[str, ...]) -> str:
    """Shell text that writes one JSON line to the audit log and to the journal. The caller has masked `lines`."""
    return f"{audit_function()}\n{audit_call(run, step, lines)}"


def audit_function() -> str:
    """The first half of it, which a script with many lines needs once."""
    return _AUDIT.format(folder=posixpath.dirname(paths.AUDIT), file=paths.AUDIT)


def audit_call(run: str, step: str, lines: tuple[str, ...]) -> str:
    """The second half, which writes the line."""
    entry = json.dumps({"run": run, "who": who(), "step": step, "changes": list(lines)})
    return f"rb_audit {quote(entry[1:])}"
