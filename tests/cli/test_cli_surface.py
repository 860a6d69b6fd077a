"""Invoke as people meet it: the real program, its exit codes, and never a traceback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.served  # a whole process each time

ROOT = Path(__file__).parents[2]
INVOKE = str(Path(sys.executable).with_name("invoke"))


def invoke(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [INVOKE, *words], cwd=ROOT, env=os.environ | env, capture_output=True, text=True, timeout=60, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.fixture
def unreachable(tmp_path: Path) -> str:
    """The shipped inventory with its host moved to a loopback port where nobody listens."""
    text = (ROOT / "inventory.yaml").read_text()
    text = re.sub(r"(?m)^(\s+address:).*$", r"\1 127.0.0.1\n    port: 9", text, count=1)
    path = tmp_path / "inventory.yaml"
    path.write_text(text)
    return str(path)


def test_the_list_shows_every_task_with_a_line_of_help() -> None:
    done = invoke("--list")
    assert done.returncode == 0
    lines = [line for line in done.stdout.splitlines() if line.startswith("  ")]
    names = {line.split()[0] for line in lines}
    assert {"provision", "deploy", "health", "canary.run", "bench.sweep", "runbook", "lab.up", "lab.down"} <= names
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines), "a task without help"


def test_the_list_loads_no_heavy_module() -> None:
    probe = (
        "import sys; sys.argv = ['invoke', '--list']\n"
        "from invoke.main import program\n"
        "try: program.run()\nexcept SystemExit: pass\n"
        "heavy = {'fabric', 'paramiko', 'rich', 'jinja2', 'msgspec', 'requests'} & set(sys.modules)\n"
        "sys.exit('heavy: %s' % heavy if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("task", ["provision", "deploy", "health", "canary", "bench", "runbook", "lab.up"])
def test_help_is_help_and_no_short_flag_is_stolen(task: str) -> None:
    for flag in ("-h", "--help"):
        done = invoke(flag, task)
        assert done.returncode == 0, done.stderr
        assert "Usage:" in done.stdout
    assert not re.findall(r"^  -[a-z], --", invoke("--help", task).stdout, re.MULTILINE)


@pytest.mark.parametrize("words", [["health"], ["provision", "--hosts", "a", "--hosts", "b"], ["bench"]])
def test_no_inventory_is_one_clear_error(words: list[str], tmp_path: Path) -> None:
    done = invoke(*words, "--inventory", str(tmp_path / "none.yaml"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no inventory" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_host_gets_the_nearest_name() -> None:
    done = invoke("health", "--hosts", "glm5-x")
    assert done.returncode == 2
    assert "glm5-a" in done.stderr


@pytest.mark.parametrize("words", [["health"], ["provision"], ["canary"], ["deploy", "--profile", "final", "--yes"]])
def test_an_unreachable_host_is_an_error_with_a_line_to_paste(words: list[str], unreachable: str) -> None:
    done = invoke(*words, "--inventory", unreachable)
    assert done.returncode == 1
    text = done.stdout + done.stderr
    assert "127.0.0.1 port 9" in text
    assert re.search(r"next: ssh .*@127\.0\.0\.1", text)
    assert "Traceback" not in text


@pytest.mark.parametrize("task", ["status", "health", "provision", "jobs", "jobs.cancel", "audit", "diagnose"])
def test_a_mistake_that_only_a_host_brings_to_light_is_a_mistake_and_a_failure_says_more(
    task: str, unreachable: str
) -> None:
    """Its key file is not there: 2. Another host fails: 1."""
    path = Path(unreachable)
    text = path.read_text()
    mistaken = re.sub(r"(?m)^(    port: 9)$", r"\1\n    key: nowhere/id", text)
    path.write_text(mistaken)
    done = invoke(task, "--inventory", unreachable)
    assert (done.returncode, "nowhere/id is not there" in done.stdout + done.stderr) == (2, True), done
    path.write_text(mistaken.replace("hosts:\n", "hosts:\n  other: {address: 127.0.0.1, port: 9}\n", 1))
    done = invoke(task, "--inventory", unreachable)
    said = done.stdout + done.stderr
    assert (done.returncode, "nowhere/id" in said, "127.0.0.1 port 9" in said) == (1, True, True), said


@pytest.mark.parametrize("task", ["jobs.follow", "jobs.result", "jobs.cancel"])
def test_a_host_that_gave_no_answer_is_not_said_to_have_no_job(task: str, unreachable: str) -> None:
    done = invoke(task, "provision-1", "--inventory", unreachable)
    assert done.returncode == 1
    assert "there is no job" not in done.stdout + done.stderr


def test_an_unknown_profile_is_refused_before_anything_is_touched(unreachable: str) -> None:
    done = invoke("deploy", "--profile", "finale", "--inventory", unreachable)
    assert done.returncode == 2
    assert "final" in done.stderr


def test_an_unknown_tag_is_refused(unreachable: str) -> None:
    done = invoke("provision", "--tags", "drivr", "--inventory", unreachable)
    assert done.returncode == 2
    assert "driver" in done.stderr


def test_dry_means_check_or_is_refused(unreachable: str) -> None:
    refused = invoke("--dry", "health", "--inventory", unreachable)
    assert refused.returncode == 2
    assert "--dry" in refused.stderr
    assert invoke("-R", "lab.down").returncode == 2


def test_an_unknown_task_and_option_keep_invokes_own_words() -> None:
    assert invoke("provisoin").returncode != 0
    done = invoke("provision", "--wat")
    assert done.returncode != 0
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("folder", ["runbooks/bench", "runbooks", "lab", "tests/cli"])
def test_every_task_is_there_from_every_folder(folder: str) -> None:
    done = subprocess.run([INVOKE, "runbook", "nan-output"], cwd=ROOT / folder, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_unknown_page_gets_the_nearest_one() -> None:
    done = invoke("runbook", "nan-outputs")
    assert done.returncode == 2
    assert "nan-output" in done.stderr


@pytest.mark.parametrize(
    ("guarded", "module", "code", "said"),
    [
        (True, "paramikoo", 2, "the virtual environment is not whole: it has no module paramikoo"),
        (True, "runbooks.nowhere", 1, "a bug in runbooks: ModuleNotFoundError"),
        (False, "paramikoo", 2, "the virtual environment is not whole: it has no module paramikoo"),
    ],
)
def test_a_half_built_environment_is_no_bug(tmp_path: Path, guarded: bool, module: str, code: int, said: str) -> None:
    """While a command runs, and while the tasks are loaded."""
    text = (
        "from invoke import Context\nfrom runbooks.surface import command\n"
        + f"@command()\ndef boom(c):\n    'Boom.'\n    import {module}\n"
        + "try: boom(Context())\nexcept Exception as e: raise SystemExit(e.code)"
        if guarded
        else f"import runbooks.surface\nimport {module}\n"
    )
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[0]) == (code, said)
    assert ("next: ./dev setup" in done.stderr) is (code == 2)
    assert "Traceback" not in done.stderr


def test_a_bug_is_two_lines_and_a_file() -> None:
    code = (
        "from invoke import Context\nfrom runbooks.surface import command\n"
        "@command()\ndef boom(c):\n    'Boom.'\n    raise ValueError('x')\n"
        "try: boom(Context())\nexcept Exception as e: raise SystemExit(e.code)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "a bug in runbooks: ValueError" in done.stderr
    assert "Traceback" not in done.stderr
    details = Path(done.stderr.split("report: ")[1].strip())
    assert "ValueError: x" in details.read_text()
    details.unlink()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["health", "--hosts", ""], "nothing was named"),
        (["health", "--hosts", ","], "nothing was named"),
        (["health", "--inventory", "~nobody-of-that-name/x.yaml"], "there is no inventory"),
        (["bench", "--out", "/dev/null"], "nothing can be written"),
        (["bench", "--window", "nan"], "window"),
        (["bench", "--window", "0s"], "--window 0s: that is no number"),
        (["bench", "--window", "inf"], "window"),
        (["bench.report", "--out", "/proc/nope"], "nothing can be written"),
        (["bench", "--url", ""], "--url: nothing was named"),
        (["diagnose", "--file="], "--file: nothing was named"),
        (["health", "--inventory="], "--inventory: nothing was named"),
        (["rollback", "--to=-1"], "--to -1: should be between 0 and"),
        (["watch", "--every", "nan"], "--every nan: should be between 0 and"),
        (["audit", "--lines", "9" * 5000], "that is no number"),
        (["bench", "--url", "http://127.0.0.1:9", "--hosts", "a"], "url: it is asked from here"),
        (["bench", "--precision", "9"], "precision: 9 is a part of the rate"),
        (["runbook", "nan-output", "--log", "x"], "only what --run does has a log"),
        (["bench", "--repeats", "999999999"], "repeats: 999999999 passes"),
        (["bench", "--concurrency", "\u00b2"], "is not a number of streams"),
        (["bench", "--concurrency", "9" * 5000], "is not a number of streams"),
        (["bench", "--concurrency", "1,0,two"], "'0', 'two' is not a number of streams"),
        (["bench", "--rate", "0.5,0,x"], "'0', 'x' is not a number of requests"),
        (["diagnose", "--since", "9" * 5000 + "d"], "is no length of time"),
        (["docs", "--out", "/proc/nope"], "nothing can be written"),
        (["results", "--out", "x" * 5000], "File name too long"),
        (["diagnose", "--bundle", "x" * 5000], "File name too long"),
        (["health", "--wat"], "health has no option --wat\n  next: invoke --help health"),
        (["health", "x" * 5000], "there is no task 'xxx"),
        (["helth"], "there is no task 'helth'\n  did you mean health?\n  next: invoke --list"),
        (["vm.statsu"], "did you mean vm.status?"),
        (["--help", "helth"], "did you mean health?"),
        (["--list", "nothing"], "Sub-collection 'nothing' not found!"),
        (["--lst"], "there is no option --lst\n  did you mean --list?"),
        (["provision", "--chek"], "provision has no option --chek\n  did you mean --check?"),
        (["provision", "--chek=1"], "did you mean --check?"),
        (["deploy", "--profil", "final"], "deploy has no option --profil\n  did you mean --profile?"),
        (["deploy", "--profile"], "--profile: nothing was named\n  next: invoke --help deploy"),
        (["bench.compare"], "bench.compare: BEFORE NOW must be said\n  next: invoke bench.compare BEFORE NOW"),
        (["bench.compare", "results/a"], "bench.compare: NOW must be said"),
        (["adopt"], "adopt: HOST must be said"),
        (["rollback", "--hosts"], "--hosts: nothing was named"),
        (["rollback", "--hosts", "--yes"], "--hosts: nothing was named"),
    ],
)
def test_a_value_that_cannot_be_is_refused_before_anything_is_touched(words: list[str], said: str) -> None:
    done = invoke(*words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr
    assert len(done.stderr) < 1000


@pytest.mark.parametrize("words", [["adopt"], ["bench.compare"], ["bench.compare", "results/a"], ["vm.console"]])
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_of_a_task_that_must_be_told_something(words: list[str], flag: str) -> None:
    done = invoke(*words, flag)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{words[0]} [--options]" in done.stdout


@pytest.mark.parametrize("task", ["unlock", "adopt", "provision", "bench.compare"])
def test_help_says_the_same_behind_a_task_as_before_it(task: str) -> None:
    """Invoke takes an option's help out of a task as it reads it: the second reader found none."""
    before = invoke("--help", task).stdout
    assert re.search(r"^  --[\w-]+(=\w+)? {2,}\w", before, re.MULTILINE), before
    assert invoke(task, "--help").stdout == before


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("PYTHONIOENCODING=ascii {} bench.report --out {}", 0),
        ("{} runbook nan-output >&-", 0),
        ("{} --list | head -1; true", 0),  # 0 or 1, by who is faster; but no traceback
        ("{} runbook >/dev/full", 1),
        ("{} --list >/dev/full", 1),
        ("{} bench.report --out {} >/dev/full", 1),
    ],
)
def test_a_stdout_that_takes_less_is_no_bug(how: str, code: int, tmp_path: Path) -> None:
    line = how.format(INVOKE, tmp_path)
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert "a bug in runbooks" not in done.stderr
    assert done.returncode == code
