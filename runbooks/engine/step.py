"""What a step is: something to ask, and a pure plan from the answers to a change.

A `Kind` of question knows how to ask for many keys at once (one `stat` for all paths, one `dpkg-query` for all
packages) and how to read the reply; a `Question` is one key of a kind. The runner collects the questions of all
steps, groups them by kind and asks everything in one exchange, each group with a deadline of its own.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from runbooks.engine.secret import Secret

Value = str | int | bool | None
State = Mapping[str, Value]
"""Flat, plain values. A key that is absent, or None: not there."""

NO_ANSWER: State = {"no answer": True}
"""What a question holds whose group did not answer within its deadline (a hung nvidia-smi, a dead mount)."""

TOO_MUCH: State = {"no answer": True, "too much": True}
"""What one holds whose answer was cut, as it would have drowned all others."""


@dataclass(frozen=True)
class Kind:
    """A kind of question.

    `script(keys)` is POSIX shell, run as root, for all keys of this kind at once.
    `parse(output, keys)` returns a state a key; a key it leaves out gets the empty state.
    """

    name: str
    script: Callable[[Sequence[str]], str]
    parse: Callable[[str, Sequence[str]], Mapping[str, State]]
    deadline: float = 10.0
    together: bool = True  # False: each key is asked by itself, so that one hung key costs only its own answer


@dataclass(frozen=True)
class Question:
    kind: Kind
    key: str

    def __str__(self) -> str:
        """What is asked, for people."""
        return f"{self.kind.name}: {next(iter(self.key.splitlines()), '')[:100]}"


Answers = Mapping[Question, State]


@dataclass(frozen=True)
class Diff:
    """One line of a preview (`mode 0644 -> 0640`), with a unified diff below it where the change is of text."""

    line: str
    unified: str = ""


@dataclass(frozen=True, kw_only=True)
class Change:
    """Shell text that makes the state true, and what people are shown of it.

    `script` runs under `sh -e` as root, in a job of its stage, with the folder of `uploads` in `$UPLOADS`.
    `uploads` hold what must not stand in a script: secrets, and content over 64 KiB; each is a file of mode 0600
    there before the job starts.
    `limit` is the most seconds that it may take. `reboot`: the host is restarted at this point, then looked at again.
    """

    script: str
    diff: tuple[Diff, ...]
    limit: float = 600.0
    uploads: Mapping[str, Secret | bytes] = field(default_factory=dict)
    reboot: bool = False
    next: str | None = None  # what to type, and the page to read, when it fails
    page: str | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a check says: it changes nothing, and passes or fails."""

    ok: bool
    line: str
    details: tuple[str, ...] = ()
    next: str | None = None
    page: str | None = None


class Step(Protocol):
    """A value that says what should be true, what to look at, and what would change: a frozen dataclass."""

    @property
    def id(self) -> str:
        """A short name, unique within its stage: `file /etc/x`, `packages curl git`."""

    def questions(self) -> tuple[Question, ...]: ...

    def plan(self, answers: Answers) -> Change | Verdict | None:
        """Pure. None: nothing to change."""


@dataclass(frozen=True)
class Stage:
    """Steps that belong together. After a stage that changed something, the stages below it are looked at again.

    `optional`: a failure is told as a warning, and the stages below go on. The tag "always" defies `--tags`.
    """

    name: str
    steps: tuple[Step, ...]
    tags: frozenset[str] = frozenset()
    optional: bool = False

    ALWAYS: ClassVar[str] = "always"


def quote(value: str) -> str:
    """Shell-quote for sh, dash and bash; a value that begins with '-' stays an operand only behind `--`."""
    return shlex.quote(value)


def shell(script: str, *, deadline: float = 10.0) -> Question:
    """A question of its own: the state is {"rc": int, "out": str}. For what no shared kind asks."""
    return Question(Kind("shell", _shell_script, _shell_parse, deadline, together=False), script)


def _shell_script(keys: Sequence[str]) -> str:
    return f"(\n{keys[0]}\n)\nprintf '\\nrc=%s\\n' $?"


def _shell_parse(output: str, keys: Sequence[str]) -> Mapping[str, State]:
    body, _, rc = output.rstrip("\n").rpartition("\nrc=")
    return {keys[0]: {"rc": int(rc), "out": body.rstrip("\n")}}
