"""`invoke diagnose` on texts: piped, a file, a folder, an archive; several texts of one host; and what it says."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from runbooks.diagnose.command import causes, diagnose_file
from runbooks.diagnose.since import seconds
from runbooks.diagnose.sources import Texts, from_text
from runbooks.engine.errors import UsageError
from runbooks.engine.printers import JsonPrinter
from runbooks.engine.report import Reporter

DATA = Path(__file__).parent / "data"
ROOT = Path(__file__).parents[2]
OOM = "[ 4711.120000] Out of memory: Killed process 911 (sglang::schedul) total-vm:1kB"
NAN = "ValueError: Detected errors during sampling! NaN in the logits."


def said(name: str | Path) -> tuple[int, dict[str, object]]:
    out = io.StringIO()
    code = diagnose_file(str(name), Reporter(JsonPrinter(out)))
    return code, json.loads(out.getvalue().splitlines()[-1])


def first(event: dict[str, object]) -> str:
    found = event["causes"]
    assert isinstance(found, list)
    return str(found[0]["name"])


def test_a_file() -> None:
    code, event = said(DATA / "nan-no-journal.txt")
    assert (code, first(event), event["level"]) == (1, "nan", "error")
    assert "invoke runbook nan-output" in str(event["text"])


def test_a_healthy_folder_is_no_finding() -> None:
    code, event = said(DATA / "healthy")
    assert (code, first(event), event["level"]) == (0, "nothing", "good")


def test_an_archive_is_read_whole(tmp_path: Path) -> None:
    bundle = tmp_path / "evidence.tar.gz"
    with tarfile.open(bundle, "w:gz") as archive:
        archive.add(DATA / "nan-no-journal.txt", "journal.txt")
        (tmp_path / "dmesg").write_text(OOM)
        archive.add(tmp_path / "dmesg", "dmesg")
    code, event = said(bundle)
    assert (code, first(event)) == (1, "oom-kill")


def test_what_is_piped_in_needs_no_inventory(tmp_path: Path) -> None:
    """The real `invoke`, with `-` as a bare word, where there is no inventory."""
    done = subprocess.run(
        [sys.executable, "-m", "invoke", "--search-root", str(ROOT), "diagnose", "-", "--plain"],
        input=(DATA / "port-in-use-0523.txt").read_text(),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 1
    assert "another process listens" in done.stdout
    assert "page: invoke runbook deploy-failed" in done.stdout


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="cannot read"):
        said("/nowhere/at/all")


def test_a_kernel_line_is_no_part_of_an_attempt_to_start() -> None:
    text = f"{OOM}\nNov 29 17:00:00 a systemd[1]: Starting sglang.service...\nReceived sigquit from a child process"
    assert causes(from_text(text))[0].name == "oom-kill"


def test_installations_are_blamed_only_where_the_server_says_nothing() -> None:
    held = "E: Unable to correct problems, you have held broken packages."
    assert causes(Texts(installs=held))[0].name == "apt-held"
    assert causes(Texts(journal=NAN, installs=held))[0].name == "nan"
    absent = causes(Texts(installs=held, unit={"LoadState": "not-found"}))
    assert [cause.name for cause in absent] == ["apt-held", "not-deployed"]
    assert causes(Texts(installs="Setting up nvidia-open"))[0].name == "nothing"


@pytest.mark.parametrize(("text", "value"), [("90s", 90), ("10m", 600), ("1h", 3600), ("2d", 172800)])
def test_since(text: str, value: int) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "1", "h", "1 h", "-1h", "yesterday"])
def test_since_refuses(text: str) -> None:
    with pytest.raises(UsageError):
        seconds(text)
