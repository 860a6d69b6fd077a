"""Scripts of the file steps, run for real with hostile names: after a change there is nothing left to change."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from runbooks import paths
from runbooks.engine.secret import Secret
from runbooks.engine.step import Verdict
from runbooks.steps import ask
from runbooks.steps.build import BuiltOnce, Command
from runbooks.steps.files import Directory, File, Line, Symlink
from runbooks.steps.python import PipInstall, Venv

NAMES = {
    "plain": "plain",
    "space": "a b  c",
    "quotes": 'it\'s "quoted" `id` $(id) $HOME',
    "newline": "two\nlines",
    "dash": "-rf",
    "utf-8": "größe-模型-🙂",
    "backslash": "back\\slash\\n",
    "glob": "*?[a]",
}
CONTENTS = {
    "text": "one\ntwo\n",
    "no last newline": "one",
    "empty": "",
    "hostile": "$(id) `id` 'q' \"q\" \\n %s %d\n\ttab\n\n",
    "utf-8": "Größe 模型\n",
    "heredoc": "EOF\nrb-end\n",
}


@pytest.fixture(params=list(NAMES.values()), ids=list(NAMES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_file(host: Any, me: str, tmp_path: Path, name: str) -> None:
    path = tmp_path / "new folder" / name
    step = File(path=str(path), content="one\n", owner=me, mode=0o640)
    assert [diff.line for diff in host.converge(step).diff] == [f"new, mode 0640, {me}"]
    assert path.read_text() == "one\n"

    path.chmod(0o600)
    change = host.converge(step)
    assert [diff.line for diff in change.diff] == ["mode 0600 -> 0640"]
    assert "mktemp" not in change.script

    path.write_text("two\n")
    change = host.converge(step)
    assert change.diff[0].unified.endswith("@@ -1 +1 @@\n-two\n+one\n")
    assert names_in(path.parent) == [name]


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS.keys())
def test_a_files_content_is_exact(host: Any, me: str, tmp_path: Path, content: str) -> None:
    host.converge(File(path=str(tmp_path / "x"), content=content, owner=me))
    assert (tmp_path / "x").read_bytes() == content.encode()


def test_what_is_owed_behind_a_file_is_not_lost_by_a_failure(
    host: Any, me: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ansible's lost handler: written, the restart failed, and the next run finds the file as it should be."""
    monkeypatch.setattr(paths, "STATE", str(tmp_path / "state"))
    done = tmp_path / "restarted"
    step = File(path=str(tmp_path / "x"), content="one\n", owner=me, then=f"[ -e {tmp_path}/works ]\ntouch {done}")
    change = host.plan(step)
    assert host.sh(change.script, "-e").returncode != 0
    assert ((tmp_path / "x").read_text(), done.exists()) == ("one\n", False)
    (tmp_path / "works").touch()
    assert [diff.line for diff in host.converge(step).diff] == ["written before, and not taken over yet"]
    assert done.exists()


def test_a_long_file_travels_beside_the_script(host: Any, me: str, tmp_path: Path) -> None:
    content = "x" * 99 + "\n"
    step = File(path=str(tmp_path / "x"), content=content * 1000, owner=me)
    assert content not in host.converge(step).script
    (tmp_path / "x").write_text(content * 2000)
    assert "long, or no text" in host.converge(step).diff[0].unified


def test_a_secret_is_neither_in_the_script_nor_in_the_diff(host: Any, me: str, tmp_path: Path) -> None:
    step = File(path=str(tmp_path / "key"), content=Secret("s3ntinel-value"), owner=me, mode=0o600)
    change = host.converge(step)
    assert "s3ntinel" not in change.script + repr(change.diff) + repr(change) + repr(step)
    (tmp_path / "key").write_text("s3ntinel-old")
    question = step.questions()[0]
    assert "s3ntinel" not in repr(host.ask([question]))
    assert "s3ntinel" not in question.kind.script([question.key])
    change = host.converge(step)
    assert "s3ntinel" not in repr(change.diff)
    assert (tmp_path / "key").read_text() == "s3ntinel-value"


def test_a_link_in_the_place_of_a_file_is_replaced_not_followed(host: Any, me: str, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("keep\n")
    (tmp_path / "x").symlink_to("other")
    change = host.converge(File(path=str(tmp_path / "x"), content="new\n", owner=me))
    assert change.diff[0].line == "a symlink becomes a file"
    assert (tmp_path / "other").read_text() == "keep\n"


def test_what_cannot_be_put_back_is_left_alone(host: Any, me: str, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    step = File(path=str(tmp_path / "x"), content="", owner=me)
    verdict = step.plan(host.ask(step.questions()))
    assert isinstance(verdict, Verdict)
    assert not verdict.ok
    link = Symlink(path=str(tmp_path / "x"), target="y")
    assert isinstance(link.plan(host.ask(link.questions())), Verdict)
    (tmp_path / "y").write_text("")
    folder = Directory(path=str(tmp_path / "y"), owner=me)
    assert isinstance(folder.plan(host.ask(folder.questions())), Verdict)


def test_a_directory(host: Any, me: str, tmp_path: Path, name: str) -> None:
    path = tmp_path / "above" / name
    step = Directory(path=str(path), owner=me, mode=0o750)
    host.converge(step)
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    path.chmod(0o700)
    assert [diff.line for diff in host.converge(step).diff] == ["mode 0700 -> 0750"]


def test_a_link(host: Any, tmp_path: Path, name: str) -> None:
    path = tmp_path / "above" / name
    host.converge(Symlink(path=str(path), target=f"../{name}"))
    assert str(path.readlink()) == f"../{name}"
    (tmp_path / "folder").mkdir()
    host.converge(Symlink(path=str(path), target=str(tmp_path / "folder")))
    change = host.converge(Symlink(path=str(path), target="elsewhere"))  # replaced itself, not put into the folder
    assert [diff.line for diff in change.diff] == [f"target {tmp_path / 'folder'} -> elsewhere"]
    assert names_in(path.parent) == [name]
    assert names_in(tmp_path / "folder") == []


def test_a_line(host: Any, me: str, tmp_path: Path) -> None:
    path = tmp_path / "conf"
    path.write_text("# head\nsize=1\nother=2")
    step = Line(path=str(path), line="size=3", owns=r"\s*size\s*=")
    host.converge(step)
    assert path.read_text() == "# head\nsize=3\nother=2\n"
    host.converge(Line(path=str(path), line="new=1", owns="new="))
    assert path.read_text() == "# head\nsize=3\nother=2\nnew=1\n"


def test_built_once_counts_only_when_it_came_to_its_end(host: Any, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "it's built"
    step = BuiltOnce(name="b", folder=str(folder), recipe='echo x >"$FOLDER/out"', shown=("s",), keeps=("out",))
    host.converge(step)
    (folder / "out").unlink()
    assert "out is gone" in host.converge(step).diff[0].line

    failing = BuiltOnce(name="b", folder=str(folder), recipe="echo half; false; echo never", shown=())
    (folder / "built").unlink()
    change = host.plan(failing)
    assert host.sh(change.script, "-e").returncode == 1
    assert host.plan(failing) is not None
    host.converge(step)


def test_a_command(host: Any, tmp_path: Path) -> None:
    host.converge(Command(name="c", script=f"touch '{tmp_path}/made'", creates=f"{tmp_path}/made"))
    host.converge(Command(name="c", script=f"echo 2 >'{tmp_path}/made'", unless=f"grep -q 2 '{tmp_path}/made'"))
    with pytest.raises(ValueError, match="exactly one"):
        Command(name="c", script="true")


@pytest.mark.slow  # ensurepip takes seconds
@pytest.mark.parametrize("host", ["dash"], indirect=True)
def test_a_virtual_environment(host: Any, tmp_path: Path) -> None:
    venv = tmp_path / "a venv"
    step = Venv(path=str(venv))
    host.converge(step)
    dist = next(venv.glob("lib/*/site-packages")) / "Some_Thing-1.2.dist-info"
    dist.mkdir()
    (dist / "METADATA").write_text("Metadata-Version: 2.1\nName: Some_Thing\nVersion: 1.2\n")
    assert host.plan(PipInstall(venv=str(venv), requirements=("some-thing[extra]==1.2",))) is None
    change = host.plan(PipInstall(venv=str(venv), requirements=("some-thing==1.3", "some.thing==1.2")))
    assert [diff.line for diff in change.diff] == ["some-thing==1.3"]
    (venv / "bin" / "python").unlink()
    (venv / "bin" / "python").symlink_to("/nowhere")
    assert host.plan(step) is not None


def test_a_look_at_many_paths_is_two_processes(host: Any, tmp_path: Path) -> None:
    """One stat and one sha256sum for all files that are as they should be: counted by what the shell is made to run."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("stat", "sha256sum", "base64", "head", "readlink"):
        real = next(p for p in (f"/usr/bin/{tool}", f"/bin/{tool}") if Path(p).exists())
        (tools / tool).write_text(f'#!/bin/sh\necho {tool} >>{tmp_path}/count\nexec {real} "$@"\n')
        (tools / tool).chmod(0o755)
    import hashlib

    questions = []
    for number in range(50):
        (tmp_path / f"f{number}").write_text(str(number))
        digest = hashlib.sha256(str(number).encode()).hexdigest()
        questions.append(ask.path(f"{tmp_path}/f{number}", wanted=digest))
    script = questions[0].kind.script([question.key for question in questions])
    done = host.sh(f"PATH={tools}:$PATH\n{script}")
    states = questions[0].kind.parse(done.stdout, [question.key for question in questions])
    assert len(states) == 50
    assert (tmp_path / "count").read_text().split() == ["stat", "sha256sum"]


def test_a_file_that_vanishes_between_two_processes_is_no_answer() -> None:
    key = ask.path("/x", wanted="*").key
    states = ask.PATHS.parse("there\n", [key])
    assert states[key].get("no answer") is True
