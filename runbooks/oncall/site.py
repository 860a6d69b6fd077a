"""`invoke docs`: the pages as a site that can be searched without a network, made by Sphinx (the extra `docs`)."""

from __future__ import annotations

import http.server
import importlib.util
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from runbooks import oncall
from runbooks.engine.errors import RunbookError, UsageError
from runbooks.oncall.blocks import attributed
from runbooks.paths import expand

PORT = 8000
MARK = "index.html"  # a folder that holds other things than a site is not written over


def build(out: str) -> int:
    """Write the site into a folder; what a site before left there is replaced."""
    folder = expand(out)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir()) and not (folder / MARK).exists()):
        raise UsageError(f"{out} holds something else than a site", next="invoke docs --out ANOTHER")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"nothing can be written to {folder}: {error.strerror}") from None
    with tempfile.TemporaryDirectory(prefix="runbooks-docs-") as work:
        write_sources(Path(work))
        _generate(Path(work), folder)
    print(f"{len(oncall.names())} pages in {folder}/{MARK}")
    return 0


def show(out: str) -> int:
    """Build, then serve to this machine until Ctrl-C."""
    build(out)
    handler = partial(_Quiet, directory=str(expand(out)))
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", PORT), handler)
    except OSError as error:
        raise RunbookError(f"cannot listen on 127.0.0.1:{PORT}: {error.strerror or error}") from None
    print(f"http://127.0.0.1:{PORT}/   Ctrl-C ends it", flush=True)
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""


def write_sources(folder: Path) -> None:
    """The pages as Sphinx reads them: a block's attributes become a line above it, a page's name a link."""
    rows = []
    for name in oncall.names():
        page = oncall.load(name)
        (folder / f"{name}.md").write_text(linked(attributed(page.text)), encoding="utf-8")
        rows.append(f"| [{page.title}]({name}.md) | {page.summary} |")
    tree = ["```{toctree}", ":hidden:", "", *oncall.names(), "```", ""]
    index = ["# What to do at 3 a.m.", "", "| page | when |", "|---|---|", *rows, "", *tree]
    index += ["`invoke runbook PAGE` shows a page in a terminal; with `--run` it goes through it step by step.", ""]
    (folder / "index.md").write_text("\n".join(index), encoding="utf-8")


def linked(text: str) -> str:
    for name in oncall.names():
        text = text.replace(f"page `{name}`", f"page [`{name}`]({name}.md)").replace(
            f"or `{name}`", f"or [`{name}`]({name}.md)"
        )
    return text


def _generate(sources: Path, out: Path) -> None:
    """In a process of its own: Sphinx keeps state that a second build would trip over."""
    if importlib.util.find_spec("sphinx") is None or importlib.util.find_spec("myst_parser") is None:
        hint = "pip install 'glm-runbooks[docs]', or ./dev setup; the pages read as they are, too"
        raise RunbookError("Sphinx is not installed", next=hint)
    settings = {
        "project": "GLM-5 runbooks",
        "extensions": "myst_parser",
        "html_theme": "alabaster",  # its own fonts and scripts: a browser fetches nothing from elsewhere
        "html_show_sourcelink": "0",
        "html_copy_source": "0",
    }
    words = [f"-D{name}={value}" for name, value in settings.items()]
    with tempfile.TemporaryDirectory(prefix="runbooks-doctrees-") as trees:
        argv = [sys.executable, "-m", "sphinx", "-b", "html", "-q", "-W", "-E", "-C", "-N", "-d", trees, *words]
        done = subprocess.run([*argv, str(sources), str(out)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunbookError("the pages do not build", details=done.stderr.splitlines()[:6])
