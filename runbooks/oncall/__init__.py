"""The on-call pages: Markdown files beside this one, shown in the terminal by `invoke runbook PAGE`."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from runbooks.engine.errors import UsageError
from runbooks.oncall.blocks import attributed

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Page:
    """`title` is the first heading, `summary` the first line below it."""

    name: str
    title: str
    summary: str
    text: str


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.md"))


def load(name: str) -> Page:
    """One page. Raises UsageError with the nearest name where there is none."""
    if not name:
        raise UsageError("which page?", details=[f"the pages are: {', '.join(names())}"], next="invoke runbook")
    if name not in names():
        near = get_close_matches(name, names(), n=1, cutoff=0.4)
        raise UsageError(
            f"there is no page {name!r}",
            details=[f"did you mean {near[0]}?"] if near else [f"the pages are: {', '.join(names())}"],
            next=f"invoke runbook {near[0]}" if near else "invoke runbook",
        )
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return Page(name, lines[0].removeprefix("# "), lines[1], text)


def show(name: str = "", *, plain: bool = False) -> int:
    """Show a page, or list them all; on a terminal with rich, elsewhere as the plain Markdown that it is."""
    plain = plain or not sys.stdout.isatty()
    if not name:
        _list(plain)
        return 0
    page = load(name)
    if plain:
        print(page.text.rstrip())
        return 0
    from rich.markdown import Markdown

    from runbooks.engine.printers import console

    screen = console()
    screen.width = min(100, screen.width)
    screen.print(Markdown(attributed(page.text), code_theme="ansi_dark"))
    return 0


def _list(plain: bool) -> None:
    pages = [load(name) for name in names()]
    if plain:
        width = max(len(page.name) for page in pages)
        for page in pages:
            print(f"{page.name:<{width}}  {_as_words(page.summary)}")
        return
    from rich.table import Table
    from rich.text import Text

    from runbooks.engine.printers import console

    table = Table("page", "when", box=None, pad_edge=False)
    for page in pages:
        table.add_row(page.name, _as_words(page.summary))
    screen = console()
    screen.print(table)
    screen.print(Text("\ninvoke runbook PAGE", style="dim"))


def _as_words(line: str) -> str:
    """A line of Markdown without its marks."""
    return re.sub(r"\*+(\S(?:.*?\S)?)\*+", r"\1", line.replace("`", ""))
