"""Long work as a durable job on the host: truth in files, systemd only the launcher.

A job is a folder `<name>-<hash of content>`, mode 0700, with `script`, `uploads/`, `log`, `rc`, `boot_id`, and a `lock`
that its supervisor holds while it lives. A controller that dies, a cut link or a closed laptop do not touch it; the
same job started again attaches to the one that runs; one that ended is never taken for today's. The script and the
uploads are removed at the end, the log stays.

Known traps answered here: a transient unit is collected with its exit code (so `rc` is a file); systemd 252 expands
`$VAR` in argv (so argv is one path); HOME and PATH are unset there; a daemon started by a postinst would die with the
unit's control group (so KillMode=process); needrestart would restart services (suspended); `tail -f` would block the
shell (so the log is followed by bounded polls from an offset).
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from runbooks import paths
from runbooks.engine.errors import NoAnswer, StepFailed, Unreachable
from runbooks.engine.report import Reporter
from runbooks.engine.secret import Secret
from runbooks.engine.step import quote
from runbooks.engine.transport import Connection

LOG_LIMIT = 64 * 1024 * 1024  # bytes; a longer log keeps its last mebibyte and goes on
KEPT_JOBS = 40  # ended jobs whose logs are kept
POLL_TENTHS = 20  # one poll waits up to two seconds on the host for something new
IDLE_LIMIT = 5.0  # seconds that nobody may hold a job's lock: the launcher takes that long at worst
TAIL_LINES = 40
PATIENCE = 600.0  # seconds that a lost link may take to come back while a job is followed

_SUPERVISOR = """\
#!/bin/sh
cd "{folder}" || exit 1
exec 9>>lock; flock 9
export HOME=/root USER=root LOGNAME=root LC_ALL=C.UTF-8
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 APT_LISTCHANGES_FRONTEND=none PYTHONUNBUFFERED=1
export UPLOADS="{folder}/uploads" JOB="{folder}"
( while sleep 5; do
    [ "$(stat -c %s log)" -le {log_limit} ] || {{ tail -c 1048576 log >log.last; cat log.last >log; rm -f log.last; }}
  done ) 9>&- & guard=$!
timeout -k 10 {limit:.0f} sh -e ./script >>log 2>&1 </dev/null 9>&-
rc=$?
[ "$rc" -ne 124 ] && [ "$rc" -ne 137 ] || echo "{limit:.0f} s are over: the job was ended" >>log
kill "$guard" 2>/dev/null
rm -rf script uploads
echo "$rc" >rc.new && mv rc.new rc
"""

_START = """\
umask 077
mkdir -p {jobs} && cd {jobs} || exit 1
ls -1dt -- */ 2>/dev/null | tail -n +{kept} | while read -r old; do
  [ ! -e "$old/rc" ] || rm -rf -- "./$old"
done
if [ -e {name}/lock ] && ! flock -n {name}/lock true; then echo attached; exit 0; fi
rm -rf {name} && mkdir -p {name}/uploads && cd {name} || exit 1
cat /proc/sys/kernel/random/boot_id >boot_id; : >log; : >lock
cat >script.new && mv script.new script
echo created
"""

_LAUNCH = """\
cd {folder} && cat >supervisor && chmod 0700 supervisor || exit 1
if [ -d /run/systemd/system ]; then
  systemd-run --quiet --collect --unit={unit} -p KillMode=process -p IgnoreSIGPIPE=no -p OOMPolicy=continue \
    --description={what} {folder}/supervisor
else
  setsid {folder}/supervisor </dev/null >/dev/null 2>&1 &
fi
"""

_POLL = """\
cd {folder} 2>/dev/null || {{ echo gone; exit 0; }}
i=0
while [ ! -e rc ] && [ "$(stat -c %s log)" -eq {offset} ] && [ "$i" -lt {tenths} ]; do
  ! flock -n lock true || break
  sleep 0.1; i=$((i + 1))
done
state=running; [ ! -e rc ] || state=$(cat rc)
if [ "$state" = running ] && flock -n lock true; then [ -e rc ] && state=$(cat rc) || state=idle; fi
size=$(stat -c %s log); [ "$size" -ge {offset} ] || echo cut
echo "$state $size"
tail -c +{next} log | head -c 262144
"""


@dataclass(frozen=True)
class JobResult:
    """How a job ended. `tail` are the last lines of its log."""

    rc: int
    tail: tuple[str, ...]
    seconds: float
    folder: str


def run_job(
    connection: Connection,
    name: str,
    script: str,
    *,
    limit: float,
    report: Reporter,
    uploads: Mapping[str, Secret | bytes] | None = None,
    on_line: Callable[[str], None] | None = None,
) -> JobResult:
    """Run a script as a job and follow it to its end.

    `limit` is in seconds; then the job's processes are killed, and its rc is 124 or 137. `uploads` (name -> content)
    are files of mode 0600 in `$UPLOADS`. Each whole line of the log goes to `on_line`, or to the report.
    Raises StepFailed when it cannot be started, Unreachable when the link stays away: the job then goes on.
    """
    began = time.monotonic()
    label = f"{name}-{_content_hash(script, uploads or {})}"
    folder = f"{paths.JOBS}/{label}"
    if _create(connection, label, script) == "created":
        for file, content in (uploads or {}).items():
            data = content.reveal().encode() if isinstance(content, Secret) else content
            connection.put(data, f"{folder}/uploads/{file}", mode=0o600)
        _launch(connection, name, folder, label, limit)
    else:
        report.note(f"{name}: this job runs already; attached to it", host=connection.name)
    follower = _Follower(connection, folder, on_line or (lambda line: report.output(line, host=connection.name)))
    rc = follower.follow()
    return JobResult(rc, tuple(follower.tail), time.monotonic() - began, folder)


def _content_hash(script: str, uploads: Mapping[str, Secret | bytes]) -> str:
    whole = hashlib.sha256(script.encode())
    for name, content in sorted(uploads.items()):
        whole.update(name.encode() + b"\0")
        whole.update(content.reveal().encode() if isinstance(content, Secret) else content)
    return whole.hexdigest()[:12]


def _create(connection: Connection, label: str, script: str) -> str:
    start = _START.format(jobs=quote(paths.JOBS), kept=KEPT_JOBS, name=quote(label))
    answer = connection.ask(start, stdin=script.encode())
    said = answer.out.strip()
    if said not in ("created", "attached"):
        raise StepFailed(
            f"the job {label} could not be created", host=connection.name, details=answer.err.splitlines()[-3:]
        )
    return said


def _launch(connection: Connection, name: str, folder: str, label: str, limit: float) -> None:
    supervisor = _SUPERVISOR.format(folder=folder, limit=limit, log_limit=LOG_LIMIT)
    # A unit stays loaded while a process of it lives (KillMode=process leaves some), so its name is never used again.
    unit = f"rb-{label}-{secrets.token_hex(3)}"
    launch = _LAUNCH.format(folder=quote(folder), unit=quote(unit), what=quote(f"runbooks: {name}"))
    answer = connection.ask(launch, stdin=supervisor.encode())
    if answer.rc != 0:
        raise StepFailed(
            f"the job {name} could not be started", host=connection.name, details=answer.err.splitlines()[-3:]
        )


class _Follower:
    """Reads a job's log from an offset until the job ended; survives a lost link."""

    def __init__(self, connection: Connection, folder: str, on_line: Callable[[str], None]) -> None:
        self._connection = connection
        self._folder = folder
        self._on_line = on_line
        self._offset = 0
        self._rest = b""
        self._idle_since = 0.0
        self.tail: list[str] = []

    def follow(self) -> int:
        while True:
            state = self._poll()
            if state == "gone":
                raise StepFailed(f"the job's folder {self._folder} is gone", host=self._connection.name)
            self._refuse_idle(state)
            if state not in ("running", "idle") and not self._more:
                self._take(b"\n" if self._rest else b"")
                return int(state)

    def _refuse_idle(self, state: str) -> None:
        """No rc, and nobody holds the lock: it was killed, or the host went down, or it is just being launched."""
        if state != "idle":
            self._idle_since = 0.0
            return
        self._idle_since = self._idle_since or time.monotonic()
        if time.monotonic() - self._idle_since > IDLE_LIMIT:
            raise StepFailed("the job was killed before it ended", host=self._connection.name, details=self.tail[-10:])
        time.sleep(0.1)

    def _poll(self) -> str:
        poll = _POLL.format(folder=quote(self._folder), offset=self._offset, next=self._offset + 1, tenths=POLL_TENTHS)
        head, _, body = self._ask_patiently(poll).partition(b"\n")
        if head == b"cut":
            self._offset = 0
            return "running"
        if head == b"gone":
            return "gone"
        state, size = head.decode().split()
        self._offset += len(body)
        self._more = self._offset < int(size)
        self._take(body)
        return state

    def _ask_patiently(self, poll: str) -> bytes:
        """A lost link is no news about the job: connect again, for up to PATIENCE seconds."""
        lost, wait = 0.0, 0.5
        while True:
            try:
                return self._connection.ask(poll, deadline=10).raw
            except (Unreachable, NoAnswer):
                lost = lost or time.monotonic()
                if time.monotonic() - lost > PATIENCE:
                    raise
                self._connection.reconnect()
                time.sleep(wait)
                wait = min(2 * wait, 15.0)

    def _take(self, data: bytes) -> None:
        *whole, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        for line in whole:
            text = line.decode("utf-8", "replace")
            self.tail = [*self.tail[-TAIL_LINES:], text]
            self._on_line(text)
