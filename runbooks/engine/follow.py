"""A job on a host, seen from here: followed to its end over links that come and go, listed, and cancelled."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from runbooks import paths
from runbooks.engine import going
from runbooks.engine.errors import HostKeyChanged, HostKeyUnknown, NoAnswer, StepFailed, Unreachable
from runbooks.engine.report import Level, Reporter, span
from runbooks.engine.step import quote
from runbooks.engine.transport import Connection

TICK = 0.1  # seconds between two looks at a job's log, there on the host
POLL_TICKS = 20  # one poll waits so many of them for something new
IDLE_LIMIT = 5.0  # seconds that nobody may hold a job's lock: the launcher takes that long at worst
TAIL_LINES = 40
TERMINATED = "143"  # the exit code of a job whose supervisor got a TERM
MARK = "::rb::"  # begins a line of the log that the engine wrote for itself: where a step begins and ends
PATIENCE = 600.0  # seconds that a lost link may take to come back while a job is followed

# Waiting is asking for the lock that the job holds: it comes at the job's end, not at the next tick. What a chatty job
# says is gathered for a moment: each poll costs the host a few processes.
_POLL = """\
cd {folder} 2>/dev/null || {{ echo gone; exit 0; }}
i=0
while [ ! -e rc ] && [ "$i" -lt {ticks} ]; do
  before=$(stat -c %s log)
  flock -w {tick} lock true && break
  i=$((i + 1)); [ "$before" -eq {offset} ] || break
done
state=running; [ ! -e rc ] || state=$(cat rc)
if [ "$state" = running ] && flock -n lock true; then [ -e rc ] && state=$(cat rc) || state=idle; fi
size=$(stat -c %s log); [ "$size" -ge {offset} ] || echo cut
echo "$state $size"
tail -c +{next} log | head -c 262144
"""

_LIST = """\
cd {jobs} 2>/dev/null || exit 0
boot=$(cat /proc/sys/kernel/random/boot_id)
starting() {{  # made or launched a moment ago, and its supervisor has not come up yet
  [ ! -e "$job/pid" ] || return 1
  made="$job/launched"; [ -e "$made" ] || made="$job/boot_id"
  age=$(( $(date +%s) - $(stat -c %Y "$made" || echo 0) )); [ "$age" -ge 0 ] && [ "$age" -le {grace:.0f} ]
}}
for job in $(ls -1tr); do
  [ -e "$job/lock" ] || continue
  # In this order: it may come up, or end, between two of our looks, and is dead only where nobody holds its lock.
  if [ ! -e "$job/rc" ] && {{ starting || ! flock -n "$job/lock" true; }}; then state=running; ended=$(date +%s)
  elif [ -e "$job/rc" ]; then state=$(cat "$job/rc"); ended=$(stat -c %Y "$job/rc")
  else ended=$(stat -c %Y "$job/log"); [ "$(cat "$job/boot_id")" = "$boot" ] && state=killed || state=restart; fi
  printf '%s %s %s %s %s %s\\n' "$job" "$state" "$(stat -c %Y "$job/boot_id")" "$ended" \
    "$(base64 -w0 <"$job/about" 2>/dev/null || :)." "$(tail -c 2000 "$job/log" | base64 -w0)."
done
"""

_CANCEL = """\
cd {folder} 2>/dev/null || {{ echo gone; exit 0; }}
[ ! -e rc ] || {{ echo ended; exit 0; }}
kill -TERM "$(cat pid)" || exit 1
i=0
while [ ! -e rc ] && [ "$i" -lt 150 ]; do sleep 0.1; i=$((i + 1)); done
[ -e rc ] && echo cancelled
"""


@dataclass(frozen=True)
class JobResult:
    """How a job ended. `tail` are the last lines of its log."""

    rc: int
    tail: tuple[str, ...]
    seconds: float
    folder: str


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job that is on the host. `state`: running, killed, restart (the host's), or its exit code as text.

    `since` and `ended` are seconds since the epoch by the host's clock: between two clocks a span means nothing.
    """

    label: str
    state: str
    name: str
    who: str
    changes: bool
    since: float
    ended: float
    tail: tuple[str, ...]


def follow(
    connection: Connection,
    label: str,
    *,
    report: Reporter,
    on_line: Callable[[str], None] | None = None,
    on_live: Callable[[], None] = lambda: None,
    stopping: Callable[[], object] = lambda: False,
    again: bool = True,
) -> JobResult:
    """Read a job's log from its beginning to its end, and return how it ended.

    `on_live` is called when the log was read up to where the job is.
    `again`: the same command attaches to it, which one that is interrupted is told.
    Raises StepFailed when it is not there or was killed, Unreachable when the link stays away.
    """
    began = time.monotonic()
    folder = f"{paths.JOBS}/{label}"

    def output(line: str) -> None:
        if not line.startswith(MARK):
            report.output(line, host=connection.name)

    def tell(text: str, level: Level) -> None:
        report.note(text, host=connection.name, level=level)

    follower = _Follower(connection, folder, on_line or output, stopping, tell, on_live)
    with going.followed(connection.name, label, again=again):
        rc = follower.follow()
    return JobResult(rc, tuple(follower.tail), time.monotonic() - began, folder)


def list_jobs(connection: Connection) -> list[Job]:
    """Every job that the host remembers, oldest first; one exchange."""
    answer = connection.ask(_LIST.format(jobs=quote(paths.JOBS), grace=IDLE_LIMIT), deadline=30)
    return [_job(*line.split(" ")) for line in answer.out.splitlines() if line.count(" ") == 5]


def _job(label: str, state: str, since: str, ended: str, about: str, tail: str) -> Job:
    said: Mapping[str, object] = json.loads(base64.b64decode(about[:-1]) or b"{}")
    lines = base64.b64decode(tail[:-1]).decode("utf-8", "replace").replace("\r", "\n").split("\n")
    return Job(
        label=label,
        state=state,
        name=str(said.get("name", label)),
        who=str(said.get("who", "")),
        changes=bool(said.get("changes")),
        since=float(since),
        ended=float(ended),
        tail=tuple(line for line in lines if line.strip() and not line.startswith(MARK))[-10:],
    )


def cancel(connection: Connection, label: str) -> str:
    """End a job and everything it started. Returns "cancelled", or "ended" when it had come to its end before."""
    answer = connection.ask(_CANCEL.format(folder=quote(f"{paths.JOBS}/{label}")), deadline=25)
    said = answer.out.strip()
    if said not in ("cancelled", "ended"):
        raise StepFailed(
            f"the job {label} could not be cancelled", host=connection.name, details=answer.err.splitlines()[-3:]
        )
    return said


class _Follower:
    """Reads a job's log from an offset until the job ended; survives a lost link."""

    def __init__(
        self,
        connection: Connection,
        folder: str,
        on_line: Callable[[str], None],
        stopping: Callable[[], object],
        tell: Callable[[str, Level], None],
        on_live: Callable[[], None] = lambda: None,
    ) -> None:
        self._connection = connection
        self._folder = folder
        self._on_line = on_line
        self._on_live = on_live
        self._is_live = False
        self._stopping = stopping
        self._tell = tell
        self._told_to_stop = False
        self._offset = 0
        self._rest = b""
        self._idle_since = 0.0
        self.tail: list[str] = []

    def follow(self) -> int:
        while True:
            if not self._told_to_stop and self._stopping():
                self._told_to_stop = True
                self._ask_patiently(f": >{quote(self._folder)}/stop")
            state = self._poll()
            if state == "gone":
                raise StepFailed(f"the job's folder {self._folder} is gone", host=self._connection.name)
            self._refuse_idle(state)
            if state not in ("running", "idle") and not self._more:
                self._take(b"\n" if self._rest else b"")
                if state == TERMINATED and not self._same_boot():  # a shutdown ends jobs as a cancel does
                    self._refuse("the host restarted while the job was at work")
                return int(state)

    def _refuse_idle(self, state: str) -> None:
        """No rc, and nobody holds the lock: it was killed, or the host went down, or it is just being launched."""
        if state != "idle":
            self._idle_since = 0.0
            return
        self._idle_since = self._idle_since or time.monotonic()
        if time.monotonic() - self._idle_since > IDLE_LIMIT:
            here = self._same_boot()
            self._refuse(
                "the job was killed before it ended" if here else "the host restarted while the job was at work"
            )
        time.sleep(0.1)

    def _same_boot(self) -> bool:
        same = f'[ "$(cat {quote(self._folder)}/boot_id)" = "$(cat /proc/sys/kernel/random/boot_id)" ] && echo yes'
        return bool(self._ask_patiently(same))

    def _refuse(self, what: str) -> NoReturn:
        raise StepFailed(what, host=self._connection.name, details=self.tail[-10:])

    def _poll(self) -> str:
        where = {"folder": quote(self._folder), "offset": self._offset, "next": self._offset + 1}
        poll = _POLL.format(**where, tick=TICK, ticks=POLL_TICKS)
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
        if not self._is_live and not self._more:
            self._is_live = True
            self._on_live()
        return state

    def _ask_patiently(self, poll: str) -> bytes:
        """A lost link is no news about the job: connect again, for up to PATIENCE seconds."""
        lost, wait = 0.0, 0.5
        while True:
            try:
                answer = self._connection.ask(poll, deadline=10).raw
                if lost:
                    self._tell(f"the link is back after {span(time.monotonic() - lost)}", "info")
                return answer
            except (HostKeyChanged, HostKeyUnknown):
                raise  # it is somebody else: no waiting mends that
            except (Unreachable, NoAnswer) as error:
                if not lost:
                    goes_on = f"the job goes on there (invoke jobs); trying again for {span(PATIENCE)}"
                    self._tell(f"{error.message}: {goes_on}", "warning")
                lost = lost or time.monotonic()
                if time.monotonic() - lost > PATIENCE:
                    raise
                self._connection.reconnect()
                time.sleep(wait)
                wait = min(2 * wait, 15.0)

    def _take(self, data: bytes) -> None:
        *whole, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        for line in whole:
            text = line.decode("utf-8", "replace").replace("\0", "")  # a power cut leaves a log's last block as zeros
            if not text.startswith(MARK):
                self.tail = [*self.tail[-TAIL_LINES:], text]
            self._on_line(text)
