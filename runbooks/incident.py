"""`invoke runbook PAGE --run`: the blocks of a page one after the other, a question before each that changes something,
and a log of it all for the incident."""

from __future__ import annotations

import codecs
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from runbooks import oncall
from runbooks.engine.errors import RunbookError, Unreachable, UsageError
from runbooks.oncall.blocks import FIRST, LAST, Block, blocks
from runbooks.paths import expand, home

if TYPE_CHECKING:
    from runbooks.session import Session

ROOT = Path(__file__).parents[1]
ON_HOST = 180.0  # seconds for a block that is typed on the host
# Tasks with a question of their own, and --yes.
ASKS = {"deploy", "gateway", "jobs.cancel", "monitor.install", "provision", "releases", "rollback", "tune", "unlock"}
ASKS |= {"vm.shutdown"}
AWAY = "host-unreachable"  # the page of a host that cannot be reached: every other one stops there
AGAIN = 20.0  # seconds between two proofs while a cure has time to show
STARTS = {"server-down": "start-slow"}  # where a look at the one finds the other, its cure would begin it anew
_NAMED = re.compile(r"\binvoke runbook ([a-z]+-[a-z-]+)")  # in what a look says
_PAGE = re.compile(r"\bpage: invoke runbook ([a-z-]+)")  # as errors name theirs
_NOTICES = ("asking without a key",)  # each command of ours says it; a walk says it once


@dataclass
class Incident:
    """One walk through one page. `hosts`: those that were named; empty: all of the inventory."""

    session: Session
    page: str
    hosts: Sequence[str]
    log: IO[str]
    ran: list[str] = field(default_factory=list)
    lost: bool = False  # the last block could not reach a host
    named: str = ""  # the page that the last error named
    seen: set[str] = field(default_factory=set)  # the pages that anything named so far
    _noticed: set[str] = field(default_factory=set)

    def walk(self) -> int:
        """Exit code 0 when what the page calls proof of a cure has succeeded, or when nothing was wrong."""
        found = blocks(oncall.load(self.page).text)
        proof = [block for block in found if block.section == LAST and not block.changes]
        first = [block for block in found if block.section == FIRST and not block.changes]
        rest = [block for block in found if block not in proof and block not in first]
        looks = [self._run(block) for block in first if not self._ends(rest)]
        if looks and not any(looks):
            self._say("the first look finds nothing wrong", level="warning")
            if self.session.yes:
                self._say("so nothing is changed without a person to ask")
                return 0
        if self.session.yes and STARTS.get(self.page, "") in self.seen:
            self._say("it may be starting, or busy: nothing is changed without a person to ask", level="warning")
            self.named = STARTS[self.page]
            return 1
        for at, block in enumerate(rest):
            if self._ends(rest[at:]):
                return 1
            if self._is_cut_off and not block.elsewhere:
                continue
            if not block.changes:
                self._run(block)
            elif self._agreed(block):
                self.lost = False
                self._run(block)
                self.lost = self.lost and not block.wait  # who reboots a host loses it
                if block.section != LAST and proof and not self.lost and self._is_proven(proof, block.wait):
                    if looks and not any(looks):
                        text = "the proof succeeds, as the first look did: nothing was wrong that this page mends"
                        self._say(text, level="warning")
                    else:
                        self._say("it helped: the proof has succeeded", level="good")
                    return 0
        return 1 if self._ends([]) else int(any(self._run(block) for block in proof))

    @property
    def _is_cut_off(self) -> bool:
        return self.lost and self.page != AWAY

    def _ends(self, left: Sequence[Block]) -> bool:
        """A host cannot be reached, and nothing that is left of the page would do anything about that."""
        return self._is_cut_off and not any(block.elsewhere for block in left if block.changes)

    def _is_proven(self, proof: Sequence[Block], wait: float) -> bool:
        """Every block of the proof succeeds: at once, or within the time that the cure takes to show."""
        until = time.monotonic() + wait
        while True:
            self.lost = False
            if not any(self._run(block) for block in proof):
                return True
            left = until - time.monotonic()
            if left <= 0:
                return False
            self._say(f"not yet: a start takes its time; the proof is asked again for {left / 60:.0f} min")
            time.sleep(min(AGAIN, left))

    def _agreed(self, block: Block) -> bool:
        only = f", only when {block.when}" if block.when else ""
        self._say(f"{block.section}: {block.name}, which changes something{only}:\n{_indented(block.script)}")
        if block.when and self.session.yes:
            self._say("not run: whether that is so, --yes does not know", level="warning")
            return False
        try:
            agreed = self.session.consent(f"Only when {block.when}. Run it?" if block.when else "Run it?")
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
        self.lost, self.named = False, ""
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
                self._heard(str(error))
                self.lost = self.lost or isinstance(error, Unreachable)
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
            decoder, held = codecs.getincrementaldecoder("utf-8")("replace"), ""
            while piece := os.read(child.stdout.fileno(), 65536):
                *lines, held = (held + decoder.decode(piece)).split("\n")
                for line in lines:
                    self._show(f"{line}\n")
                if held.endswith(" "):  # a question, which waits for its answer on this very line
                    self._show(held)
                    held = ""
            self._show(held)
        return child.returncode

    def _show(self, line: str) -> None:
        """What a command said goes to the screen and into the log; a notice that was said before goes nowhere."""
        notice = next((words for words in _NOTICES if words in line), "")
        if notice and line in self._noticed:
            return
        self._noticed |= {line} if notice else set()
        self._heard(line)
        sys.stdout.write(line)
        sys.stdout.flush()
        self.log.write(line)

    def _heard(self, text: str) -> None:
        self.seen |= set(_NAMED.findall(text))
        for page in _PAGE.findall(text):
            self.named = page
            self.lost = self.lost or page == AWAY

    def _say(self, text: str, level: str = "info") -> None:
        self.session.report.emit("note", text, level=level)
        self._write(text)

    def _write(self, text: str) -> None:
        self.log.write(f"{time.strftime('%FT%TZ', time.gmtime())}  {self.session.report.redact(text)}\n")
        self.log.flush()


def run_page(session: Session, page: str, hosts: Sequence[str], log: str = "") -> int:
    """Walk through a page; the log stands beside the other records of what was done, named by page and time."""
    oncall.load(page)  # an unknown page is refused before a log is begun
    named = f"incident-{page}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.log"
    path = expand(log) if log else Path(home("results")) / named
    try:
        if not log:
            path.parent.mkdir(exist_ok=True)
        out = path.open("a", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write the log {path}: {error.strerror or error}", next="--log FILE") from None
    with out:
        incident = Incident(session, page, hosts, out)
        code = incident.walk()
    following = next_page(incident, code)
    said = "done" if code == 0 else "not cured: the page's last part says whom to wake"
    if code and following == AWAY:
        said = "stopped: a host cannot be reached, and nothing on this page helps before it can"
    on = "".join(f" --hosts {host}" for host in hosts)
    below = f"\n  next: invoke runbook {following}{on}" if following else ""
    level = "good" if code == 0 else "error"
    text = f"{said}; the log: {path}{below}"
    session.report.emit("result", text, level=level, ran=incident.ran, page=following or None)
    return code


def next_page(incident: Incident, code: int) -> str:
    """The page that the last block's error named, where that is another one."""
    return incident.named if code and incident.named != incident.page else ""


def command(line: str, hosts: Sequence[str], *, agreed: bool) -> list[str]:
    """A line of a page as words to run: our own commands with this Python, for these hosts only."""
    words = shlex.split(line, comments=True)
    if words[:1] != ["invoke"]:
        return words
    named = [word for host in hosts for word in ("--hosts", host)]
    yes = ["--yes"] if agreed and words[1] in ASKS else []
    return [sys.executable, "-P", "-m", "invoke", "--search-root", str(ROOT), *words[1:], *named, *yes]


def _indented(script: str) -> str:
    return "\n".join(f"  $ {line}" for line in script.splitlines())
