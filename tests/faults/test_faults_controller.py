"""The controller is stopped, killed or doubled; and other roads to a host."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.guest import Guest
from lab.lab import Lab
from runbooks.engine.errors import HostKeyChanged, Unreachable
from runbooks.engine.reboot import reboot
from runbooks.engine.report import Reporter
from runbooks.engine.secret import Secret
from runbooks.engine.transport import Connection, Target
from tests.faults.faults_world import ROOT, Said, World, make_pat

pytestmark = pytest.mark.lab


class Controller:
    """The play in a process of its own, and what it has said so far."""

    def __init__(self, world: World, folder: Path, *options: str) -> None:
        target = folder / "target.json"
        raw = {"name": world.target.name, "address": world.target.address}
        target.write_text(
            json.dumps(raw | {"key": str(world.target.key), "known_hosts": str(world.target.known_hosts)})
        )
        self._log = folder / f"log-{time.monotonic_ns()}"
        argv = [sys.executable, "-m", "tests.faults.runner", str(target), *options]
        with self._log.open("w") as out:
            self.process = subprocess.Popen(
                argv, stdout=out, stderr=subprocess.STDOUT, cwd=Path(__file__).parents[2], start_new_session=True
            )

    @property
    def text(self) -> str:
        return self._log.read_text()

    def until(self, text: str, *, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.text:
            assert time.monotonic() < deadline, f"does not say {text!r}:\n{self.text}"
            assert self.process.poll() is None or text in self.text, f"ended without {text!r}:\n{self.text}"
            time.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> int:
        return self.process.wait(timeout=90)


def _converges(world: World, folder: Path, *options: str) -> None:
    """A rerun comes to its end, and another has nothing to do; plain ssh agrees."""
    again = Controller(world, folder, *options)
    assert again.end() == 0, again.text
    assert world.wrong() == []
    last = Controller(world, folder, *options)
    assert last.end() == 0
    assert "end: 0 changed, 0 failed" in last.text
    assert world.half_done() == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_killed_at_a_random_moment(world: World, tmp_path: Path, seed: int) -> None:
    controller = Controller(world, tmp_path, "--seconds", "1")
    time.sleep(random.Random(seed).uniform(0.3, 6.0))
    controller.signal(signal.SIGKILL)
    assert controller.end() in (-signal.SIGKILL, 0)
    again = Controller(world, tmp_path, "--seconds", "1")
    assert again.end() == 0, again.text
    # A dead run's lock may stand where nothing was left to change; whoever changes something takes it over.
    world.sh(f"rm -f {ROOT}/a.conf")
    _converges(world, tmp_path, "--seconds", "1")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("seed", range(4))
def test_a_signal_at_a_random_moment(world: World, tmp_path: Path, seed: int, number: signal.Signals) -> None:
    """Ctrl-C, a desk that shuts down, a terminal that is closed."""
    controller = Controller(world, tmp_path, "--seconds", "1")
    time.sleep(random.Random(f"{seed} {number}").uniform(0.8, 6.0))
    controller.signal(number)
    controller.end()
    world.sh(f"rm -f {ROOT}/a.conf")
    _converges(world, tmp_path, "--seconds", "1")


@pytest.mark.slow
@pytest.mark.parametrize("question", range(1, 19))
def test_killed_in_the_middle_of_each_question(world: World, tmp_path: Path, question: int) -> None:
    """On a host whose systemd takes its time to launch: the next run is there before the dead one's job is."""
    slow_launch = '#!/bin/sh\\nsleep 1.5\\nexec /usr/bin/systemd-run "$@"\\n'
    world.sh(f"cd /usr/local/bin && printf '{slow_launch}' >systemd-run && chmod 755 systemd-run")
    world.undo("rm -f /usr/local/bin/systemd-run")
    controller = Controller(world, tmp_path, "--seconds", "1", "--die", str(question))
    assert controller.end() in (-signal.SIGKILL, 0)
    again = Controller(world, tmp_path, "--seconds", "1")
    assert again.end() == 0, again.text
    assert "alone" not in world.sh("ls /run"), again.text
    world.sh(f"rm -f {ROOT}/a.conf")
    _converges(world, tmp_path, "--seconds", "1")


def test_killed_in_a_step_the_rerun_meets_its_job(world: World, tmp_path: Path) -> None:
    """The lock of the dead run is taken over, its job waited for, and nothing runs twice at once."""
    controller = Controller(world, tmp_path, "--seconds", "8")
    controller.until("at work 2")
    controller.signal(signal.SIGKILL)
    controller.end()
    assert "supervisor" in world.sh("pgrep -fa '[j]obs/.*/supervisor'")
    again = Controller(world, tmp_path, "--seconds", "8")
    assert again.end() == 0, again.text
    assert "a job of an earlier run is at work" in again.text
    assert world.wrong() == []
    assert world.half_done() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_ends_between_two_steps(world: World, tmp_path: Path, number: signal.Signals) -> None:
    controller = Controller(world, tmp_path, "--seconds", "2")
    controller.until("at work 1")
    controller.signal(number)
    assert controller.end() == 1
    assert "stopped as asked" in controller.text
    assert world.sh(f"ls {ROOT} | grep slow").split() == [
        "slow"
    ]  # the running step came to its end, the next is not begun
    assert world.half_done() == []
    _converges(world, tmp_path)


@pytest.mark.slow
def test_two_signals_leave_at_once_and_the_job_goes_on(world: World, tmp_path: Path) -> None:
    controller = Controller(world, tmp_path, "--seconds", "4")
    controller.until("at work 1")
    controller.signal(signal.SIGINT)
    controller.until("interrupted")
    controller.signal(signal.SIGINT)
    began = time.monotonic()
    assert controller.end() != 0
    assert time.monotonic() - began < 5
    assert "supervisor" in world.sh("pgrep -fa '[j]obs/.*/supervisor'")
    _converges(world, tmp_path, "--seconds", "4")


def test_a_second_run_names_the_first_and_leaves_and_one_that_waits_gets_its_turn(world: World, tmp_path: Path) -> None:
    first = Controller(world, tmp_path, "--seconds", "3")
    first.until("at work 2")
    second = Controller(world, tmp_path)
    waiting = Controller(world, tmp_path, "--wait")
    assert second.end() == 1
    assert f"(pid {first.process.pid})" in second.text
    assert "invoke unlock" in second.text
    waiting.until("waiting: the host is held by")
    assert first.end() == 0, first.text
    assert waiting.end() == 0, waiting.text
    assert world.wrong() == []


@pytest.fixture(scope="module")
def bastion(lab: Lab) -> Guest:
    return lab.add()


PEERS = "ss -Htn state established '( sport = :22 )'"


def _peers(said: str) -> set[str]:
    """The addresses that the guest's sshd is connected to, out of what `PEERS` says."""
    return {line.split()[3].rpartition(":")[0] for line in said.splitlines() if line.strip()}


def test_through_a_jump_host(world: World, bastion: Guest) -> None:
    ran = world.run(target={"proxy_jump": f"root@{bastion.address}"})
    assert ran.result.failed == [], ran.text
    with Connection(Target(**{**vars(world.target), "proxy_jump": f"root@{bastion.address}"})) as connection:
        assert _peers(connection.ask(PEERS).out) == {bastion.address}
    assert world.wrong() == []


@pytest.mark.slow
def test_a_reboot_through_a_jump_host_by_a_user_with_a_sudo_password(world: World, bastion: Guest) -> None:
    """Where a proxy keeps its channel open other tools wait for ever, or trip over what the password left behind."""
    make_pat(world.guest)
    world.undo("rm -f /etc/sudoers.d/pat")
    way = {"proxy_jump": f"root@{bastion.address}", "user": "pat", "sudo_password": Secret("right horse")}
    before = world.guest.boot_id()
    with Connection(Target(**{**vars(world.target), **way})) as connection:
        reboot(connection, limit=120, report=Reporter(Said()))
        after = connection.ask("cat /proc/sys/kernel/random/boot_id; id -u").out.split()
    assert after == [world.guest.boot_id(), "0"]
    assert after[0] != before


def test_a_jump_host_whose_key_is_not_pinned_is_not_trusted(world: World, bastion: Guest, tmp_path: Path) -> None:
    lines = world.target.known_hosts.read_text().splitlines()
    own = [line for line in lines if line.startswith(f"{world.guest.address} ")]
    other = own[0].split()
    for name, error in (("unknown", Unreachable), ("changed", HostKeyChanged)):
        pinned = tmp_path / name
        forged = [f"{bastion.address} {other[1]} {other[2]}"] if name == "changed" else []
        pinned.write_text("\n".join([*own, *forged]) + "\n")
        target = Target(**{**vars(world.target), "proxy_jump": f"root@{bastion.address}", "known_hosts": pinned})
        with Connection(target) as connection, pytest.raises(error):
            connection.ask(":")


def test_ssh_config_is_honoured(world: World, bastion: Guest, tmp_path: Path) -> None:
    """An alias with its real name, its key and a jump, all from ~/.ssh/config."""
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text(
        f"Host far\n  HostName {world.guest.address}\n  IdentityFile {world.target.key}\n  ProxyJump near\n"
        f"Host near\n  HostName {bastion.address}\n  User root\n  IdentityFile {world.target.key}\n"
    )
    code = (
        "from pathlib import Path; from runbooks.engine.transport import *\n"
        f"target = Target(name='far', address='far', known_hosts=Path({str(world.target.known_hosts)!r}))\n"
        f"with Connection(target) as c: print(c.ask({PEERS!r}).out)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "HOME": str(tmp_path)}, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert _peers(done.stdout) == {bastion.address}
