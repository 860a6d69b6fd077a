"""The arguments of `sglang.launch_server`, by version, and how a canonical argument is spelled for one of them.

flags.json holds what the argument parser of each published wheel declares: one line for each run of versions in which
an argument did not change. Kinds: store (takes a value), flag (no value), bool (`--x` and `--no-x`), const and ignored
(left over for old command lines; they are never written by us).

A canonical name is today's dest: `fp4_gemm_runner_backend` for `--fp4-gemm-backend`. Old names are taken as well
(`nsa_decode_backend`), since people arrive with either.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal, NoReturn

from runbooks.engine.errors import UsageError
from runbooks.inventory.arguments import ELSEWHERE, FLAGS
from runbooks.inventory.arguments import plain as _name

Value = str | int | float | bool


class OtherVersion(UsageError):
    """Right as it is written, for another version than this one."""


# Values that were renamed together with their argument: sgl-project/sglang #25821 made nsa into dsa.
OLD_VALUES: Mapping[str, Mapping[str, str]] = {"attention_backend": {"dsa": "nsa"}}


@dataclass(frozen=True)
class Argument:
    """One argument, unchanged from version `first` to version `last`."""

    options: tuple[str, ...]
    dest: str
    kind: Literal["store", "flag", "bool", "const", "ignored"]
    type: str = "str"
    choices: tuple[str | int, ...] = ()
    nargs: str | None = None
    default: object = None
    required: bool = False
    deprecated: bool = False
    first: str = ""
    last: str = ""

    @property
    def positive(self) -> str:
        """The option to write: the one named as the canonical argument is, else the first."""
        named = [option for option in self.options if _name(option) == canonical(self.dest)]
        return (named or list(self.options))[0]

    @property
    def negative(self) -> str | None:
        """`--no-x` of an argument that has it."""
        return next((option for option in self.options if self.kind == "bool" and option.startswith("--no-")), None)


@cache
def _history() -> tuple[tuple[str, ...], tuple[Argument, ...]]:
    data = json.loads(FLAGS.read_text())
    return tuple(data["versions"]), tuple(_argument(line) for line in data["arguments"])


def _argument(line: Mapping[str, Any]) -> Argument:
    rest = {key: value for key, value in line.items() if key not in ("from", "to", "options", "choices")}
    return Argument(
        options=tuple(line["options"]),
        choices=tuple(line.get("choices", ())),
        first=line["from"],
        last=line["to"],
        **rest,
    )


def versions() -> tuple[str, ...]:
    """Every version with a table, oldest first."""
    return _history()[0]


@cache
def renamed() -> Mapping[str, str]:
    """Every other name -> today's dest: option names whose dest differs, and dests of older versions."""
    newest: dict[str, str] = {}
    order = {one: index for index, one in enumerate(versions())}
    usable = [argument for argument in _history()[1] if argument.kind in ("store", "flag", "bool")]
    for argument in sorted(usable, key=lambda argument: order[argument.last]):
        newest.update({_name(option): argument.dest for option in argument.options if option != argument.negative})
    for argument in usable:
        newest.setdefault(argument.dest, newest[_name(argument.options[0])])
    return {name: dest for name, dest in newest.items() if name != dest}


@cache
def canonical(name: str) -> str:
    """`nsa_decode_backend`, `--fp4-gemm-backend` -> today's dest. An unknown name comes back as it is."""
    plain = _name(name)
    return renamed().get(plain, plain)


def version_key(version: str) -> tuple[int, ...]:
    """Orders `0.5.9 < 0.5.10 < 0.5.10.post1`. Raises UsageError for what is no release number."""
    found = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(?:\.post(\d+))?(?:\+.*)?", version)
    if not found:
        raise UsageError(f"{version!r} is no SGLang version that we know how to order", details=_known_versions())
    return tuple(int(part or 0) for part in found.groups())


@dataclass(frozen=True)
class Table:
    """The arguments of one version. `note` says so when another version's table stands in for it."""

    version: str
    of: str
    note: str | None
    arguments: tuple[Argument, ...]

    @cached_property
    def _known(self) -> Mapping[str, Argument]:
        """By canonical name; a current argument before a deprecated alias of it."""
        known: dict[str, Argument] = {}
        for argument in sorted(self.arguments, key=lambda argument: argument.deprecated):
            if argument.kind in ("store", "flag", "bool"):
                known.setdefault(canonical(argument.dest), argument)
        return known

    @cached_property
    def _parser(self) -> _Parser:
        parser = _Parser(prog="launch_server.py", add_help=False)
        for argument in self.arguments:
            parser.add_argument(*argument.options, **_declaration(argument))
        return parser

    def find(self, name: str) -> Argument | None:
        """The argument for a name, whichever of its names that is."""
        return self._known.get(canonical(name))

    def spell(self, name: str, value: Value) -> list[str]:
        """The words of the command line for one argument. Raises UsageError for what this version does not take."""
        argument = self.find(name)
        if argument is None:
            raise self._unknown(name)
        if argument.kind == "store":
            return self._stored(argument, name, value)
        if not isinstance(value, bool):
            raise UsageError(f"{name}: {argument.positive} takes no value: true or false, not {value!r}")
        if value:
            return [argument.positive]
        return [argument.negative] if argument.negative else []

    def parse(self, argv: Sequence[str]) -> dict[str, object]:
        """What the launcher's own parser makes of an argv, abbreviations and all. Raises UsageError with its words."""
        return vars(self._parser.parse_args(list(argv)))

    def _stored(self, argument: Argument, name: str, value: Value) -> list[str]:
        words = str(value).split() if argument.nargs in ("+", "*") else [_text(value)]
        if argument.nargs == "+" and not words:
            raise UsageError(f"{name}: needs at least one value")
        if isinstance(value, bool):
            raise UsageError(f"{name}: {argument.positive} takes a value of type {argument.type}, not {_text(value)}")
        words = [self._checked(argument, name, word) for word in words]
        if len(words) == 1 and words[0][:1] in ("-", ""):
            return [f"{argument.positive}={words[0]}"]
        return [argument.positive, *words]

    def _checked(self, argument: Argument, name: str, word: str) -> str:
        before = OLD_VALUES.get(argument.dest, {}).get(word)
        if before and word not in argument.choices and before in argument.choices:
            word = before
        try:
            typed = TYPES.get(argument.type, str)(word)
        except ValueError:
            raise UsageError(
                f"{name}: {argument.positive} takes {_KINDS.get(argument.type, argument.type)}, not {word!r}"
            ) from None
        if argument.choices and typed not in argument.choices:
            raise self._no_choice(argument, name, word)
        return word

    def _no_choice(self, argument: Argument, name: str, word: str) -> UsageError:
        choices = [str(choice) for choice in argument.choices]
        details = [f"choices: {', '.join(choices)}"]
        where = _runs(a for a in _history()[1] if canonical(a.dest) == canonical(argument.dest) and word in a.choices)
        if where:
            details.append(f"{word} is a choice in {where}")
        kind = OtherVersion if where else UsageError
        return kind(
            f"{name}: {word!r} is no choice of {argument.positive} in SGLang {self.version}{_near(word, choices)}",
            details=details,
        )

    def _unknown(self, name: str) -> UsageError:
        plain = canonical(name)
        details = []
        if gone := [a for a in _history()[1] if plain in (a.dest, *map(_name, a.options))]:
            details.append(f"it exists in {_runs(gone)}")
        if note := REPLACED.get(plain):
            details.append(note)
        kind = OtherVersion if gone else UsageError
        return kind(f"SGLang {self.version} has no argument {name!r}{_near(plain, self._known)}", details=details)


REPLACED: Mapping[str, str] = {
    "enable_nan_detection": "now environment: SGLANG_ENABLE_ASYNC_ASSERT=1 stops at NaN, "
    "SGLANG_SANITIZE_NAN_LOGITS=1 hides it (sglang #26335, #27883)",
    "disable_piecewise_cuda_graph": "now cuda_graph_backend_prefill: disabled",
    **ELSEWHERE,
}


@cache
def table(version: str) -> Table:
    """The table of a version: its own, or the nearest lower one's with a note. UsageError below the lowest."""
    known = [one for one in versions() if version_key(one) <= version_key(version)]
    if not known:
        raise UsageError(
            f"SGLang {version} is older than every version that we have a flag table of", details=_known_versions()
        )
    of = known[-1]
    order = {one: index for index, one in enumerate(versions())}
    note = None if of == version.partition("+")[0] else f"no flag table for SGLang {version}: that of {of} is used"
    inside = [a for a in _history()[1] if order[a.first] <= order[of] <= order[a.last]]
    return Table(version, of, note, tuple(inside))


def _integer(word: str) -> int:
    """SGLang's human readable integers: 8192, 8k, 1M."""
    found = re.fullmatch(r"(\d+)([kKmMgG]?)", word)
    if not found:
        raise ValueError(word)
    return int(found[1]) * {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3}[found[2].lower()]


TYPES: Mapping[str, Callable[[str], object]] = {
    "int": int,
    "float": float,
    "loads": json.loads,
    "json_list_type": json.loads,
    "human_readable_int": _integer,
}
_KINDS = {"int": "a whole number", "float": "a number", "loads": "JSON", "json_list_type": "a JSON list"}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: error: {message}")


def _declaration(argument: Argument) -> dict[str, Any]:
    if argument.kind == "bool":
        return {"dest": argument.dest, "action": _Switch, "nargs": 0}
    if argument.kind == "flag":
        return {"dest": argument.dest, "action": "store_true"}
    if argument.kind == "store" or argument.choices:
        return {
            "dest": argument.dest,
            "type": TYPES.get(argument.type, str),
            "choices": argument.choices or None,
            "nargs": argument.nargs,
            "required": argument.required,
            "default": argparse.SUPPRESS if argument.deprecated else argument.default,
        }
    return {"dest": argument.dest, "action": "store_true", "default": argparse.SUPPRESS}


class _Switch(argparse.Action):
    def __call__(self, parser: object, namespace: object, values: object, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, not (option_string or "").startswith("--no-"))


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _near(word: str, words: Iterable[str]) -> str:
    known = sorted(words)
    close = difflib.get_close_matches(word, known, n=2, cutoff=0.6) or [k for k in known if k.startswith(word)][:2]
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _runs(arguments: Iterable[Argument]) -> str:
    """`0.5.9 to 0.5.19, 0.5.22`: the versions of these arguments, neighbours joined."""
    order = {one: index for index, one in enumerate(versions())}
    inside = sorted({i for a in arguments for i in range(order[a.first], order[a.last] + 1)})
    runs: list[list[int]] = []
    for index in inside:
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    names = versions()
    return ", ".join(names[a] if a == b else f"{names[a]} to {names[b]}" for a, b in runs)


def _known_versions() -> list[str]:
    return [f"versions with a table: {', '.join(versions())}"]
