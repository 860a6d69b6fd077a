"""Files, directories and links. Written beside their place and renamed into it, so that nobody sees half a file."""

from __future__ import annotations

import difflib
import hashlib
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runbooks import paths
from runbooks.engine.errors import UsageError
from runbooks.engine.secret import MASK, Secret
from runbooks.engine.step import Answers, Change, Diff, Question, State, Verdict, quote
from runbooks.steps import ask

if TYPE_CHECKING:
    import jinja2

TEMPLATES = Path(__file__).parents[2] / "templates"


@dataclass(frozen=True, kw_only=True)
class File:
    """A regular file with exactly this content, owner and mode. A Secret is shown masked, and never sent back.

    `then` is shell text that runs behind a change of the content, for what can be repeated without harm. That it is
    owed is a mark on the host: a run that is killed, or fails, between the two leaves it to the next one.
    """

    path: str
    content: str | Secret
    owner: str = "root:root"
    mode: int = 0o644
    then: str = ""

    @property
    def id(self) -> str:
        return f"file {self.path}"

    @property
    def _data(self) -> bytes:
        return (self.content.reveal() if isinstance(self.content, Secret) else self.content).encode()

    @property
    def _sha256(self) -> str:
        return hashlib.sha256(self._data).hexdigest()

    @property
    def _question(self) -> Question:
        return ask.path(self.path, wanted="=" if isinstance(self.content, Secret) else self._sha256)

    @property
    def _owed(self) -> str:
        return f"{paths.STATE}/owed-{hashlib.sha256(self.path.encode()).hexdigest()[:12]}"

    def questions(self) -> tuple[Question, ...]:
        return (self._question, *([ask.path(self._owed)] if self.then else []))

    def plan(self, answers: Answers) -> Change | Verdict | None:
        state = answers[self._question]
        if state.get("type") == "directory":
            return in_the_way(self.path, "directory", "file")
        attributes = changed_attributes(state, self.owner, self.mode)
        if state.get("type") == "file" and state.get("sha256") == self._sha256:
            if self.then and answers[ask.path(self._owed)].get("type") is not None:
                diff = [Diff("written before, and not taken over yet"), *attributes]
                script = attribute_script(self.path, self.owner, self.mode)
                return Change(script=f"{script}\n{self._then()}", diff=tuple(diff))
            return set_attributes(self.path, self.owner, self.mode, attributes)
        diff = [Diff(self._headline(state), self._unified(state)), *attributes]
        script, uploads = write_file(self.path, self.content, owner=self.owner, mode=self.mode)
        if self.then:
            script = f"mkdir -p -- {paths.STATE}\n: >{self._owed}\n{script}\n{self._then()}"
        return Change(script=script, diff=tuple(diff), uploads=uploads)

    def _then(self) -> str:
        return f"{self.then}\nrm -f -- {self._owed}"

    def _headline(self, state: State) -> str:
        if state.get("type") is None:
            return f"new, mode {self.mode:04o}, {self.owner}"
        return "content" if state["type"] == "file" else f"a {state['type']} becomes a file"

    def _unified(self, state: State) -> str:
        if isinstance(self.content, Secret):
            return f"--- {self.path}\n+++ {self.path}\n-{MASK}\n+{MASK}\n"
        if state.get("type") == "file" and not isinstance(state.get("text"), str):
            return f"--- {self.path}\n+++ {self.path}\n(the present content is long, or no text)\n"
        return unified(self.path, str(state.get("text") or ""), self.content)


def unified(path: str, old: str, new: str) -> str:
    """A unified diff; a missing last line end is said, as diff(1) does."""
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    lines = difflib.unified_diff(before, after, path, path)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def render(template: str, values: Mapping[str, object], *, folder: Path = TEMPLATES) -> str:
    """Fill a template. Raises UsageError with the template's name and line for an undefined name or a syntax error."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # units and shell, not HTML
    )
    try:
        return environment.get_template(template).render(values)
    except jinja2.TemplateNotFound as error:
        raise UsageError(f"there is no template {error.name} in {folder}") from None
    except jinja2.TemplateSyntaxError as error:
        raise UsageError(f"template {error.name or template}, line {error.lineno}: {error.message}") from None
    except jinja2.UndefinedError as error:
        raise UsageError(f"template {_template_place(error, template, folder)}: {error.message}") from None


def _template_place(error: jinja2.UndefinedError, template: str, folder: Path) -> str:
    """Jinja rewrites tracebacks so that frames of a template, an included one too, carry its file name and line."""
    place, frame = f"{template}, line 0", error.__traceback__
    while frame is not None:
        file = Path(frame.tb_frame.f_code.co_filename)
        if file.is_relative_to(folder):
            place = f"{file.relative_to(folder)}, line {frame.tb_lineno}"
        frame = frame.tb_next
    return place


@dataclass(frozen=True, kw_only=True)
class Directory:
    """A directory with this owner and mode; those above it are made as root's with mode 0755 when they are missing."""

    path: str
    owner: str = "root:root"
    mode: int = 0o755

    @property
    def id(self) -> str:
        return f"directory {self.path}"

    def questions(self) -> tuple[Question, ...]:
        return (ask.path(self.path),)

    def plan(self, answers: Answers) -> Change | Verdict | None:
        state = answers[ask.path(self.path)]
        if state.get("type") is None:
            made = f"{make_parents(self.path)}\n[ -d {quote(self.path)} ] || mkdir -- {quote(self.path)}"
            attributes = attribute_script(self.path, self.owner, self.mode)
            return Change(script=f"{made}\n{attributes}", diff=(Diff(f"new, mode {self.mode:04o}, {self.owner}"),))
        if state["type"] != "directory":
            return in_the_way(self.path, str(state["type"]), "directory")
        return set_attributes(self.path, self.owner, self.mode, changed_attributes(state, self.owner, self.mode))


@dataclass(frozen=True, kw_only=True)
class Symlink:
    """A symbolic link with this target. Replaced in one rename, so there is no moment without it."""

    path: str
    target: str

    @property
    def id(self) -> str:
        return f"link {self.path}"

    def questions(self) -> tuple[Question, ...]:
        return (ask.path(self.path),)

    def plan(self, answers: Answers) -> Change | Verdict | None:
        state = answers[ask.path(self.path)]
        if state.get("type") not in (None, "symlink"):
            return in_the_way(self.path, str(state["type"]), "link")
        if state.get("target") == self.target:
            return None
        folder, name = posixpath.split(self.path)
        # ln makes the link in a fresh folder beside it: a fixed temporary name could be taken, and mv would follow it.
        script = f"""\
{make_parents(self.path)}
t=$(mktemp -d {quote(folder + "/.rb-XXXXXXXX")})
ln -s -- {quote(self.target)} "$t"/{quote(name)}
mv -fT -- "$t"/{quote(name)} {quote(self.path)}
rmdir -- "$t\""""
        old = state.get("target")
        line = f"target {old} -> {self.target}" if old is not None else f"new, to {self.target}"
        return Change(script=script, diff=(Diff(line),))


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line in a file that others own too: replaces the first line that the regex `owns` matches, or is added."""

    path: str
    line: str
    owns: str

    @property
    def id(self) -> str:
        return f"line in {self.path}: {self.line}"

    def questions(self) -> tuple[Question, ...]:
        return (ask.path(self.path, wanted="*"),)

    def plan(self, answers: Answers) -> Change | Verdict | None:
        state = answers[ask.path(self.path, wanted="*")]
        if state.get("type") is not None and not isinstance(state.get("text"), str):
            return Verdict(
                ok=False, line=f"{self.path} cannot be edited by the line: it is no text file of under 64 KiB"
            )
        old = str(state.get("text") or "")
        new = self._edited(old)
        if new == old:
            return None
        owner, mode = str(state.get("owner", "root:root")), int(state.get("mode") or 0o644)
        script, _ = write_file(self.path, new, owner=owner, mode=mode)
        return Change(script=script, diff=(Diff(f"line: {self.line}", unified(self.path, old, new)),))

    def _edited(self, old: str) -> str:
        lines = old.splitlines()
        mine = [number for number, line in enumerate(lines) if re.match(self.owns, line)]
        if not mine:
            lines.append(self.line)
        elif lines[mine[0]] == self.line:
            return old
        else:
            lines[mine[0]] = self.line
        return "\n".join(lines) + "\n"


# --- shared by everything that writes


def in_the_way(path: str, found: str, wanted: str) -> Verdict:
    """We replace what we can put back, never a whole directory."""
    return Verdict(
        ok=False,
        line=f"{path} is a {found}, and should be a {wanted}",
        details=("it is left alone: nobody here knows what is in it",),
        next=f"mv {quote(path)} {quote(path + '.old')}",
    )


def changed_attributes(state: State, owner: str, mode: int) -> tuple[Diff, ...]:
    if state.get("type") is None or state["type"] == "symlink":
        return ()
    diff = []
    if state["mode"] != mode:
        diff.append(Diff(f"mode {int(state['mode'] or 0):04o} -> {mode:04o}"))
    if state["owner"] != owner:
        diff.append(Diff(f"owner {state['owner']} -> {owner}"))
    return tuple(diff)


def set_attributes(path: str, owner: str, mode: int, diff: tuple[Diff, ...]) -> Change | None:
    return Change(script=attribute_script(path, owner, mode), diff=diff) if diff else None


def attribute_script(path: str, owner: str, mode: int) -> str:
    """Owner first: chown clears the set-id bits of a mode."""
    return f"chown -- {quote(owner)} {quote(path)}\nchmod -- {mode:04o} {quote(path)}"


def keep_owner(owner: str) -> str:
    """`$t`, just made, gets its owner; for root's own files the shell looks first, as it needs no process for that."""
    change = f'chown -- {quote(owner)} "$t"'
    return f'{{ [ -O "$t" ] && [ -G "$t" ]; }} || {change}' if owner == "root:root" else change


def make_parents(path: str) -> str:
    folder = posixpath.dirname(path)
    return f"[ -d {quote(folder)} ] || (umask 022; mkdir -p -- {quote(folder)})"


def write_file(
    path: str, content: str | Secret | bytes, *, owner: str = "root:root", mode: int = 0o644
) -> tuple[str, dict[str, Secret | bytes]]:
    """Shell text that puts a file in place in one rename, and the uploads that it needs.

    A secret, and what is long or holds a NUL byte, travels as an upload: never in a script.
    """
    uploads: dict[str, Secret | bytes] = {}
    data = content if isinstance(content, Secret | bytes) else content.encode()
    if isinstance(data, bytes) and len(data) < ask.TEXT_LIMIT and b"\0" not in data and not isinstance(content, bytes):
        fill = f"printf %s {quote(data.decode())}"
    else:
        name = f"file-{hashlib.sha256(path.encode()).hexdigest()[:12]}"
        uploads[name] = data
        fill = f'cat -- "$UPLOADS"/{name}'
    folder = posixpath.dirname(path)
    script = f"""\
{make_parents(path)}
t=$(mktemp {quote(folder + "/.rb-XXXXXXXX")})
{fill} >"$t" || {{ df -hP "$t"; rm -f -- "$t"; exit 1; }}
{keep_owner(owner)}
chmod -- {mode:04o} "$t"
mv -fT -- "$t" {quote(path)}"""
    return script, uploads
