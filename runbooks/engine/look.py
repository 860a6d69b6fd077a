"""One look: all questions of a run in one exchange, and no group can wedge the others.

Each group (all keys of one kind) is a script of its own, started in the background with its own output and deadline.
A process in uninterruptible sleep (nvidia-smi after an Xid 79, df on a dead mount) cannot even be killed: its group is
left behind, answers `NO_ANSWER`, and the rest is here in time.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runbooks.engine.step import NO_ANSWER, Kind, Question, State
from runbooks.engine.transport import Connection

_PROLOGUE = """\
D=$(mktemp -d "${T:-/tmp}/look.XXXXXXXX") && cd "$D" && mkfifo done && exec 3<>done || exit 1
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

_EPILOGUE = """\
( trap 'kill "$nap"' TERM; sleep {longest:g} & nap=$!; wait "$nap" && echo late >&3 ) >/dev/null 2>&1 & bell=$!
left={count}
while [ "$left" -gt 0 ]; do
  read -r who <&3
  [ "$who" != late ] || break
  left=$((left - 1))
done
kill "$bell" 2>/dev/null
i=0
while [ "$i" -lt {count} ]; do
  if [ -s "$i.rc" ]; then read -r rc <"$i.rc"; printf '{token} %s\\n' "$rc"; cat "$i.out"; echo
  else printf '{token} -\\n\\n'; fi
  i=$((i + 1))
done
cd / && rm -rf "$D"
"""

_TIMED_OUT = ("124", "137", "-")


@dataclass(frozen=True)
class _Group:
    kind: Kind
    keys: tuple[str, ...]

    @property
    def questions(self) -> list[Question]:
        return [Question(self.kind, key) for key in self.keys]


def look(connection: Connection, questions: Iterable[Question]) -> dict[Question, State]:
    """Ask everything once; one exchange, or none when there is nothing to ask."""
    groups = _grouped(questions)
    if not groups:
        return {}
    token, end = f"rb-{secrets.token_hex(8)}", f"rb-{secrets.token_hex(8)}"
    longest = max(group.kind.deadline for group in groups) + 2
    answer = connection.ask(_script(groups, token, end, longest), deadline=longest + 5)
    return _read(answer.raw, groups, token)


def _grouped(questions: Iterable[Question]) -> list[_Group]:
    by_kind: dict[Kind, dict[str, None]] = {}
    for question in questions:
        by_kind.setdefault(question.kind, {})[question.key] = None
    groups: list[_Group] = []
    for kind, keys in by_kind.items():
        groups += [_Group(kind, tuple(keys))] if kind.together else [_Group(kind, (key,)) for key in keys]
    return groups


def _script(groups: list[_Group], token: str, end: str, longest: float) -> str:
    parts = [_PROLOGUE]
    for number, group in enumerate(groups):
        script = group.kind.script(group.keys)
        parts.append(_GROUP.format(number=number, deadline=group.kind.deadline, script=script, end=end))
    parts.append(_EPILOGUE.format(longest=longest, count=len(groups), token=token))
    return "".join(parts)


def _read(raw: bytes, groups: list[_Group], token: str) -> dict[Question, State]:
    answers: dict[Question, State] = {}
    for group, (rc, body) in zip(groups, _framed(raw, token), strict=True):
        if rc in _TIMED_OUT:
            answers |= dict.fromkeys(group.questions, NO_ANSWER)
            continue
        states: Mapping[str, State] = group.kind.parse(body.decode("utf-8", "replace"), group.keys)
        answers |= {question: states.get(question.key, {}) for question in group.questions}
    return answers


def _framed(raw: bytes, token: str) -> Iterable[tuple[str, bytes]]:
    """Each group's exit code and output, which stands between two of our lines; a newline of ours ends it."""
    for part in raw.split(f"{token} ".encode())[1:]:
        rc, _, body = part.partition(b"\n")
        yield rc.decode(), body[:-1]
