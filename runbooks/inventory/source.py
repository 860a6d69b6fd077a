"""YAML with line numbers: values, where each stands in the file, and every problem on the way.

Plain words follow YAML 1.2, not 1.1: `on` and `no` are text, `4.1e11` is a number, `10:30` is none.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import yaml

if yaml.__with_libyaml__:  # five times as fast
    from yaml import CSafeLoader as _Reader
else:
    from yaml import SafeLoader as _Reader  # type: ignore[assignment]

MOST_VALUES = 20_000  # an inventory has hundreds; aliases of aliases multiply
LONGEST = 80  # characters of a word that a message repeats

Path = tuple[str | int, ...]
"""Where a value stands: ("hosts", "glm5-a", "address")."""


@dataclass(frozen=True, order=True)
class Problem:
    """One thing wrong, said with its line and path. `line` counts from 1; 0 is the file as a whole."""

    line: int
    path: str
    text: str

    def show(self, file: str) -> str:
        place = f"{file}:{self.line}" if self.line else file
        return f"{place}  {self.path}: {self.text}" if self.path else f"{place}  {self.text}"


@dataclass
class Document:
    """The values of a file as plain dicts, lists and scalars, with the line of each path."""

    value: object = None
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line(self, path: Path) -> int:
        """The line of a path, or of the nearest one above it that exists."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 0)

    def problem(self, path: Path, text: str) -> None:
        self.problems.append(Problem(self.line(path), dotted(path), text))


def dotted(path: Path) -> str:
    """`hosts.glm5-a.address`, `groups.all.hosts[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{shown(part)}" if text else shown(part)
    return text


def shown(word: str) -> str:
    """A word of the file in a message: no line, colour or reading direction of its own, and not a page of it."""
    plain = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in word[:LONGEST])
    return plain + (f"... ({len(word):,} characters)" if len(word) > LONGEST else "")


def near(word: str, words: Iterable[str]) -> str:
    """`; did you mean X?` or, with nothing near, `; there are: A, B`."""
    known = list(words)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; there are: {', '.join(known)}" if known else "; there are none"


class _Loader(_Reader):
    """SafeLoader with YAML 1.2's plain scalars."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("tag:yaml.org,2002:null", r"(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", r"(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("tag:yaml.org,2002:int", r"[-+]?(?:0|[1-9][0-9_]*)$", list("-+0123456789")),
    ("tag:yaml.org,2002:float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", list("-+.0123456789")),
    ("tag:yaml.org,2002:merge", r"<<$", ["<"]),
):
    _Loader.add_implicit_resolver(_tag, re.compile(_pattern), _first)


def read(text: str) -> Document:
    """Parse one YAML document. Syntax errors, repeated keys and odd keys become problems, not exceptions."""
    document = Document()
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is not None:
            document.value = _build(loader, node, (), document, frozenset())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = Problem(mark.line + 1 if mark else 0, "", _plain(error, text))
        document.problems.append(_open_quote(error, text) or problem)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        document.problems.append(Problem(line, "", f"not YAML: {str(error).splitlines()[0]}"))
    except RecursionError:
        document.problems.append(Problem(1, "", "nested too deeply"))
    except (yaml.YAMLError, ValueError) as error:
        document.problems.append(Problem(0, "", f"not YAML: {str(error).splitlines()[0]}"))
    return document


def _build(loader: _Loader, node: yaml.Node, path: Path, document: Document, above: frozenset[int]) -> object:
    document.lines.setdefault(path, node.start_mark.line + 1)
    if id(node) in above:
        document.problem(path, "an alias points at something that contains it")
        return None
    above |= {id(node)}
    if len(document.lines) > MOST_VALUES:
        raise yaml.MarkedYAMLError(
            problem=f"more than {MOST_VALUES:,} values (aliases of aliases multiply)", problem_mark=node.start_mark
        )
    if isinstance(node, yaml.SequenceNode):
        return [_build(loader, child, (*path, i), document, above) for i, child in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return _single(loader, node, path, document)
    result: dict[str, object] = {}
    _refuse_repeats(loader, node, path, document)
    loader.flatten_mapping(node)  # `<<: *anchor`: the merged pairs come first, so that the mapping's own keys win
    for key_node, value_node in node.value:
        key = _key(loader, key_node)
        document.lines[(*path, key)] = key_node.start_mark.line + 1
        result[key] = _build(loader, value_node, (*path, key), document, above)
    return result


def _single(loader: _Loader, node: yaml.Node, path: Path, document: Document) -> object:
    """One plain value. PyYAML lets `!!bool maybe`, and a number of 5,000 digits, out as exceptions of any kind."""
    make: Callable[[yaml.Node], object] = loader.construct_object
    try:
        return make(node)
    except (AttributeError, KeyError, ValueError):
        document.problem(path, f"{node.value[:40]!r} cannot be read as {node.tag.rpartition(':')[2]}")
        return None


def _refuse_repeats(loader: _Loader, node: yaml.MappingNode, path: Path, document: Document) -> None:
    seen: dict[str, int] = {}
    for key_node, _ in node.value:
        key, line = _key(loader, key_node), key_node.start_mark.line + 1
        if key in seen and key != "<<":
            document.problems.append(
                Problem(line, dotted((*path, key)), f"a second time; the first is on line {seen[key]}")
            )
        seen.setdefault(key, line)


def _key(loader: _Loader, node: yaml.Node) -> str:
    """Keys are kept as they are written: `32:` in a mapping is "32", and its struct decides if that is a number."""
    return str(node.value) if isinstance(node, yaml.ScalarNode) else "<a list or mapping as a key>"


def _open_quote(error: yaml.MarkedYAMLError, text: str) -> Problem | None:
    """Where a quote is missing, YAML stumbles over the next one, pages below: the line where the open one begins."""
    if error.context == "while scanning a quoted scalar" and error.context_mark:
        return Problem(error.context_mark.line + 1, "", "not YAML: a quote is opened here, and never closed")
    if error.problem_mark is None or error.context not in (
        "while parsing a block mapping",
        "while parsing a flow mapping",
    ):
        return None
    above: yaml.ScalarToken | None = None
    try:
        for token in yaml.scan(text, Loader=_Reader):
            if token.start_mark.index >= error.problem_mark.index:
                break
            if isinstance(token, yaml.ScalarToken) and token.style in ("'", '"'):
                above = token
    except yaml.YAMLError:  # the scanner itself stumbles behind it
        pass
    if above is None or above.start_mark.line == above.end_mark.line or above.end_mark.line != error.problem_mark.line:
        return None
    ends = above.end_mark.line + 1
    return Problem(
        above.start_mark.line + 1, "", f"not YAML: the quote that is opened here ends on line {ends}; is one missing?"
    )


def _plain(error: yaml.MarkedYAMLError, text: str) -> str:
    mark = error.problem_mark or error.context_mark
    line = text.splitlines()[mark.line] if mark and mark.line < len(text.splitlines()) else ""
    if "\t" in line[: len(line) - len(line.lstrip())] or "'\\t'" in str(error.problem):
        return "a tab; YAML is indented by spaces only"
    reason = error.problem or "unreadable"
    if "nesting depth" in reason:
        return "nested too deeply"
    return f"not YAML: {reason}" + (f" ({error.context})" if error.context else "")
