"""`invoke runbook PAGE --run`: what runs, in which order, what is asked first, and what the log keeps."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runbooks import incident, oncall
from runbooks.engine.errors import UsageError
from runbooks.engine.printers import JsonPrinter
from runbooks.engine.report import Reporter
from runbooks.oncall.blocks import FIRST, LAST, blocks


@dataclass
class FakeSession:
    answers: list[bool] | None
    yes: bool = False
    hosts: list[str] = field(default_factory=list)
    report: Reporter = field(default_factory=lambda: Reporter(JsonPrinter(io.StringIO())))

    def consent(self, question: str) -> bool:
        if self.yes:
            return True
        if self.answers is None:
            raise UsageError("nobody to ask")
        return self.answers.pop(0)


def walk(
    monkeypatch: pytest.MonkeyPatch,
    codes: dict[str, list[int]],
    answers: list[bool] | None,
    *,
    yes: bool = False,
    page: str = "nan-output",
) -> tuple[int, list[str], str]:
    """Walk a page with these exit codes of its blocks (default 1: it fails)."""
    log = io.StringIO()
    session: Any = FakeSession(answers, yes)
    run = incident.Incident(session, page, [], log)
    monkeypatch.setattr(run, "_here", lambda block: codes[block.name].pop(0) if codes.get(block.name) else 1)
    return run.walk(), run.ran, log.getvalue()


@pytest.mark.parametrize("name", oncall.names())
def test_all_blocks_of_a_page_are_found(name: str) -> None:
    text = oncall.load(name).text
    found = blocks(text)
    assert len(found) == text.count("\n```sh name=") >= 1
    assert all(block.script and block.section for block in found)


def test_it_ends_when_the_proof_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    code, ran, log = walk(monkeypatch, {"back": [0], "check": [0], "releases": [0]}, [True])
    assert (code, ran) == (0, ["look", "releases", "back", "check"])
    assert "invoke rollback" in log
    assert "agreed: True" in log


def test_what_is_not_agreed_to_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    code, ran, _ = walk(monkeypatch, {}, [False, False, False])
    assert (code, ran) == (1, ["look", "releases", "check"])


def test_it_goes_on_to_the_next_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    code, ran, _ = walk(monkeypatch, {"check": [1, 0], "careful": [0]}, [True, True])
    assert (code, ran) == (0, ["look", "releases", "back", "check", "careful", "check"])


def test_a_proof_that_changes_something_is_asked_for_like_all_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    code, ran, log = walk(monkeypatch, {}, [False] * 9, page="peer-to-peer")
    assert (code, ran) == (1, ["look", "check"])
    assert "bench.collectives" in log


def test_with_nobody_to_ask_only_looks_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    code, ran, log = walk(monkeypatch, {"check": [0]}, None)
    assert (code, ran) == (0, ["look", "releases", "check"])
    assert "nobody to ask" in log


def test_yes_changes_nothing_where_nothing_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert walk(monkeypatch, {"look": [0]}, None, yes=True)[:2] == (0, ["look"])


def test_our_own_commands_get_the_hosts_and_the_consent() -> None:
    words = incident.command("invoke rollback   # back", ["a", "b"], agreed=True)
    assert words[:4] == [sys.executable, "-P", "-m", "invoke"], "whatever modules the folder has"
    assert words[6:] == ["rollback", "--hosts", "a", "--hosts", "b", "--yes"]
    assert incident.command("invoke canary", [], agreed=True)[6:] == ["canary"]
    assert incident.command("df -h", ["a"], agreed=True) == ["df", "-h"]
    assert incident.command("# only a remark", [], agreed=False) == []


def test_a_log_that_cannot_be_written_is_said_before_anything_runs(tmp_path: Path) -> None:
    session: Any = FakeSession(None)
    with pytest.raises(UsageError, match="cannot write the log"):
        incident.run_page(session, "nan-output", [], str(tmp_path / "no" / "log"))


def test_no_page_at_all_is_answered_with_the_list() -> None:
    session: Any = FakeSession(None)
    with pytest.raises(UsageError, match="which page") as caught:
        incident.run_page(session, "", [])
    assert "nan-output" in caught.value.details[0]


def test_an_unknown_page_begins_no_log(tmp_path: Path) -> None:
    session: Any = FakeSession(None)
    with pytest.raises(UsageError):
        incident.run_page(session, "nan-outptu", [], str(tmp_path / "log"))
    assert list(tmp_path.iterdir()) == []


PAGE = """# T

S

## {FIRST}

```sh name=look read-only
invoke health
```

## What to do

{cures}

## {LAST}

```sh name=check read-only
invoke health
```
"""
AWAY = "✗ glm5-a: No route to host\n  next: ssh glm5-a     page: invoke runbook host-unreachable"


def cure(name: str, *, kind: str = "", line: str = "") -> str:
    return f"```sh name={name} changes{kind}\n{line or f'invoke {name}'}\n```\n\n"


@dataclass
class Walked:
    code: int
    ran: list[str]
    events: list[dict[str, Any]]
    log: str


def through(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    says: dict[str, list[tuple[int, str]]],
    *cures: str,
    answers: list[bool] | None = None,
    yes: bool = False,
    page: str = "odd",
) -> Walked:
    """Walk a page of ours with real processes: each line prints what `says` has for it, and ends with that code."""
    (tmp_path / f"{page}.md").write_text(PAGE.format(FIRST=FIRST, LAST=LAST, cures="".join(cures)))
    monkeypatch.setattr(oncall, "FOLDER", tmp_path)
    monkeypatch.setattr(incident, "AGAIN", 0.01)
    print_and_exit = "import sys; print(sys.argv[2]); sys.exit(int(sys.argv[1]))"

    def command(line: str, hosts: list[str], *, agreed: bool) -> list[str]:
        code, text = says[line].pop(0) if says.get(line) else (1, "")
        return [sys.executable, "-c", print_and_exit, str(code), text]

    monkeypatch.setattr(incident, "command", command)
    out = io.StringIO()
    session: Any = FakeSession(answers, yes, report=Reporter(JsonPrinter(out)))
    session.loaded = SimpleNamespace(path=Path("inventory.yaml"))
    code = incident.run_page(session, page, ["glm5-a"], str(tmp_path / "log"))
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    return Walked(code, events[-1]["ran"], events, (tmp_path / "log").read_text())


def test_a_walk_ends_at_the_first_block_that_reaches_no_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    says = {"invoke health": [(1, AWAY)]}
    walked = through(monkeypatch, tmp_path, says, cure("restart"), cure("back"), answers=[True, True])
    assert (walked.code, walked.ran) == (1, ["look"])
    assert "stopped: a host cannot be reached" in walked.events[-1]["text"]
    assert walked.events[-1]["text"].endswith("next: invoke runbook host-unreachable --hosts glm5-a")
    assert walked.events[-1]["page"] == "host-unreachable"


def test_a_host_that_is_lost_on_the_way_ends_it_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    says = {"invoke health": [(1, "sick")], "invoke restart": [(1, AWAY)]}
    walked = through(monkeypatch, tmp_path, says, cure("restart"), cure("back"), answers=[True, True])
    assert (walked.code, walked.ran) == (1, ["look", "restart"])


def test_a_cure_that_works_without_the_host_is_still_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    line = "invoke provision --tags vm"
    says = {"invoke health": [(1, AWAY), (0, "ok")], line: [(0, "started")]}
    walked = through(monkeypatch, tmp_path, says, cure("restart"), cure("vm", line=line), answers=[True])
    assert (walked.code, walked.ran) == (0, ["look", "vm", "check"])


def test_the_page_about_it_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    says = {"invoke health": [(1, AWAY), (0, "ok")]}
    walked = through(monkeypatch, tmp_path, says, page="host-unreachable")
    assert (walked.code, walked.ran) == (0, ["look", "check"])


def test_where_the_first_look_finds_nothing_no_cure_has_helped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    says = {"invoke health": [(0, ""), (0, "")], "invoke restart": [(0, "")]}
    walked = through(monkeypatch, tmp_path, says, cure("restart"), answers=[True])
    assert walked.code == 0
    assert "nothing was wrong that this page mends" in walked.log
    assert "it helped" not in walked.log


def test_a_page_that_the_last_error_names_is_named_at_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    says = {"invoke health": [(1, "x"), (1, "✗ a card is gone\n  page: invoke runbook gpu-lost")]}
    walked = through(monkeypatch, tmp_path, says)
    assert "not cured" in walked.events[-1]["text"]
    assert walked.events[-1]["text"].endswith("next: invoke runbook gpu-lost --hosts glm5-a")


def test_a_cure_has_its_time_to_show(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    says = {"invoke health": [(1, "x"), (1, "starting"), (1, AWAY), (0, "ok")], "invoke restart": [(0, "")]}
    walked = through(monkeypatch, tmp_path, says, cure("restart", kind=" wait=1m"), cure("back"), answers=[True, True])
    assert (walked.code, walked.ran) == (0, ["look", "restart", "check", "check", "check"])


def test_a_condition_is_shown_and_never_agreed_to_beforehand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    back = cure("back", kind=' when="it began with a deploy"')
    walked = through(monkeypatch, tmp_path, {}, back, yes=True)
    assert (walked.code, walked.ran) == (1, ["look", "check"])
    assert "only when it began with a deploy" in walked.log
    asked: list[str] = []
    monkeypatch.setattr(FakeSession, "consent", lambda self, question: asked.append(question))
    through(monkeypatch, tmp_path, {}, back)
    assert asked == ["Only when it began with a deploy. Run it?"]


def test_yes_begins_no_start_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    starting = "! http  /health says 503: starting, stopping, or no token for 20 s   invoke runbook start-slow"
    says = {"invoke health": [(1, starting)]}
    walked = through(monkeypatch, tmp_path, says, cure("restart"), yes=True, page="server-down")
    assert (walked.code, walked.ran, walked.events[-1]["page"]) == (1, ["look"], "start-slow")
    says = {"invoke health": [(1, starting), (0, "")], "invoke restart": [(0, "")]}
    walked = through(monkeypatch, tmp_path, says, cure("restart"), answers=[True], page="server-down")
    assert (walked.code, walked.ran) == (0, ["look", "restart", "check"]), "a person may know better"
    says = {"invoke health": [(1, "killed"), (0, "")], "invoke restart": [(0, "")]}
    walked = through(monkeypatch, tmp_path, says, cure("restart"), yes=True, page="server-down")
    assert (walked.code, walked.ran) == (0, ["look", "restart", "check"])


def test_a_notice_is_said_once_a_walk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    notice = "· asking without a key: secrets/api-key is not there"
    says = {"invoke health": [(1, f"{notice}\nsick é"), (1, f"{notice}\nsick é")]}
    walked = through(monkeypatch, tmp_path, says)
    said = capfd.readouterr().out
    assert (said.count(notice), said.count("sick é"), walked.log.count(notice)) == (1, 2, 1)


def test_the_log_stands_with_the_other_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd.md").write_text("# T\n\nS\n")
    monkeypatch.setattr(oncall, "FOLDER", tmp_path)
    session: Any = FakeSession(None)
    assert incident.run_page(session, "odd", []) == 0
    assert [path.parent.name for path in tmp_path.rglob("incident-odd-*.log")] == ["results"]


def test_the_mildest_cure_of_a_dead_server_is_first() -> None:
    found = [one for one in blocks(oncall.load("server-down").text) if one.changes]
    assert [(one.name, bool(one.when), one.wait) for one in found] == [("restart", False, 600), ("back", True, 0)]
