"""Invoke, mended: the decorator that every task wears.

No short flag is stolen, Invoke's own `--dry` never runs a task for real, our errors become text and exit codes,
and no traceback reaches a user.

Exit codes: 0 converged or healthy, 1 failed, 2 a usage or inventory error found by us, 3 `--check` found changes,
130 interrupted.
"""

from __future__ import annotations

import errno
import functools
import gc
import inspect
import io
import os
import signal
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from invoke.collection import Collection
from invoke.context import Context
from invoke.exceptions import Exit, ParseError
from invoke.main import program
from invoke.parser.argument import Argument
from invoke.tasks import Task, task

from runbooks.engine import going
from runbooks.engine.errors import Bug, RunbookError, UsageError, printable
from runbooks.mistakes import LONGEST, say_mistakes

PLACES = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
    *(errno.ELOOP, errno.EDQUOT, errno.EINVAL),
}
"""What a system says of a path that cannot be used: no bug."""
FULL = "no space left where this was to be written"
CHANGES_FOUND = 3
INTERRUPTED = 130
OURS = ("runbooks", "lab", "bench", "tasks")

Body = Callable[..., int | None]


def command(
    *, word: str = "", looks: bool = False, interrupted: Callable[[dict[str, Any]], str] | None = None, **options: Any
) -> Callable[[Body], Task[Any]]:
    """Like `invoke.task`, for a body that returns an exit code (None: 0) and raises RunbookError.

    `word` names an option that may also be given as a bare word: `invoke runbook PAGE`, and `invoke runbook` alone.
    `help` may be shared: what it says of options that this task does not have is left out. `looks`: it only looks, and
    starts no job that would go on after a Ctrl-C. `interrupted`: what else is true after one, by the options' values.
    """

    def decorate(body: Body) -> Task[Any]:
        known = inspect.signature(body).parameters
        options["help"] = {name: text for name, text in options.get("help", {}).items() if name in known}

        @functools.wraps(body)
        def run(context: Context, *args: Any, **kwargs: Any) -> None:
            usual = (lambda: INTERRUPTED_LOOK) if looks else going.interrupted
            code = _guarded(body, context, args, kwargs, (lambda: interrupted(kwargs)) if interrupted else usual)
            gc.freeze()  # else Python searches all that is loaded for garbage before it ends: 20 ms
            if code:
                raise Exit(code=code)

        decorated: Task[Any] = task(auto_shortflags=False, klass=_MendedTask, **options)(run)
        decorated.word = word  # type: ignore[attr-defined]
        return decorated

    return decorate


MOST = 1e9  # of any number that is typed: seconds, streams, lines, releases


class _Number(Argument):
    """A number that is none is a parse error; Invoke itself lets int()'s traceback out. None of ours is below zero."""

    def set_value(self, value: Any, cast: bool = True) -> None:
        option = f"{_option(self)} {str(value)[:40]}"
        try:
            super().set_value(value, cast)
        except ValueError:
            raise ParseError(f"{option}: that is no number") from None
        if not 0 <= self.value <= MOST:
            raise ParseError(f"{option}: should be between 0 and {MOST:,.0f}")


class _Word(Argument):
    """An option with nothing after it is an empty variable of a script, which must not mean the default."""

    def set_value(self, value: Any, cast: bool = True) -> None:
        if value == "":
            raise ParseError(f"{_option(self)}: nothing was named")
        super().set_value(value, cast)


def _option(argument: Argument) -> str:
    return f"--{str(argument.name).replace('_', '-')}"


class _MendedTask(Task[Any]):
    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:
        told = dict(self.help)
        arguments: list[Argument] = super().get_arguments(ignore_unknown_help)
        self.help = told  # Invoke takes it out while it reads it: whoever asks next would find options without a word
        for argument in arguments:
            if argument.kind in (int, float):
                argument.__class__ = _Number
            elif argument.kind is str:
                argument.__class__ = _Word
        return arguments


def _quiet_ends(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """For Invoke's own code: `invoke --list | head` and an early Ctrl-C end without a traceback."""
    full = isinstance(error, OSError) and error.errno == errno.ENOSPC
    if full:
        _complain(FULL)
    unbuilt = _unbuilt(error)
    if unbuilt is not None:
        _complain(str(unbuilt))
        os._exit(unbuilt.exit_code)  # Python's own would be 1
    if full or issubclass(kind, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    elif not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _quiet_ends


def _leave(_number: int, _frame: FrameType | None) -> None:
    """Ctrl-C before a command begins, of which Invoke itself says nothing, and ends with 1."""
    os.write(2, b"interrupted; nothing was touched\n")
    os._exit(INTERRUPTED)


if "invoke" in Path(sys.argv[0]).parts[-2:] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _leave)


def accept_words(namespace: Collection) -> None:
    """Let the bare words of `command(word=...)` through; called once, when the tasks are loaded.

    Invoke knows required positional arguments only: for an optional one it says "No idea what 'nan-output' is!". At
    this point it has read its own flags and keeps the rest, where the word gets its option's name put before it.
    """
    say_mistakes(program, namespace)
    tokens: list[str] = getattr(getattr(program, "core", None), "unparsed", [])
    words = {
        name: getattr(namespace[main], "word", "")
        for main, aliases in namespace.task_names.items()
        for name in (main, *aliases)
    }
    if set(tokens) & {"-h", "--help"}:
        _mean_help(namespace, tokens)
    for at in range(len(tokens) - 1, 0, -1):
        option, value = words.get(tokens[at - 1]), tokens[at]
        if option and value not in words and (value == "-" or not value.startswith("-")):
            tokens.insert(at, f"--{option}")


def _mean_help(namespace: Collection, tokens: list[str]) -> None:
    """`adopt --help`: of a task that must be told something, Invoke takes `--help` to be it."""
    at = next(at for at, token in enumerate(tokens) if token in ("-h", "--help"))
    task = next((word for word in reversed(tokens[:at]) if word in namespace.task_names), None)
    if task and any(argument.positional for argument in namespace[task].get_arguments()):
        program.args["help"].value = task
        tokens.clear()


def complete_values() -> None:
    """When a shell asks for completions (`invoke --complete`): answer for the values that Invoke cannot know."""
    arguments = getattr(program, "args", {})
    if "complete" not in arguments or not arguments["complete"].value:
        return
    from runbooks.completion import offer

    offered = offer(program.core.remainder.split())
    if offered is not None:
        print("\n".join(offered))
        raise Exit(code=0)


INTERRUPTED_LOOK = "interrupted; nothing goes on"


def _guarded(
    body: Body,
    context: Context,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    interrupted: Callable[[], str] = going.interrupted,
) -> int:
    _mend_streams()
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    mend_terminal = _terminal()
    try:
        if context.config.run.dry:
            _mean_check(body, kwargs)
        return body(context, *args, **kwargs) or 0
    except RunbookError as error:
        _complain(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        mend_terminal()
        if sys.stdin and sys.stdin.isatty() and sys.stderr.isatty():
            print(file=sys.stderr)  # behind ^C, or a question
        _complain(interrupted())
        sys.stdout.flush()
        os._exit(INTERRUPTED)  # threads that wait for hosts are left behind; Python would wait for their locks
    except BrokenPipeError:
        # `invoke bench | head`: nobody reads on. Python would complain again while it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno in PLACES and error.filename is not None:
            name = str(error.filename)
            _complain(f"{name if len(name) < LONGEST else name[:40] + '...'}: {error.strerror}")
            return UsageError.exit_code
        if error.errno != errno.ENOSPC:
            _complain(str(Bug(error)))
        else:
            _complain(FULL)
        return 1
    except ModuleNotFoundError as error:
        unbuilt = _unbuilt(error)
        _complain(str(unbuilt or Bug(error)))
        return unbuilt.exit_code if unbuilt else 1
    except Exception as error:
        _complain(str(Bug(error)))
        return 1


def _unbuilt(error: BaseException) -> UsageError | None:
    """A module of another project that is not there: the virtual environment is half-built, and nothing of ours."""
    name = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    if not name or name.partition(".")[0] in OURS:
        return None
    return UsageError(f"the virtual environment is not whole: it has no module {name}", next="./dev setup")


def _mend_streams() -> None:
    """A terminal of another encoding gets question marks for what it cannot show; a closed stdout swallows all."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _terminal() -> Callable[[], None]:
    """What brings the terminal back as it is now: Ctrl-C at the question for a password leaves it without an echo."""
    try:
        fd = sys.stdin.fileno()
        before = termios.tcgetattr(fd)
    except (OSError, ValueError, AttributeError, termios.error):  # none, or no terminal
        return lambda: None

    def mend() -> None:
        if os.tcgetpgrp(fd) == os.getpgrp() and termios.tcgetattr(fd) != before:  # in the background it would stop us
            termios.tcsetattr(fd, termios.TCSADRAIN, before)

    return mend


def _mean_check(body: Body, kwargs: dict[str, Any]) -> None:
    """Invoke's core flag -R/--dry only silences `Context.run`; for us it means `--check`, or nothing at all."""
    if "check" not in inspect.signature(body).parameters:
        raise UsageError(f"{body.__name__}: Invoke's --dry has no meaning here", details=["nothing was run"])
    kwargs["check"] = True


def _complain(text: str) -> None:
    head, _, rest = printable(text).partition("\n")
    bold, plain = ("\033[1;31m", "\033[0m") if sys.stderr.isatty() else ("", "")
    print(f"{bold}{head}{plain}" + (f"\n{rest}" if rest else ""), file=sys.stderr)
