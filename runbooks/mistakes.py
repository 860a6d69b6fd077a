"""A mistake in a command: it ends with 2, as those that we find ourselves, and says what was probably meant.

Invoke's own end is 1, with `No idea what 'helth' is!`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches

from invoke.collection import Collection
from invoke.exceptions import Exit, ParseError
from invoke.parser.context import ParserContext
from invoke.parser.parser import ParseMachine
from invoke.program import Program

from runbooks.engine.errors import UsageError

LONGEST = 500  # characters of a mistake that are repeated
_UNKNOWN = re.compile(r"No idea what '(.*)' is!", re.DOTALL)
_MISSING = re.compile(r"'(\S+)' did not receive required positional arguments: (.*)")
_VALUELESS = re.compile(r"Flag <\w+: ([\w-]+).* needed value", re.DOTALL)


def say_mistakes(program: Program, namespace: Collection) -> None:
    """Called once, when the tasks are loaded: parsing itself comes after that."""
    for name in ("parse_tasks", "parse_cleanup"):
        setattr(program, name, _said(getattr(program, name), namespace))
    setattr(ParseMachine, "complete_flag", _complete_flag)  # noqa: B010  (mypy lets no method be assigned)


def _said(parse: Callable[[], None], namespace: Collection) -> Callable[[], None]:
    def said() -> None:
        try:
            parse()
        except ParseError as error:
            raise Exit(explained(error, namespace), code=UsageError.exit_code) from None
        except Exit as error:
            if not error.message:  # it has shown what it was asked for
                raise
            raise Exit(error.message, code=UsageError.exit_code) from None

    return said


def explained(error: ParseError, namespace: Collection) -> str:
    """What Invoke says of a mistake, with what was probably meant and the next command."""
    text, context = str(error), getattr(error, "context", None)
    task = getattr(context, "name", None)
    if unknown := _UNKNOWN.fullmatch(text):
        return _unknown(unknown[1], context, task, namespace)
    if missing := _MISSING.fullmatch(text):
        words = " ".join(name.strip(" '").upper() for name in missing[2].split(","))
        return str(UsageError(f"{missing[1]}: {words} must be said", next=f"invoke {missing[1]} {words}"))
    if valueless := _VALUELESS.match(text):
        return str(UsageError(f"--{valueless[1].replace('_', '-')}: nothing was named", next=_help(task)))
    return text if len(text) < LONGEST else f"{text[:LONGEST]}..."


def _unknown(word: str, context: ParserContext | None, task: str | None, namespace: Collection) -> str:
    short = word if len(word) < LONGEST else f"{word[:LONGEST]}..."
    if word.startswith("-"):
        known: Iterable[str] = [*context.flags, *context.inverse_flags] if context else []
        near = _near(word.partition("=")[0], [flag for flag in known if flag.startswith("--")])
        where = f"{task} has no option {short}" if task else f"there is no option {short}"
        return str(UsageError(where, details=near, next=_help(task)))
    names = {name for main, others in namespace.task_names.items() for name in (main, *others)}
    near = _near(word, sorted(names))
    return str(UsageError(f"there is no task {short!r}", details=near, next="invoke --list"))


def _near(word: str, known: Iterable[str]) -> list[str]:
    return [f"did you mean {near}?" for near in get_close_matches(word[:LONGEST], list(known), n=1, cutoff=0.6)]


def _help(task: str | None) -> str:
    return f"invoke --help {task}" if task else "invoke --help"


_complete = ParseMachine.complete_flag


def _complete_flag(self: ParseMachine) -> None:
    """A repeatable option with nothing after it is an empty variable of a script, which must not mean all hosts."""
    if self.flag and self.flag.kind is list and not self.flag_got_value:
        raise ParseError(f"--{str(self.flag.name).replace('_', '-')}: nothing was named", self.context)
    _complete(self)
