"""`invoke runbook PAGE --run`: the blocks of a page one after the other, a question before each that changes something,
and a log of it all for the incident."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from runbooks import oncall
from runbooks.engine.errors import RunbookError, UsageError
from runbooks.oncall.blocks import FIRST, LAST, Block, blocks
from runbooks.paths import expand

if TYPE_CHECKING:
    from runbooks.session import Session

ROOT = Path(__file__).parents[1]
ON_HOST = 180.0  # seconds for a block that is typed on the host
# Tasks with a question of their own, and --yes.
ASKS = {"deploy", "gateway", "jobs.cancel", "monitor.install", "provision", "releases", "rollback", "tune", "unlock"}
ASKS |= {"vm.shutdown"}


@dataclass
class Incident:
    """One walk through one page. `hosts`: those that were named; empty: all of the inventory."""

    session: Session
    page: str
    hosts: Sequence[str]
    log: IO[str]
    ran: list[str] = field(default_factory=list)

    def walk(self) -> int:
        """Exit code 0 when what the page calls proof of a cure has succeeded, or when nothing was wrong."""
        found = blocks(oncall.load(self.page).text)
        proof = [block for block in found if block.section == LAST and not block.changes]
        looks = [self._run(block) for block in found if not block.changes and block.section == FIRST]
        if looks and not any(looks):
            self._say("the first look finds nothing wrong", level="warning")
            if self.session.yes:
                self._say("so nothing is changed without a person to ask")
                return 0
        for block in found:
            if block.section in (LAST, FIRST) and not block.changes:
                continue
            if not block.changes:
                self._run(block)
            elif self._agreed(block):
                self._run(block)
                if proof and not any(self._run(one) for one in proof):
                    self._say("it helped: the proof has succeeded", level="good")
                    return 0
        return int(any(self._run(block) for block in proof))

    def _agreed(self, block: Block) -> bool:
        self._say(f"{block.section}: {block.name}, which changes something:\n{_indented(block.script)}")
        try:
            agreed = self.session.consent("Run it?")
        except UsageError:
            self._say("not run: there is nobody to ask here (--yes agrees beforehand)", level="warning")
            return False
        self._write(f"agreed: {agreed}")
        return agreed

    def _run(self, block: Block) -> int:
        """The exit code of the block's last command that failed, or 0."""
        where = "on the host" if block.on_host else "here"
        self._say(f"{block.section}: {block.name} ({where})\n{_indented(block.script)}")
        self.ran.append(block.name)
        code = self._on_hosts(block) if block.on_host else self._here(block)
        self._write(f"exit code {code}")
        return code

    def _on_hosts(self, block: Block) -> int:
        worst = 0
        for name in self.session.hosts:
            try:
                with self.session.connect(name) as conn:
                    answer = conn.ask(block.script, deadline=ON_HOST)
            except RunbookError as error:
                self._say(str(error), level="error")
                worst = 1
                continue
            for line in (answer.out + answer.err).splitlines():
                self.session.report.output(line, host=name)
                self._write(f"{name}: {line}")
            worst = answer.rc or worst
        return worst

    def _here(self, block: Block) -> int:
        worst = 0
        for line in block.script.splitlines():
            words = command(line, self.hosts, agreed=self.session.yes)
            if words:
                self.session.report.close()  # the command draws its own live lines
                worst = self._piped(words) or worst
        return worst

    def _piped(self, words: Sequence[str]) -> int:
        """Shown as it comes, questions included, and kept in the log."""
        env = {**os.environ, "RUNBOOKS_INVENTORY": str(self.session.loaded.path.resolve())}
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env) as child:
            assert child.stdout is not None
            while piece := os.read(child.stdout.fileno(), 65536):
                text = piece.decode(errors="replace")
                sys.stdout.write(text)
                sys.stdout.flush()
                self.log.write(text)
        return child.returncode

    def _say(self, text: str, level: str = "info") -> None:
        self.session.report.emit("note", text, level=level)
        self._write(text)

    def _write(self, text: str) -> None:
        self.log.write(f"{time.strftime('%FT%TZ', time.gmtime())}  {self.session.report.redact(text)}\n")
        self.log.flush()


def run_page(session: Session, page: str, hosts: Sequence[str], log: str = "") -> int:
    """Walk through a page; the log stands in the working folder, named by page and time."""
    oncall.load(page)  # an unknown page is refused before a log is begun
    path = expand(log or f"incident-{page}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.log")
    try:
        out = path.open("a", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write the log {path}: {error.strerror or error}", next="--log FILE") from None
    with out:
        incident = Incident(session, page, hosts, out)
        code = incident.walk()
    said = "done" if code == 0 else "not cured: the page's last part says whom to wake"
    session.report.emit("result", f"{said}; the log: {path}", level="good" if code == 0 else "error", ran=incident.ran)
    return code


def command(line: str, hosts: Sequence[str], *, agreed: bool) -> list[str]:
    """A line of a page as words to run: our own commands with this Python, for these hosts only."""
    words = shlex.split(line, comments=True)
    if words[:1] != ["invoke"]:
        return words
    named = [word for host in hosts for word in ("--hosts", host)]
    yes = ["--yes"] if agreed and words[1] in ASKS else []
    return [sys.executable, "-m", "invoke", "--search-root", str(ROOT), *words[1:], *named, *yes]


def _indented(script: str) -> str:
    return "\n".join(f"  $ {line}" for line in script.splitlines())
