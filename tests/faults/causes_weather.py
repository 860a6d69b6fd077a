"""Faults of links that are there, and bad; and of logins that run something else than what was asked for."""

from __future__ import annotations

import shlex
import time

from tests.faults.bad_link import bad_link
from tests.faults.causes_links import SSHD
from tests.faults.faults_world import Ran, World, slow

# --- links


def lossy_link(world: World) -> Ran:
    """Packets are up to 30 ms late, and one in thirty is lost."""
    with bad_link(world) as (link, way):
        link.late, link.loss = 0.03, 1 / 30
        ran = world.run([slow(2)], target=way)
        assert link.delayed > 5, "nothing was lost"
        return ran


def stalling_link(world: World) -> Ran:
    """Nothing passes for longer than a question may take, then all of it does: answers come that nobody waits for."""
    with bad_link(world) as (link, way):
        return world.run([slow(2)], when={"at work 2": lambda: link.stall(16)}, target=way)


def slow_link(world: World) -> Ran:
    """A hundred times slower than the slowest that people complain about: 300 kB of a file take 17 s."""
    with bad_link(world) as (link, way):
        link.rate = 24_000
        ran = world.run(target=way)
        assert ran.seconds > 10, "the link was not slow"
        return ran


def reset_in_a_job(world: World) -> Ran:
    with bad_link(world) as (link, way):
        return world.run([slow(3)], when={"at work 2": link.reset, "at work 4": link.reset}, target=way)


def half_closed_in_a_job(world: World) -> Ran:
    with bad_link(world) as (link, way):
        return world.run([slow(3)], when={"at work 2": link.half_close}, target=way)


def cut_in_a_request(world: World) -> Ran:
    """In the middle of 300 kB: the host has the first half of what it should do."""
    with bad_link(world) as (link, way):
        link.cut_after = 150_000
        ran = world.run(target=way)
        assert link.sent > 150_000, "it was not cut"
        return ran


def cut_at_every_step(world: World) -> Ran:
    """Further on each time: in the key exchange, the login, the questions, the lock, the job's making."""
    for at in range(200, 15_000, 800):
        with bad_link(world) as (link, way):
            link.cut_after = at
            ran = world.run(target=way)
            assert len(ran.result.failed) == 1, f"after {at} bytes: {ran.text}"
            assert ran.seconds < 20, f"after {at} bytes it took {ran.seconds:.0f} s"
    return ran


def silent_sshd(world: World) -> Ran:
    """It is there, and says nothing: the kernel takes the connection, and nobody greets."""
    world.later(30, "systemctl kill --kill-whom=main -s CONT ssh")
    world.cleanup.append(lambda: world.until(lambda: world.guest.run("true", check=False).returncode == 0, seconds=60))
    world.sh("systemctl kill --kill-whom=main -s STOP ssh")
    return world.run()


# --- logins and names


def _ops(world: World, *settings: str) -> dict[str, str]:
    """Settings of sshd for one login, so that plain ssh as root still sees the truth."""
    lines = "\\n".join(["Match User ops", *settings])
    world.sh(f"printf '{lines}\\n' >{SSHD} && sshd -t && systemctl reload ssh")
    world.undo(f"rm -f {SSHD}; systemctl reload ssh")
    time.sleep(0.3)
    return {"user": "ops"}


def forced_cat(world: World) -> Ran:
    return world.run(target=_ops(world, "ForceCommand cat"))


def forced_menu(world: World) -> Ran:
    """As a bastion's appliance: text, and then the end."""
    return world.run(target=_ops(world, "ForceCommand echo This account is for backups only"))


def forced_wrapper(world: World) -> Ran:
    """It says something of its own, and then runs what was asked for."""
    world.sh("printf '#!/bin/sh\\necho recorded session\\necho recorded >&2\\nexec sh -c \"$SSH_ORIGINAL_COMMAND\"\\n'"
             " >/usr/local/bin/recorded && chmod 755 /usr/local/bin/recorded")  # fmt: skip
    way = _ops(world, "ForceCommand /usr/local/bin/recorded")
    world.undo("rm -f /usr/local/bin/recorded")
    return world.run(target=way)


def no_sessions(world: World) -> Ran:
    """Only forwarding is allowed."""
    return world.run(target=_ops(world, "MaxSessions 0"))


ODD = """it's $(touch /run/pwned) "ü" ; * -n"""
SET_HOSTNAME = "perl -e 'syscall(`uname -m` =~ /x86/ ? 170 : 161, $ARGV[0], length $ARGV[0])'"  # no tool takes it


def odd_hostname(world: World) -> Ran:
    """As a mistake in a cloud's template leaves one behind: no name at all, and shell text."""
    world.undo(f"{SET_HOSTNAME} {shlex.quote(world.sh('hostname').strip())}")
    assert "touch" in world.sh(f"{SET_HOSTNAME} {shlex.quote(ODD)}; hostname")
    ran = world.run([slow(1)], target={"user": "ops"})
    assert "pwned" not in world.sh("ls /run")
    return ran
