"""One look: all questions of a run in one exchange, and no group can wedge the others, nor drown them.

Each group (all keys of one kind) is a script of its own, started in the background with its own output and deadline.
A process in uninterruptible sleep (nvidia-smi after an Xid 79, df on a dead mount) cannot even be killed: its group is
left behind, answers `NO_ANSWER`, and the rest is here within `FIRST`. A group that may take longer goes on meanwhile;
who needs its answer waits for it, in a further exchange.
"""

from __future__ import annotations

import posixpath
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from runbooks.engine.errors import NoAnswer, page_of
from runbooks.engine.step import NO_ANSWER, TOO_MUCH, Kind, Question, State, quote
from runbooks.engine.transport import Connection

FIRST = 8.0  # seconds after which what has answered is here, whatever the others do
LARGEST = 4 * 1024 * 1024  # bytes of one group's answer; one that says more has not answered
WRITTEN = 16 * 1024 * 1024  # bytes of a file that a question may write: what it says lies in the host's memory
SLACK = 15.0  # seconds that a busy host may take to begin all groups, and to tell what they said
TURN = 0.2  # seconds between two looks whether a late answer is there

AT_MOST = """\
at_most() {
  _d=$(mktemp -d) _s=$1 _i=0; shift
  ( timeout -k 1 "$_s" "$@" </dev/null >"$_d/out" 2>"$_d/err"
    echo $? >"$_d/new"; mv "$_d/new" "$_d/rc" ) >/dev/null 2>&1 &
  while [ ! -e "$_d/rc" ] && [ "$_i" -lt $((_s * 10 + 20)) ]; do sleep 0.1; _i=$((_i + 1)); done
  cat "$_d/out"; cat "$_d/err" >&2; _s=$(cat "$_d/rc" 2>/dev/null || echo 124); rm -rf "$_d"; return "$_s"
}
"""
"""Shell text for a script of one's own: `at_most SECONDS COMMAND...`. What waits in the kernel cannot be killed, and
`timeout` would wait for its end: it is left behind, and the exit code is 124."""

_PROLOGUE = """\
D=$(mktemp -d "${{T:-/tmp}}/look.XXXXXXXX") && cd "$D" && mkfifo done && exec 3<>done || exit 1
ulimit -f {blocks}
"""

# The script comes as a here-document, which costs no process; in braces, so that it is read to its end before it runs.
_GROUP = """\
( timeout -k 1 {deadline:g} sh >{number}.out 2>/dev/null 3>&- <<'{end}'
{{
{script}
}} </dev/null
{end}
echo $? >{number}.rc; echo {number} >&3 ) &
"""

_AWAIT = """\
( trap 'kill "$nap"' TERM; sleep {first:g} & nap=$!; wait "$nap" && echo late >&3 ) >/dev/null 2>&1 & bell=$!
left={count}
while [ "$left" -gt 0 ]; do
  read -r who <&3
  [ "$who" != late ] || break
  left=$((left - 1))
done
kill "$bell" 2>/dev/null
"""

_AWAIT_LATE = """\
for i in {places}; do
  while [ ! -s "$i.rc" ] && [ -e "$i.out" ] && [ "${{turn:=0}}" -lt {turns} ]; do
    sleep {pause:g}; turn=$((turn + 1))
  done
done
"""

# What no longer fits into an answer is cut off, and with it the last line.
_TELL = """\
for i in {places}; do
  if [ -s "$i.rc" ]; then read -r rc <"$i.rc"; printf '{token} %s\\n' "$rc"; head -c {largest} "$i.out"; echo
  elif [ -e "$i.out" ]; then printf '{token} late\\n\\n'
  else printf '{token} gone\\n\\n'; fi
done
echo "{token} at $D"
"""
_CLEAR = '[ "$left" -gt 0 ] || { cd / && rm -rf "$D"; }\n'

_TIMED_OUT = ("124", "137", "late")


@dataclass(frozen=True)
class _Group:
    kind: Kind
    keys: tuple[str, ...]

    @property
    def questions(self) -> list[Question]:
        return [Question(self.kind, key) for key in self.keys]


@dataclass(frozen=True)
class _Late:
    """A group that is still at work: where on the host its answer will stand, and until when it may."""

    group: _Group
    place: str
    until: float


class Look:
    """Questions that were asked once, and what has come of them: `answers`.

    One exchange, or none when there is nothing to ask; a further one where answers do not fit into one, and for what
    takes longer than `FIRST`.
    """

    def __init__(self, connection: Connection, questions: Iterable[Question]) -> None:
        self.answers: dict[Question, State] = {}
        self._connection = connection
        self._late: list[_Late] = []
        self._ask(_grouped(questions))

    def late(self, questions: Iterable[Question]) -> list[Question]:
        """Those of them that have no answer yet, and may still get one."""
        return [question for late in self._meant(questions) for question in late.group.questions]

    def wait(self, questions: Iterable[Question]) -> None:
        """For the answers to these; what does not come in its time has none."""
        wanted = list(questions)
        while meant := self._meant(wanted):
            self._collect(meant)

    def _meant(self, questions: Iterable[Question]) -> list[_Late]:
        wanted = set(questions) if self._late else set()
        return [late for late in self._late if wanted & set(late.group.questions)]

    def _ask(self, groups: Sequence[_Group]) -> None:
        while groups:
            token, end = f"rb-{secrets.token_hex(8)}", f"rb-{secrets.token_hex(8)}"
            first = min(FIRST, max(group.kind.deadline for group in groups) + 2)
            began = time.monotonic()
            answer = self._connection.ask(_script(groups, token, end, first), deadline=first + SLACK)
            found, folder = _framed(answer.raw, token)
            if not found:
                said = answer.err.splitlines()[-3:]
                raise NoAnswer("it cannot be looked at", host=self._connection.name, details=said, page=page_of(said))
            for number, (group, (rc, body)) in enumerate(zip(groups, found, strict=False)):
                until = began + group.kind.deadline + 2
                if rc == "late" and time.monotonic() < until:
                    self._late.append(_Late(group, f"{folder}/{number}", until))
                else:
                    self.answers |= _read(group, rc, body)
            groups = groups[len(found) :]

    def _collect(self, meant: Sequence[_Late]) -> None:
        token = f"rb-{secrets.token_hex(8)}"
        left = max(0.0, max(late.until for late in meant) - time.monotonic())
        answer = self._connection.ask(self._later(meant, left, token), deadline=left + SLACK)
        found, _ = _framed(answer.raw, token)
        gone: list[_Group] = []
        for late, (rc, body) in zip(meant, found or [("late", b"")], strict=False):
            self._late.remove(late)
            if rc == "gone":  # with the shell that had asked
                gone.append(late.group)
            else:
                self.answers |= _read(late.group, rc, body)
        self._ask(gone)

    def _later(self, meant: Sequence[_Late], seconds: float, token: str) -> str:
        places = " ".join(quote(late.place) for late in meant)
        waiting = _AWAIT_LATE.format(places=places, turns=int(seconds / TURN) + 1, pause=TURN)
        others = {posixpath.dirname(late.place) for late in self._late if late not in meant}
        done = {posixpath.dirname(late.place) for late in meant} - others - {"/"}
        return f"{waiting}{_tell(places, token)}rm -rf {' '.join(map(quote, sorted(done)))}\n"


def look(
    connection: Connection,
    questions: Iterable[Question],
    *,
    waiting: Callable[[Sequence[Question]], None] = lambda _late: None,
) -> dict[Question, State]:
    """Ask everything once, and wait for all of it; `waiting` is told what for, once the rest has answered."""
    asked = list(questions)
    seen = Look(connection, asked)
    if late := seen.late(asked):
        waiting(late)
        seen.wait(asked)
    return seen.answers


def waited_for(late: Sequence[Question]) -> str:
    """For people: what has not answered yet."""
    more = f" and {len(late) - 2} more" if len(late) > 2 else ""
    return f"no answer yet, and waited for: {', '.join(map(str, late[:2]))}{more}"


def _grouped(questions: Iterable[Question]) -> list[_Group]:
    by_kind: dict[Kind, dict[str, None]] = {}
    for question in questions:
        by_kind.setdefault(question.kind, {})[question.key] = None
    groups: list[_Group] = []
    for kind, keys in by_kind.items():
        groups += [_Group(kind, tuple(keys))] if kind.together else [_Group(kind, (key,)) for key in keys]
    return groups


def _script(groups: Sequence[_Group], token: str, end: str, first: float) -> str:
    parts = [_PROLOGUE.format(blocks=WRITTEN // 512)]
    for number, group in enumerate(groups):
        script = group.kind.script(group.keys)
        parts.append(_GROUP.format(number=number, deadline=group.kind.deadline, script=script, end=end))
    parts.append(_AWAIT.format(first=first, count=len(groups)))
    return "".join([*parts, _tell(" ".join(map(str, range(len(groups)))), token), _CLEAR])


def _tell(places: str, token: str) -> str:
    return _TELL.format(places=places, token=token, largest=LARGEST + 1)


def _read(group: _Group, rc: str, body: bytes) -> Mapping[Question, State]:
    if rc in _TIMED_OUT or len(body) > LARGEST:
        return dict.fromkeys(group.questions, TOO_MUCH if len(body) > LARGEST else NO_ANSWER)
    states = group.kind.parse(body.decode("utf-8", "replace"), group.keys)
    return {question: states.get(question.key, {}) for question in group.questions}


def _framed(raw: bytes, token: str) -> tuple[list[tuple[str, bytes]], str]:
    """Each group's exit code and output, as far as they came whole, and the folder where late ones come to."""
    *whole, last = raw.split(f"{token} ".encode())[1:] or [b""]
    found = [(rc.decode(), body[:-1]) for rc, _, body in (part.partition(b"\n") for part in whole)]
    return found, last.decode().strip().removeprefix("at ") if last.startswith(b"at /") else ""
