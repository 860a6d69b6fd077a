"""What hosts, logs and files say reaches a terminal letter by letter, through every kind of event."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from runbooks.engine import printers
from runbooks.engine.printers import RichPrinter, console
from runbooks.engine.report import Reporter

ROOT = Path(__file__).parents[2]
HOSTILE = "[bold]x[/bold] [/foo] [mem 0x1] :smile:"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Console:
    """A wide one, which keeps what it is shown."""
    kept = console()
    kept.width, kept.height, kept.record = 300, 50, True
    monkeypatch.setattr(kept, "_force_terminal", True)
    monkeypatch.setattr(printers, "console", lambda: kept)
    return kept


KINDS: dict[str, Callable[[Reporter], None]] = {
    "heading": lambda report: report.heading(HOSTILE),
    "note": lambda report: report.note(HOSTILE, host="a"),
    "details": lambda report: report.note(f"x\n{HOSTILE}"),
    "host": lambda report: report.note("x", host=HOSTILE),
    "error": lambda report: report.emit("result", HOSTILE, state="failed"),
    "step": lambda report: report.emit("step", "x", state="changed", diff=[HOSTILE]),
    "unified": lambda report: report.emit("step", "x", state="would-change", unified=f"+{HOSTILE}"),
    "stage": lambda report: report.emit("stage", HOSTILE, state="ok"),
    "output": lambda report: report.output(HOSTILE),
    "title": lambda report: report.table(HOSTILE, ["a"], [["b"]]),
    "column": lambda report: report.table("x", [HOSTILE], [["b"]]),
    "cell": lambda report: report.table("x", ["a"], [[HOSTILE]]),
    "table's host": lambda report: report.table("x", ["a"], [["b"]], host=HOSTILE),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_finished_line_keeps_its_brackets(kind: str, terminal: Console, capsys: pytest.CaptureFixture[str]) -> None:
    report = Reporter(RichPrinter(verbose=True))
    KINDS[kind](report)
    report.close()
    assert HOSTILE in terminal.export_text()


@pytest.mark.parametrize("where", ["text", "detail", "host", "output"])
def test_a_live_line_keeps_its_brackets(where: str, terminal: Console, capsys: pytest.CaptureFixture[str]) -> None:
    printer = RichPrinter()
    report = Reporter(printer)
    if where == "output":
        report.output(HOSTILE, host="a")
    else:
        words = {"text": "x", "detail": "", "host": "a"} | {where: HOSTILE}
        report.progress(words["text"], 1, 3, host=words["host"], detail=words["detail"])
    terminal.print(printer._live.get_renderable())
    report.close()
    assert HOSTILE in terminal.export_text()


def test_there_is_one_console() -> None:
    """Another one would read markup in what is not ours."""
    made = [
        path.relative_to(ROOT).as_posix()
        for folder in ("runbooks", "lab")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("Console", "from_markup", "render")
        if "rich" in path.read_text()
    ]
    assert made == ["runbooks/engine/printers.py"]
