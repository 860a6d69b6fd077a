"""Faults of links, logins and privilege."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

from lab.machine import create_key
from runbooks.engine.secret import Secret
from tests.faults.faults_world import Ran, World, make_pat, slow

SSHD = "/etc/ssh/sshd_config.d/00-fault.conf"


def _sshd(world: World, setting: str) -> None:
    world.sh(f"echo '{setting}' >{SSHD} && systemctl reload ssh && sshd -T | grep -i '{setting.split()[0]}'")
    world.undo(f"rm -f {SSHD}; systemctl reload ssh")


# --- links


def link_down(world: World) -> Ran:
    world.guest.cut_link()
    world.cleanup.append(world.guest.mend_link)
    return world.run()


def link_cut_in_a_job(world: World) -> Ran:
    def cut() -> None:
        world.guest.cut_link()
        threading.Timer(4, world.guest.mend_link).start()

    return world.run([slow(3)], when={"at work 2": cut})


def answers_stop(world: World) -> Ran:
    """Half open: what we send arrives, nothing comes back; for five seconds."""

    def stop() -> None:
        gateway = world.guest.network.gateway
        world.later(5, f"ip route del blackhole {gateway}/32")
        world.later(0.2, f"ip route add blackhole {gateway}/32")

    return world.run([slow(3)], when={"at work 2": stop})


def sshd_stopped(world: World) -> Ran:
    world.later(6, "systemctl start ssh")
    world.cleanup.append(lambda: world.guest.wait())
    world.sh("systemctl stop ssh ssh.socket 2>/dev/null; ! systemctl is-active ssh")
    return world.run()


def session_killed_in_a_job(world: World) -> Ran:
    return world.run([slow(3)], when={"at work 2": lambda: world.later(0, "pkill -9 -f 'sshd: root@notty'")})


def other_host_key(world: World) -> Ran:
    """As after a rebuild of the machine; six seconds later the old key is back."""
    swap = "cp -a ssh_host_ed25519_key kept; cp -a ssh_host_ed25519_key.pub kept.pub; rm ssh_host_ed25519_key*"
    new = "ssh-keygen -q -t ed25519 -N '' -f ssh_host_ed25519_key; systemctl restart ssh"
    back = "mv kept ssh_host_ed25519_key; mv kept.pub ssh_host_ed25519_key.pub; systemctl restart ssh"
    world.later(0.2, f"cd /etc/ssh; {swap}; {new}; sleep 6; {back}")
    world.until(lambda: world.guest.run("true", check=False).returncode != 0)
    world.cleanup.append(lambda: world.until(lambda: world.guest.run("true", check=False).returncode == 0))
    return world.run()


def wrong_key(world: World) -> Ran:
    key = world.guest.place / "nobody"
    if not key.exists():
        create_key(key, comment="nobody")
    return world.run(target={"key": key})


def one_session_a_connection(world: World) -> Ran:
    """No second channel on the connection."""
    _sshd(world, "MaxSessions 1")
    return world.run()


def too_many_logins(world: World) -> Ran:
    """MaxStartups 1, and somebody who connects and says nothing."""
    _sshd(world, "MaxStartups 1:100:1")
    idle = [socket.create_connection((world.guest.address, 22)) for _ in range(2)]
    for held in idle:
        threading.Timer(1.5, held.close).start()
    return world.run()


def noisy_login(world: World) -> Ran:
    """Startup files that print and read, a message of the day and a banner."""
    world.sh("printf 'echo NOISE \\377; echo NOISE >&2; read -r NOISE\\n' | tee -a /root/.bashrc >>/root/.profile;"
             "echo welcome >/etc/motd; echo '*** BANNER ***' >/etc/ssh/banner")  # fmt: skip
    _sshd(world, "Banner /etc/ssh/banner")
    world.undo("sed -i '/NOISE/d' /root/.bashrc /root/.profile; rm -f /etc/motd")
    return world.run()


def no_login_shell(world: World) -> Ran:
    world.sh("usermod -s /usr/sbin/nologin ops && getent passwd ops")
    world.undo("usermod -s /bin/bash ops")
    return world.run(target={"user": "ops"})


# --- privilege


def _pat(world: World, rule: str) -> dict[str, Any]:
    make_pat(world.guest, rule=rule)
    world.undo("rm -f /etc/sudoers.d/pat")
    return {"user": "pat"}


def sudo_refused(world: World) -> Ran:
    return world.run(target=_pat(world, "# nothing for pat") | {"sudo_password": Secret("right horse")})


def sudo_wants_a_password(world: World) -> Ran:
    return world.run(target=_pat(world, "pat ALL=(ALL) ALL"))


def sudo_wrong_password(world: World) -> Ran:
    return world.run(target=_pat(world, "pat ALL=(ALL) ALL") | {"sudo_password": Secret("wrong donkey")})


def sudo_with_password(world: World) -> Ran:
    return world.run(target=_pat(world, "pat ALL=(ALL) ALL") | {"sudo_password": Secret("right horse")})


def requiretty(world: World) -> Ran:
    return world.run(target=_pat(world, "Defaults:pat requiretty\npat ALL=(ALL) NOPASSWD: ALL"))


def slow_sudo(world: World) -> Ran:
    """A directory service that answers late, as LDAP does: Ansible gives up after 12 s."""
    wrapper = '#!/bin/sh\\nsleep 13\\nexec /usr/bin/sudo "$@"\\n'
    world.sh(f"cd /usr/local/bin && printf '{wrapper}' >sudo && chmod 755 sudo")
    world.undo("rm -f /usr/local/bin/sudo")
    began = time.monotonic()
    ran = world.run(target=_pat(world, "pat ALL=(ALL) ALL") | {"sudo_password": Secret("right horse")})
    assert time.monotonic() - began > 13, "sudo was not slow"
    return ran


def no_sudo(world: World) -> Ran:
    world.sh("mv /usr/bin/sudo /usr/bin/sudo.kept")
    world.undo("mv /usr/bin/sudo.kept /usr/bin/sudo")
    return world.run(target={"user": "ops"})
