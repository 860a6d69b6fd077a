"""What takes long to make and is never changed afterwards, and plain commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from runbooks.engine.secret import Secret
from runbooks.engine.step import Answers, Change, Diff, Question, quote, shell
from runbooks.steps import ask
from runbooks.steps.files import make_parents


@dataclass(frozen=True, kw_only=True)
class BuiltOnce:
    """A folder that a recipe fills, and that counts only once the recipe came to its end.

    The mark `built` is written last; a folder without it was left half done, and is begun again from nothing.
    `recipe` is shell text with the folder in `$FOLDER`. `keeps` are results, below the folder, whose loss means to
    build again. It is built in its place, not renamed into it: a virtual environment carries its own path inside.
    """

    name: str
    folder: str
    recipe: str
    shown: tuple[str, ...]
    keeps: tuple[str, ...] = ()
    limit: float = 3600.0
    uploads: Mapping[str, Secret | bytes] = field(default_factory=dict)
    page: str | None = None

    @property
    def id(self) -> str:
        return self.name

    @property
    def mark(self) -> Question:
        return ask.path(f"{self.folder}/built")

    def questions(self) -> tuple[Question, ...]:
        return (self.mark, *(ask.path(f"{self.folder}/{kept}") for kept in self.keeps))

    def plan(self, answers: Answers) -> Change | None:
        if not is_there(answers[self.mark]):
            return self.build(f"new, {self.folder}")
        lost = [kept for kept in self.keeps if answers[ask.path(f"{self.folder}/{kept}")].get("type") is None]
        return self.build(f"again: {', '.join(lost)} is gone") if lost else None

    def build(self, why: str) -> Change:
        script = f"""\
FOLDER={quote(self.folder)}
{make_parents(self.folder)}
rm -rf -- "$FOLDER"
umask 022
mkdir -- "$FOLDER"
{self.recipe}
date -u +%Y-%m-%dT%H:%M:%SZ >"$FOLDER/.built"
mv -f -- "$FOLDER/.built" "$FOLDER/built\""""
        diff = (Diff(why), *map(Diff, self.shown))
        return Change(script=script, diff=diff, limit=self.limit, uploads=self.uploads, page=self.page)


def is_there(state: Mapping[str, object]) -> bool:
    return state.get("type") is not None


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command for what no step describes: done when `creates` exists, or when the test `unless` succeeds."""

    name: str
    script: str
    creates: str | None = None
    unless: str | None = None
    limit: float = 600.0

    def __post_init__(self) -> None:
        if (self.creates is None) == (self.unless is None):
            raise ValueError(f"{self.name}: exactly one of creates and unless tells when there is nothing to do")

    @property
    def id(self) -> str:
        return self.name

    @property
    def _question(self) -> Question:
        return ask.path(self.creates) if self.creates is not None else shell(f"( {self.unless} ) >/dev/null 2>&1")

    def questions(self) -> tuple[Question, ...]:
        return (self._question,)

    def plan(self, answers: Answers) -> Change | None:
        state = answers[self._question]
        done = is_there(state) if self.creates is not None else state.get("rc") == 0
        return None if done else Change(script=self.script, diff=(Diff("run"),), limit=self.limit)
