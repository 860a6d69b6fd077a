"""Long work as a durable job on the host: truth in files, systemd only the launcher.

A job is a folder `<name>-<hash of content>`, mode 0700, with `script`, `uploads/`, `log`, `rc`, `boot_id`, `about`
(what it is, as JSON), `launched` (by which unit), and a `lock` that its supervisor holds while it lives. A controller
that dies, a cut link or a closed laptop do not touch it; the same job started again attaches to the one that runs; one
that ended is never taken for today's. The script and the uploads are removed at the end, the log stays.

Known traps answered here: a transient unit is collected with its exit code (so `rc` is a file); systemd 252 expands
`$VAR` in argv (so argv is `sh` and one path: /var may be noexec); HOME and PATH are unset there; a daemon that a
postinst started would die with the unit's control group (so KillMode=process; a limit or a cancel ends all, found by
control group and by environment); needrestart would restart services (suspended); `tail -f` would block the shell (so
the log is followed by bounded polls from an offset); clocks jump (so limits are measured by the time since boot); a
controller dies in the middle of a launch, and its successor is faster than systemd (so one of two supervisors leaves),
or what it sent comes late, over a bad link (so a launch wants its run's lock to stand).
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping

from runbooks import paths
from runbooks.engine import lock
from runbooks.engine.errors import NotWritten, page_of
from runbooks.engine.follow import JobResult, follow
from runbooks.engine.report import Reporter
from runbooks.engine.secret import Secret
from runbooks.engine.shell import ENVIRONMENT, Answer
from runbooks.engine.step import quote
from runbooks.engine.transport import Connection

__all__ = ["JobResult", "run_job"]

LOG_LIMIT = 64 * 1024 * 1024  # bytes; a longer log keeps its last mebibyte and goes on
LOCK_GONE = 75  # the exit code of a launch whose run does not hold the host any more
KEPT_JOBS = 40  # ended jobs whose logs are kept

_SUPERVISOR = """\
#!/bin/sh
cd "{folder}" || exit 1
exec 9>>lock; flock 9
[ "$(cat launched)" = "{unit}" ] && [ ! -e rc ] || exit 0
echo $$ >pid
export {environment}
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 APT_LISTCHANGES_FRONTEND=none PYTHONUNBUFFERED=1
export UPLOADS="{folder}/uploads" JOB="{folder}"
members() {{
  {{ grep -lzxF "JOB={folder}" /proc/[0-9]*/environ; grep -lF "/{unit}.service" /proc/[0-9]*/cgroup; }} 2>/dev/null |
    cut -d/ -f3 | sort -u
}}
end_all() {{
  for signal in TERM KILL KILL; do
    for process in $(members); do [ "$process" = $$ ] || kill -$signal "$process" 2>/dev/null; done
    sleep 0.3
  done
}}
bound() {{  # where the file system can take out a file's beginning, nothing is lost that is written meanwhile
  size=$(stat -c %s log)
  [ "$size" -le {log_limit} ] || fallocate -c -o 0 -l $(( (size / 1048576 - 1) * 1048576 )) log 2>/dev/null ||
    {{ tail -c 1048576 log >log.last; cat log.last >log; rm -f log.last; }}
}}
now() {{ read -r up rest </proc/uptime; echo "${{up%.*}}"; }}
( trap 'kill "$nap" 2>/dev/null; wait "$nap"; exit' TERM
  while sleep 1 & nap=$!; wait "$nap" && kill -0 $$ 2>/dev/null; do
    {refresh}
    bound
  done ) 9>&- & guard=$!
began=$(now) cancelled=
trap 'cancelled=yes' TERM
timeout -k 10 {limit:.0f} sh -e ./script >>log 2>&1 </dev/null 9>&- & work=$!
wait "$work"; rc=$?
if [ "$cancelled" ]; then echo "cancelled" >>log; end_all; rc=143
elif [ $(( $(now) - began )) -ge {limit:.0f} ] && {{ [ "$rc" -eq 124 ] || [ "$rc" -eq 137 ]; }}; then
  echo "{limit:.0f} s are over: the job was ended" >>log; end_all; rc=124
fi
kill "$guard" 2>/dev/null; wait "$guard"  # and its sleep: systemd would log what a unit leaves behind
bound
rm -rf script uploads
echo "$rc" 1<>rc.new && mv rc.new rc  # into the room that was kept for it: the disk may be full by now
"""

_START = """\
umask 077
mkdir -p {jobs} && cd {jobs} || exit 1
ls -1dt -- */ 2>/dev/null | tail -n +{kept} | while read -r old; do
  if [ -e "$old/rc" ] || {{ [ -e "$old/lock" ] && flock -n "$old/lock" true; }}; then rm -rf -- "./$old"; fi
done
if [ -e {name}/lock ]; then  # held to our end; who only looks holds it for a moment
  exec 9>>{name}/lock; flock -w 0.5 9 || {{ echo attached; exit 0; }}
fi
rm -rf {name} && mkdir -p {name}/uploads && cd {name} || exit 1
cat /proc/sys/kernel/random/boot_id >boot_id && : >log && : >lock && printf '%s\\n' {about} >about || exit 1
printf '\\n\\n\\n\\n' >rc.new && cat >script.new && mv script.new script || exit 1
echo created
"""

_LAUNCH = """\
cd {folder} && cat >supervisor.new && mv supervisor.new supervisor || exit 1
{fence}
echo {unit} >launched || exit 1
if [ -d /run/systemd/system ]; then
  systemd-run --quiet --collect --unit={unit} -p KillMode=process -p IgnoreSIGPIPE=no -p OOMPolicy=continue \
    --description={what} /bin/sh {folder}/supervisor
else
  setsid sh {folder}/supervisor </dev/null >/dev/null 2>&1 &
fi
"""


_FENCE = """[ "$(cat {lock}/run)" = {run} ] || exit {gone}"""


def run_job(
    connection: Connection,
    name: str,
    script: str,
    *,
    limit: float,
    report: Reporter,
    uploads: Mapping[str, Secret | bytes] | None = None,
    on_line: Callable[[str], None] | None = None,
    on_live: Callable[[], None] = lambda: None,
    changes: bool = False,
    run: str = "",
    stopping: Callable[[], object] = lambda: False,
    again: bool = True,
) -> JobResult:
    """Run a script as a job and follow it to its end.

    `limit` is in seconds; then every process of the job is killed, and its rc is 124. `uploads` (name -> content)
    are files of mode 0600 in `$UPLOADS`. Each whole line of the log goes to `on_line`, or to the report.
    `changes`: it changes the host, so a later run waits for its end, and it keeps the host's lock fresh. `run`: it is
    launched only while that run holds the lock. `again`: the same command makes the same job, and attaches to it.
    When `stopping()` becomes true, the file `$JOB/stop` appears: the script may look for it between two steps.
    Raises NotWritten when it cannot be started, Busy when that lock is gone, Unreachable when the link stays away: the
    job then goes on.
    """
    label = f"{name}-{_content_hash(script, uploads or {})}"
    folder = f"{paths.JOBS}/{label}"
    about = {"name": name, "limit": limit, "who": lock.who(), "changes": changes}
    if _create(connection, label, script, about) == "created":
        for file, content in (uploads or {}).items():
            data = content.reveal().encode() if isinstance(content, Secret) else content
            connection.put(data, f"{folder}/uploads/{file}", mode=0o600)
        _launch(connection, name, label, limit, changes=changes, run=run)
    else:
        report.note(f"{name}: this job runs already; attached to it", host=connection.name)
    return follow(connection, label, report=report, on_line=on_line, on_live=on_live, stopping=stopping, again=again)


def _content_hash(script: str, uploads: Mapping[str, Secret | bytes]) -> str:
    whole = hashlib.sha256(script.encode())
    for name, content in sorted(uploads.items()):
        whole.update(name.encode() + b"\0")
        whole.update(content.reveal().encode() if isinstance(content, Secret) else content)
    return whole.hexdigest()[:12]


def _create(connection: Connection, label: str, script: str, about: Mapping[str, object]) -> str:
    start = _START.format(jobs=quote(paths.JOBS), kept=KEPT_JOBS, name=quote(label), about=quote(json.dumps(about)))
    answer = connection.ask(start, stdin=script.encode())
    said = answer.out.strip()
    if said not in ("created", "attached"):
        raise _not_made(connection, f"the job {label} could not be created in {paths.JOBS}", answer)
    return said


def full_disk(connection: Connection) -> list[str]:
    """Where jobs keep their logs no room may be left, and then the log cannot say so: a line that does."""
    answer = connection.ask(f"df -Pk -- {paths.STATE} | awk 'NR == 2 && $4 < 64 {{ print $6 }}'", deadline=10)
    mount = answer.out.strip()
    return [f"{paths.STATE}: No space left on device (on {mount})"] if mount else []


def _not_made(connection: Connection, what: str, answer: Answer) -> NotWritten:
    lines = [*answer.err.splitlines()[-3:], *full_disk(connection)]
    full = page_of(lines)
    return NotWritten(
        what, host=connection.name, details=lines, next=f"df -h {paths.STATE}" if full else None, page=full
    )


def _launch(connection: Connection, name: str, label: str, limit: float, *, changes: bool, run: str) -> None:
    folder = f"{paths.JOBS}/{label}"
    # A unit stays loaded while a process of it lives (KillMode=process leaves some), so its name is never used again.
    unit = f"rb-{label}-{secrets.token_hex(3)}"
    refresh = f"touch -c {quote(paths.LOCK)} 2>/dev/null" if changes else ":"
    supervisor = _SUPERVISOR.format(
        folder=folder, unit=unit, limit=limit, log_limit=LOG_LIMIT, refresh=refresh, environment=ENVIRONMENT
    )
    fence = _FENCE.format(lock=paths.LOCK, run=quote(run), gone=LOCK_GONE) if run else ":"
    launch = _LAUNCH.format(folder=quote(folder), unit=quote(unit), what=quote(f"runbooks: {name}"), fence=fence)
    answer = connection.ask(launch, stdin=supervisor.encode())
    if answer.rc == LOCK_GONE:
        raise lock.lost(connection.name)
    if answer.rc != 0:
        raise _not_made(connection, f"the job {name} could not be started in {folder}", answer)
