"""How events look: on a terminal (rich), in a pipe or a log (plain), for programs (JSON lines)."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any, Literal, TextIO

from runbooks.engine.report import Event, Printer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

MARKS = {
    "ok": "✓",
    "good": "✓",
    "promoted": "✓",
    "unchanged": "✓",
    "changed": "+",
    "would-change": "~",
    "left-out": "·",
    "failed": "✗",
    "error": "✗",
    "warning": "!",
    "undecided": "?",
    "info": "·",
}
STYLES = {
    "ok": "green",
    "good": "green",
    "promoted": "green",
    "unchanged": "green",
    "changed": "yellow",
    "would-change": "yellow",
    "left-out": "yellow",
    "failed": "bold red",
    "error": "bold red",
    "warning": "yellow",
    "undecided": "cyan",
    "info": "dim",
}

KEPT_WHOLE = 13
"""Characters up to which a table's column is not broken on a narrow terminal while the longer ones can make room."""


def printer(*, json_lines: bool = False, plain: bool = False, verbose: bool = False) -> Printer:
    """The printer for this run: JSON when asked, rich on a terminal, plain elsewhere. `verbose`: with all chatter."""
    if json_lines:
        return JsonPrinter(sys.stdout)
    if plain or not sys.stdout.isatty():
        return PlainPrinter(sys.stdout, verbose=verbose)
    return RichPrinter(verbose=verbose)


def console() -> Console:
    """The only one that there is: what hosts, logs and pages say has square brackets and colons, which mean nothing."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False)


class JsonPrinter:
    """One event a line."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def show(self, event: Event) -> None:
        line = {"event": event.kind, "host": event.host, "text": event.text, **event.data, "time": event.time}
        print(json.dumps(line, ensure_ascii=False), file=self._out, flush=True)

    def close(self) -> None:
        self._out.flush()


class PlainPrinter:
    """Whole lines, for pipes and logs. Of a progress only each tenth of the way is printed, of chatter nothing."""

    def __init__(self, out: TextIO, *, verbose: bool = False) -> None:
        self._out = out
        self._verbose = verbose
        self._tenths: dict[tuple[str | None, str], int] = {}

    def show(self, event: Event) -> None:
        if event.kind == "table":
            for line in table_lines(event):
                self._print(line)
        elif event.kind == "progress":
            self._progress(event)
        elif event.kind == "heading":
            self._print(f"\n== {event.text}")
        elif self._verbose or not event.data.get("chatter"):
            for line in event_lines(event):
                self._print(line)

    def _progress(self, event: Event) -> None:
        key, total = (event.host, event.text), event.data["total"]
        tenth = int(10 * event.data["done"] / total) if total else int(event.data["done"] // 10)
        if self._tenths.get(key) != tenth and not _is_done(event):
            self._tenths[key] = tenth
            self._print(f"{_prefix(event)}… {progress_text(event)}")

    def _print(self, line: str) -> None:
        print(line, file=self._out, flush=True)

    def close(self) -> None:
        self._out.flush()


class RichPrinter:
    """Finished lines scroll up; what is under way stays in live lines at the bottom."""

    def __init__(self, *, verbose: bool = False) -> None:
        from rich.progress import Progress, SpinnerColumn, TextColumn

        self._console = console()
        self._live = Progress(
            SpinnerColumn(), TextColumn("{task.description}", markup=False), console=self._console, transient=True
        )
        self._tasks: dict[tuple[str | None, str], TaskID] = {}
        self._verbose = verbose

    def show(self, event: Event) -> None:
        if event.kind == "progress":
            self._line((event.host, event.text), f"{_prefix(event)}{progress_text(event)}", _is_done(event))
        elif event.kind == "output" and not self._verbose:
            self._line((event.host, "output"), f"{_prefix(event)}{event.text.strip()}", False)
        else:
            self._settle(event)
            self._finished(event)

    def _finished(self, event: Event) -> None:
        from rich.text import Text

        if event.kind == "table":
            self._table(event)
        elif event.kind == "heading":
            self._console.print()
            self._console.print(Text(event.text, style="bold"))
        else:
            style = STYLES.get(event.data.get("state") or event.data.get("level") or "", "")
            said, *below = event_lines(event)
            if event.kind in ("note", "result"):
                said = _wrapped(said, self._console.width, len(_prefix(event)) + 2)
            self._console.print(Text(said, style=style), soft_wrap=True)
            for line in below:  # commands and logs: never broken, so that they can be copied
                self._console.print(Text(line, style=_diff_style(line.removeprefix(_prefix(event)))), soft_wrap=True)

    def _table(self, event: Event) -> None:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        self._console.print(
            Text(f"{_prefix(event)}{event.text}", style="italic")
        )  # a Table breaks its title at its width
        table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        widths = [max(map(len, cells)) for cells in zip(event.data["columns"], *event.data["rows"], strict=True)]
        whole = sum(min(width, KEPT_WHOLE) + 2 for width in widths) < self._console.width
        for name, right, width in zip(event.data["columns"], _numeric_columns(event), widths, strict=True):
            justify: Literal["left", "right"] = "right" if right else "left"
            table.add_column(name, justify=justify, overflow="fold", no_wrap=whole and width <= KEPT_WHOLE)
        for row in event.data["rows"]:
            table.add_row(*(Text(cell) for cell in row))
        self._console.print(table)

    def _line(self, key: tuple[str | None, str], text: str, done: bool) -> None:
        self._live.start()
        width = max(20, self._console.width - 4)
        if done and key in self._tasks:
            self._live.remove_task(self._tasks.pop(key))
        elif not done and key in self._tasks:
            self._live.update(self._tasks[key], description=text[:width])
        elif not done:
            self._tasks[key] = self._live.add_task(text[:width])

    def _settle(self, event: Event) -> None:
        """A stage or a result that ended takes its host's live lines with it."""
        if event.kind in ("stage", "result", "heading", "table"):
            for key in [key for key in self._tasks if event.host is None or key[0] == event.host]:
                self._live.remove_task(self._tasks.pop(key))
        if not self._tasks:
            self._live.stop()

    def close(self) -> None:
        self._live.stop()


def _wrapped(line: str, width: int, indent: int) -> str:
    """A sentence broken between words; a path or an address that is too long stays whole."""
    import textwrap

    return textwrap.fill(line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def event_lines(event: Event) -> list[str]:
    """A note, a step, a stage or a result as lines of text, each with its host."""
    state = event.data.get("state") or event.data.get("level") or "info"
    indent = "    " if event.kind in ("step", "output") else ""
    mark = "" if event.kind == "output" else f"{MARKS.get(state, '·')} "
    first, *more = event.text.split("\n")
    first = first.removesuffix(f"   ({event.host})")  # of an error: the line begins with it
    below = [*more, *event.data.get("diff", ()), *str(event.data.get("unified", "")).splitlines()]
    return [f"{_prefix(event)}{indent}{mark}{first}", *(f"{_prefix(event)}{indent}    {line}" for line in below)]


def table_lines(event: Event) -> list[str]:
    """A table in plain text; columns of numbers stand to the right."""
    columns, rows = event.data["columns"], event.data["rows"]
    right = _numeric_columns(event)
    widths = [max(len(str(row[i])) for row in [columns, *rows]) for i in range(len(columns))]
    lines = [f"{_prefix(event)}{event.text}"]
    for row in [columns, *rows]:
        cells = (str(c).rjust(w) if r else str(c).ljust(w) for c, w, r in zip(row, widths, right, strict=True))
        lines.append("  " + "  ".join(cells).rstrip())
    return lines


def progress_text(event: Event) -> str:
    done, total, unit = event.data["done"], event.data["total"], event.data["unit"]
    known = done or total  # nothing done of an unknown amount: the detail says it all
    amount = f"{done:.4g}" + (f"/{total:.4g}" if total else "") + (f" {unit}" if unit else "") if known else ""
    return "  ".join(part for part in (event.text, amount, event.data["detail"]) if part)


def _is_done(event: Event) -> bool:
    return bool(event.data["total"]) and event.data["done"] >= event.data["total"]


def _prefix(event: Event) -> str:
    return f"{event.host}  " if event.host else ""


def _diff_style(line: str) -> str:
    return {"+": "green", "-": "red", "@": "cyan"}.get(line.strip()[:1], "dim")


_NUMBER = re.compile(r"$|[-–]$|[-+<>±–]? ?\d")
"""A cell of a column of numbers: empty, a dash for none, or what begins with a number."""


def _numeric_columns(event: Event) -> list[bool]:
    rows: list[list[Any]] = event.data["rows"]
    return [bool(rows) and all(_NUMBER.match(str(row[i])) for row in rows) for i in range(len(event.data["columns"]))]
