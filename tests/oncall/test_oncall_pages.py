"""Every page is there, has its parts, and every `invoke` command in it and in the README exists with those
arguments."""

from __future__ import annotations

import ast
import functools
import re
import shlex
import sys
from pathlib import Path

import pytest
from invoke.collection import Collection
from invoke.parser import Parser
from invoke.parser.context import ParserContext

from runbooks import oncall
from runbooks.diagnose.signatures import SIGNATURES
from runbooks.engine.errors import UsageError
from runbooks.incident import ASKS
from runbooks.monitor.rules import alerts
from runbooks.oncall.blocks import FIRST, LAST
from runbooks.oncall.blocks import blocks as read_blocks

ROOT = Path(__file__).parents[2]
PARTS = (
    "Are you being fooled?",
    "How bad is it?",
    "What to look at",
    "What to do",
    "How to know that it worked",
    "When to wake whom",
)
TEXTS = {**{name: oncall.load(name).text for name in oncall.names()}}
TEXTS |= {path.name: path.read_text() for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md") if path.exists()}
_INLINE = re.compile(r"`(invoke [^`]+)`")
_POINTER = re.compile(r"page[s]? `([a-z-]+)`(?: or `([a-z-]+)`)?|invoke runbook ([a-z][a-z-]+)")


def commands(text: str) -> list[str]:
    """What a reader could type: lines of code blocks, and code in running text. Placeholders in capitals or brackets
    are left out."""
    found = _INLINE.findall(text)
    for block in re.findall(r"```[^\n]*\n(.*?)```", text, re.DOTALL):
        found += [line.strip().removeprefix("$ ") for line in block.splitlines() if re.match(r"\s*(\$ )?invoke ", line)]
    return [command for command in found if not re.search(r"\b[A-Z]{2,}\b|[\[<…]", command)]


def namespace() -> Collection:
    import tasks

    found = tasks.namespace
    assert isinstance(found, Collection)
    return found


@functools.cache
def contexts() -> dict[str, ParserContext]:
    """What each task takes, by its name and by its other names."""
    return {name: one for one in namespace().to_contexts() for name in (str(one.name), *one.aliases)}


CASES = [(name, command) for name, text in TEXTS.items() for command in commands(text)]


@pytest.mark.parametrize(("where", "command"), CASES)
def test_a_command_exists_with_these_arguments(where: str, command: str) -> None:
    words = shlex.split(command.partition("#")[0])[1:]
    if words[:1] == ["runbook"]:
        assert words[1:] == [] or words[1] in oncall.names()
        return
    if words[0].startswith("--"):
        return  # Invoke's own: invoke --list
    assert words[0] in contexts(), f"{where}: {command}"
    parsed = Parser(contexts=[contexts()[words[0]]]).parse_argv(words)
    assert len(parsed) == 1, f"{where}: {command}"
    profile = parsed[0].args["profile"].value if "profile" in parsed[0].args else None
    assert profile in (None, "baseline", "final")


def test_a_page_agrees_for_every_task_that_would_ask() -> None:
    """Who walks a page has agreed to the block; the command itself must not wait for an answer that cannot be given."""
    tasks = namespace()
    asking = {name for name in tasks.task_names if any(one.name == "yes" for one in tasks[name].get_arguments())}
    assert asking - {"runbook"} == ASKS


TAGS = {"node", "vm", "base", "driver", "cuda", "flash-attn", "runtime", "model"}
_TYPED = re.compile(r"invoke [a-z][a-z.]*(?: --[a-z-]+(?:[ =][a-z0-9.-]+)?)*")


def sources() -> list[Path]:
    """All of runbooks/ but the Proxmox side, which no task reaches yet."""
    return [path for path in sorted((ROOT / "runbooks").rglob("*.py")) if path.parent.name != "proxmox"]


def typed_in_code() -> list[tuple[str, str]]:
    """`invoke ...` in our own strings: what errors, checks and causes tell people to type."""
    found: set[tuple[str, str]] = set()
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= {(path.name, command) for command in _TYPED.findall(node.value)}
    return sorted(found)


@pytest.mark.parametrize(("where", "command"), typed_in_code())
def test_a_command_in_our_messages_exists(where: str, command: str) -> None:
    words = shlex.split(command)[1:]
    if words[0] == "runbook":
        return  # which pages are named is tested below
    known = contexts()
    assert words[0] in known, f"{where}: {command}"
    options = [word for word in words[1:] if word.startswith("--")]
    assert [option for option in options if option not in known[words[0]].flags] == [], f"{where}: {command}"
    assert {words[at + 1] for at, word in enumerate(words[:-1]) if word == "--tags"} <= TAGS


def test_commands_are_found_at_all() -> None:
    assert len(CASES) > 40
    assert commands(
        "Type `invoke health` or\n\n```sh\ninvoke canary\n```\nbut `invoke runbook PAGE` is a pattern."
    ) == [
        "invoke health",
        "invoke canary",
    ]


@pytest.mark.parametrize("name", oncall.names())
def test_a_page_has_its_parts_and_its_blocks_say_what_they_do(name: str) -> None:
    page = oncall.load(name)
    headings = re.findall(r"^## (.+)$", page.text, re.MULTILINE)
    assert tuple(headings) == PARTS
    assert page.text.startswith(f"# {page.title}\n\n{page.summary}\n")
    blocks = re.findall(r"^```(\S.*)$", page.text, re.MULTILINE)
    form = r'sh name=([a-z-]+) (?:read-only|changes(?: host)?(?: wait=\d+m)?(?: when="[^"]+")?|read-only host)$'
    names = [re.match(form, block) for block in blocks]
    assert all(names), blocks
    assert len({match[1] for match in names if match}) == len(blocks)
    assert len(page.text.split()) < 700
    sections = {block.section for block in read_blocks(page.text)}
    assert {FIRST, LAST} <= sections, "a look before, and a proof after"


@pytest.mark.parametrize("name", oncall.names())
def test_what_takes_a_release_away_from_all_but_a_sick_server_is_for_a_condition(name: str) -> None:
    """`--yes` must not roll back, or deploy, for a fault that another cure may mend: NaN alone has no milder one."""
    found = read_blocks(oncall.load(name).text)
    strong = [one for one in found if one.changes and re.search(r"invoke (?:rollback|deploy)", one.script)]
    assert [one.name for one in strong if not one.when and name != "nan-output"] == []
    for one in found:  # and where it is for all, nothing that is for a condition comes before
        assert one.when or not one.changes or not any(other.when for other in found[: found.index(one)]), one.name


def test_every_alert_verdict_and_signature_reaches_a_page() -> None:
    reached = {alert.page for alert in alerts(8)} | {signature.page for signature in SIGNATURES}
    reached |= {"nan-output", "canary-degraded", "server-down"}  # of the canary's verdicts: CanaryResult.page
    assert reached <= set(oncall.names())
    # The others are named by errors and checks of provisioning: a page that nothing leads to is found by nobody.
    named = {match for path in sources() for match in re.findall(r"\b[a-z]+-[a-z-]+\b", path.read_text())}
    assert set(oncall.names()) - reached <= named


@pytest.mark.parametrize("name", oncall.names())
def test_a_page_points_only_to_pages_that_exist(name: str) -> None:
    pointers = {target for match in _POINTER.findall(oncall.load(name).text) for target in match if target}
    assert pointers <= set(oncall.names())


def test_every_page_that_the_code_names_exists() -> None:
    """Strings handed over as `page=...`, and `invoke runbook NAME` in any text."""
    named: set[str] = set()
    for path in sources():
        source = path.read_text()
        named |= set(re.findall(r"invoke runbook ([a-z]+-[a-z-]+)", source))
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.keyword) and node.arg == "page" and isinstance(node.value, ast.Constant):
                named |= {node.value.value} if isinstance(node.value.value, str) and node.value.value else set()
    assert named - set(oncall.names()) == set()


def test_an_unknown_page_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        oncall.load("nan-outputs")
    assert caught.value.details == ("did you mean nan-output?",)
    assert caught.value.next == "invoke runbook nan-output"
    assert caught.value.exit_code == 2


def test_pages_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert oncall.show() == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in oncall.names())
    assert "`" not in listed
    assert "*" not in listed
    assert oncall.show("gpu-lost") == 0
    assert capsys.readouterr().out.startswith("# A GPU is lost")


def test_on_a_terminal_a_block_says_what_it_does_and_where(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert oncall.show("server-down") == 0
    shown = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).split())
    for words in (
        "look: looks only, typed here",
        "leftovers: looks only, typed on the host",
        "restart: changes something, typed on the host",
        "back: changes something, typed here; only when it began with a deploy, or it dies again after a restart",
    ):
        assert words in shown
    assert oncall.show() == 0
    listed = capsys.readouterr().out
    assert "`" not in listed
    assert "*" not in listed


def test_nothing_on_a_terminal_is_lost_in_square_brackets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hostile = "BAR 2 [mem 0x1 64bit pref]: can't [bold]x[/bold] [/foo] :smile:"
    (tmp_path / "odd.md").write_text(f"# {hostile}\n\n{hostile}\n\n## {FIRST}\n\n{hostile}\n\n```sh\n{hostile}\n```\n")
    monkeypatch.setattr(oncall, "FOLDER", tmp_path)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    for page, times in (("", 1), ("odd", 4)):
        assert oncall.show(page) == 0
        shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
        assert shown.count(hostile) == times, shown
