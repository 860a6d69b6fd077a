"""The lock between the host that goes back by itself and a run: the real scripts, under a real shell and flock, in a
folder of the test's own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from runbooks.deploy import guard, releases
from runbooks.engine.errors import RunbookError
from runbooks.engine.shell import Answer
from runbooks.engine.transport import Connection
from tests.deploy.test_deploy_releases import ONE

OLD, NEW = replace(ONE, number=6, verdict="promoted"), replace(ONE, number=7)
SYSTEMCTL = '#!/bin/sh\necho "$@" >>"$ASKED"\n'


class Here:
    """The host's side of it: its paths lie in a folder, and systemctl only writes down what it was asked."""

    name = "glm5-a"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in (
            "bin",
            "opt/runbooks/releases/6",
            "opt/runbooks/releases/7",
            "run",
            "etc/systemd/system",
            "var/log",
        ):
            (folder / name).mkdir(parents=True)
        (folder / "bin/systemctl").write_text(SYSTEMCTL)
        (folder / "bin/systemctl").chmod(0o755)
        for release in (OLD, NEW):
            (folder / f"opt/runbooks/releases/{release.number}/release.json").write_text(release.dump())

    def _here(self, script: str) -> str:
        for root in ("/opt/runbooks", "/run/", "/etc/systemd", "/var/log"):
            script = script.replace(root, f"{self.folder}{root}")
        return script

    def ask(self, script: str, *, deadline: float = 30.0, stdin: bytes = b"") -> Answer:
        environment = {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "ASKED": str(self.folder / "asked")}
        done = subprocess.run(
            ["sh", "-c", self._here(script)],
            input=self._here(stdin.decode()).encode(),
            capture_output=True,
            timeout=deadline,
            env=environment,
            check=False,
        )
        return Answer(done.returncode, done.stdout.replace(str(self.folder).encode(), b""), done.stderr.decode())

    @property
    def conn(self) -> Connection:
        return cast(Connection, self)

    @property
    def current(self) -> str:
        return (self.folder / "opt/runbooks/current").readlink().name

    @property
    def asked(self) -> str:
        return (self.folder / "asked").read_text()

    @property
    def verdict(self) -> str | None:
        said = json.loads((self.folder / "opt/runbooks/releases/7/release.json").read_text())["verdict"]
        return None if said is None else str(said)

    def fires(self, *, slowly: bool = False) -> Answer:
        """What systemd runs when the time is up."""
        script = (self.folder / "opt/runbooks/runbooks-fallback.sh").read_text().replace(str(self.folder), "")
        return self.ask(script.replace("\nif ", "\nsleep 1; if ", 1) if slowly else script)


@pytest.fixture
def here(tmp_path: Path) -> Here:
    """Release 7 is current and not judged, and the way back to 6 is prepared."""
    made = Here(tmp_path)
    guard.on(made.conn, NEW, OLD, budget=1800)
    releases.switch(made.conn, NEW)
    return made


def test_it_goes_back_and_leaves_nothing_of_itself(here: Here) -> None:
    assert here.current == "7"
    assert here.fires().rc == 0
    assert (here.current, here.verdict) == ("6", "failed")
    assert here.asked.splitlines()[-1] == "restart --no-block sglang.service"
    assert not [one.name for one in here.folder.rglob("*runbooks-fallback*")]
    assert "back to release 6" in (here.folder / "var/log/runbooks/audit.jsonl").read_text()


def test_it_does_nothing_while_a_run_is_at_it(here: Here) -> None:
    """And is not gone by that: the run that had the lock set its time anew."""
    holder = subprocess.Popen(["flock", str(here.folder / "run/runbooks-switching"), "sleep", "30"])
    try:
        while (
            subprocess.run(["flock", "-n", str(here.folder / "run/runbooks-switching"), "true"], check=False).returncode
            == 0
        ):
            time.sleep(0.02)
        assert here.fires().rc == 0
        assert (here.current, here.verdict) == ("7", None)
        assert len([one.name for one in here.folder.rglob("*runbooks-fallback*")]) == 4
    finally:
        subprocess.run(["pkill", "-P", str(holder.pid)], check=False)
        holder.wait(10)


def test_a_run_that_comes_while_it_is_at_work_waits_until_that_is_done(here: Here) -> None:
    at_work = threading.Thread(target=here.fires, kwargs={"slowly": True})
    at_work.start()
    time.sleep(0.3)
    assert here.current == "7"
    guard.settle(here.conn)
    assert here.current == "6"
    at_work.join(10)
    assert "restart runbooks-fallback.timer" not in here.asked  # there was nothing left to put off


def test_a_run_that_comes_before_puts_it_off(here: Here) -> None:
    guard.settle(here.conn, NEW)
    assert here.asked.splitlines()[-2:] == ["restart runbooks-fallback.timer", "stop runbooks-fallback.service"]


def test_a_release_that_was_taken_back_is_not_promoted_any_more(here: Here) -> None:
    here.fires()
    with pytest.raises(RunbookError, match="the host went back from release 7 by itself before it was confirmed"):
        guard.settle(here.conn, NEW)


def test_one_that_never_ends_is_told(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_LOCKED", guard._LOCKED.replace("-w 60", "-w 0"))
    holder = subprocess.Popen(["flock", str(here.folder / "run/runbooks-switching"), "sleep", "30"])
    try:
        time.sleep(0.3)
        with pytest.raises(RunbookError, match="going back to an earlier release by itself"):
            guard.settle(here.conn)
    finally:
        subprocess.run(["pkill", "-P", str(holder.pid)], check=False)
        holder.wait(10)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_takes_its_units(here: Here) -> None:
    folder = here.folder / "etc/systemd/system"
    server = folder / "sglang.service"
    server.unlink()
    server.write_text("[Service]\nExecStart=/bin/true\n")
    for name in ("runbooks-fallback.service", "runbooks-fallback.timer"):
        verify = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=one", str(folder / name)]
        done = subprocess.run(verify, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
