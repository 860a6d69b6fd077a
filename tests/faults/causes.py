"""The faults, each caused on the host for real, and proven to be there before the run is looked at.

`says`: a regex over what the user sees. `recovers`: the run itself comes to a good end in spite of it.
`within`: the most seconds the run may take; generous, since it tells a hang from an answer, and no more.
"""

from __future__ import annotations

import dataclasses
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lab.machine import create_key
from runbooks import paths
from runbooks.engine.secret import Secret
from runbooks.engine.step import Step
from runbooks.steps.build import Command
from runbooks.steps.packages import Packages
from runbooks.steps.services import Unit
from tests.faults.faults_world import ROOT, Ran, World, slow

SSHD = "/etc/ssh/sshd_config.d/00-fault.conf"


@dataclass(frozen=True)
class Fault:
    cause: Callable[[World], Ran]
    says: str
    recovers: bool = False
    within: float = 45.0


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
    """No second channel, so no SFTP for the large file."""
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
    world.sh("printf 'echo NOISE \\377; echo NOISE >&2\\n' | tee -a /root/.bashrc >>/root/.profile;"
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
    world.sh(
        "id pat >/dev/null 2>&1 || useradd -m -s /bin/bash pat; echo 'pat:right horse' | chpasswd;"
        "install -d -m 700 -o pat /home/pat/.ssh; install -o pat -m 600 /root/.ssh/authorized_keys /home/pat/.ssh/;"
        f"printf '{rule}\\n' >/etc/sudoers.d/pat"
    )
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
    return world.run(target=_pat(world, "Defaults:pat requiretty\\npat ALL=(ALL) NOPASSWD: ALL"))


def no_sudo(world: World) -> Ran:
    world.sh("mv /usr/bin/sudo /usr/bin/sudo.kept")
    world.undo("mv /usr/bin/sudo.kept /usr/bin/sudo")
    return world.run(target={"user": "ops"})


# --- the host


def hung_question(world: World) -> Ran:
    """As nvidia-smi after an Xid 79: it can be neither answered nor, here, stopped politely."""
    hung = Command(name="hung", script=":", unless="kill -STOP $$")
    return world.run([hung])


def dead_mount(world: World) -> Ran:
    """A pipe that nobody writes to blocks its readers as a dead NFS server does."""
    world.sh(f"mkdir -p {ROOT} && mkfifo {ROOT}/dead")
    world.undo(f"rm -f {ROOT}/dead")
    return world.run([Command(name="dead mount", script=":", unless=f"cat {ROOT}/dead")])


def disk_full(world: World) -> Ran:
    world.sh(f"mkdir -p {ROOT} && mount -t tmpfs -o size=64k,mode=755 faults {ROOT} && df {ROOT}")
    world.undo(f"umount {ROOT}")
    return world.run()


def read_only(world: World) -> Ran:
    world.sh(f"mkdir -p {ROOT} && mount -t tmpfs -o ro faults {ROOT} && ! touch {ROOT}/x")
    world.undo(f"umount {ROOT}")
    return world.run()


def state_disk_full(world: World) -> Ran:
    """No room for the job's own folder."""
    world.sh(f"mkdir -p {paths.STATE} && mount -t tmpfs -o size=4k faults {paths.STATE} &&"
             f" head -c 4096 /dev/zero >{paths.STATE}/full; df {paths.STATE} | grep 100%")  # fmt: skip
    world.undo(f"umount {paths.STATE}")
    return world.run()


def run_full(world: World) -> Ran:
    """/run has no room: the shell's private folder goes elsewhere, and the lock cannot be written."""
    used = int(world.sh("df -k --output=used /run | tail -n 1"))
    world.sh(
        f"mount -o remount,size={used + 64}k /run; dd if=/dev/zero of=/run/full bs=4k 2>/dev/null; df /run | grep 100%"
    )
    world.undo("rm -f /run/full; mount -o remount,size=20% /run")
    return world.run()


def no_audit(world: World) -> Ran:
    world.sh("rm -rf /var/log/runbooks; echo in the way >/var/log/runbooks")
    world.undo("rm -f /var/log/runbooks")
    return world.run()


def in_the_way(world: World) -> Ran:
    world.sh(f"mkdir -p {ROOT}/a.conf/x")
    world.undo(f"rm -rf {ROOT}/a.conf")
    return world.run()


def fought_over(world: World) -> Ran:
    """Another agent keeps writing the file back."""
    agent = f"echo $$ >/run/agent; while :; do echo theirs >{ROOT}/a.conf; sleep 0.02; done"
    world.sh(f"mkdir -p {ROOT}; setsid sh -c '{agent}' >/dev/null 2>&1 </dev/null & sleep 0.3")
    world.undo("kill $(cat /run/agent); sleep 0.1")
    return world.run()


def dead_service(world: World) -> Ran:
    bad = "[Service]\\nType=oneshot\\nExecStart=/bin/false\\n"
    world.sh(f"printf '{bad}' >/etc/systemd/system/broken.service; systemctl daemon-reload")
    world.undo(
        "printf '[Service]\\nExecStart=/bin/sleep inf\\n' >/etc/systemd/system/broken.service; systemctl daemon-reload"
    )
    return world.run([Unit(name="broken.service", active=True)])


def apt_locked(world: World) -> Ran:
    """Somebody's apt at work: waited for."""
    steps = _tree(world)
    world.sh("dpkg -P bc >/dev/null 2>&1; true")
    apt = "apt-get -q -y -o DPkg::Pre-Invoke::='sleep 8' install bc"
    world.sh(f"systemd-run --quiet --collect --unit=theirs {apt}; sleep 1.5; systemctl is-active theirs")
    return world.run(steps)


def dpkg_interrupted(world: World) -> Ran:
    steps = _tree(world)
    unpacked = "/^Package: tree$/,/^$/s/^Status: .*/Status: install ok unpacked/"
    world.sh(f"apt-get -q -y install tree && sed -i '{unpacked}' /var/lib/dpkg/status && dpkg --audit | grep tree")
    return world.run(steps)


def package_unknown(world: World) -> Ran:
    return world.run([*_tree(world), Packages(names=("no-such-package-anywhere",))])


def _tree(world: World) -> list[Step]:
    world.sh(
        "dpkg -P tree >/dev/null 2>&1; ls /var/lib/apt/lists/*Packages >/dev/null 2>&1 || apt-get -q update >/dev/null"
    )
    world.sh(f"mkdir -p {paths.STATE} && touch {paths.STATE}/apt-lists")
    return [Packages(names=("tree",))]


# --- ends in the middle


def _in_the_job(world: World, script: str) -> Ran:
    def hit() -> None:
        world.sh(script)

    return world.run([slow(4)], when={"at work 2": hit})


def step_killed(world: World) -> Ran:
    """What the kernel does when memory runs out."""
    return _in_the_job(world, "pkill -9 -f '[s]h -e ./script'")


def supervisor_killed(world: World) -> Ran:
    return _in_the_job(
        world, "kill -9 $(cat /var/lib/runbooks/jobs/middle-*/pid); pkill -9 -f '[s]h -e ./script'; true"
    )


def job_cancelled(world: World) -> Ran:
    return _in_the_job(world, "kill -TERM $(cat /var/lib/runbooks/jobs/middle-*/pid)")


def over_its_limit(world: World) -> Ran:
    return world.run([dataclasses.replace(slow(20), limit=1)])


def job_folder_removed(world: World) -> Ran:
    return _in_the_job(world, "rm -rf /var/lib/runbooks/jobs/middle-*; pkill -f '[s]h -e ./script'; true")


def rebooted_in_a_job(world: World) -> Ran:
    return world.run([slow(4)], when={"at work 2": lambda: world.later(0, "systemctl reboot --force")})


def power_lost_in_a_job(world: World) -> Ran:
    def cut() -> None:
        world.lab.kill(world.guest)
        threading.Thread(target=lambda: world.lab.boot(world.guest)).start()

    return world.run([slow(4)], when={"at work 2": cut})


# --- other people


def another_run(world: World) -> Ran:
    """A lock of a run on another machine."""
    holder = '{"who": "ann@desk", "pid": 7, "what": "provision", "since": 1, "run": "x", "place": "elsewhere 1"}'
    world.sh(f"mkdir -p {paths.LOCK} && echo x >{paths.LOCK}/run && echo '{holder}' >{paths.LOCK}/holder")
    world.undo(f"rm -rf {paths.LOCK}")
    return world.run()


def not_a_debian(world: World) -> Ran:
    world.sh("mv /etc/os-release /etc/os-release.kept; mv /usr/lib/os-release /usr/lib/os-release.kept")
    world.undo("mv /etc/os-release.kept /etc/os-release; mv /usr/lib/os-release.kept /usr/lib/os-release")
    return world.run()


def loud_step(world: World) -> Ran:
    """300 MB of output, no line in it over, not all of it UTF-8."""
    loud = Command(
        name="loud",
        script=f"yes \"$(printf 'caf\\351 %80s' x)\" | head -c 300000000; : >{ROOT}/loud",
        creates=f"{ROOT}/loud",
    )
    return world.run([loud])


FAULTS = {
    "link-down": Fault(link_down, "timed out|No route"),
    "link-cut-in-a-job": Fault(link_cut_in_a_job, "at work 6", recovers=True),
    "answers-stop": Fault(answers_stop, "at work 6", recovers=True),
    "sshd-stopped": Fault(sshd_stopped, "refused"),
    "session-killed-in-a-job": Fault(session_killed_in_a_job, "at work 6", recovers=True),
    "other-host-key": Fault(other_host_key, "another host key than the one pinned"),
    "wrong-key": Fault(wrong_key, "refused the login of root"),
    "one-session-a-connection": Fault(one_session_a_connection, "", recovers=True),
    "too-many-logins": Fault(too_many_logins, "", recovers=True),
    "noisy-login": Fault(noisy_login, "", recovers=True),
    "no-login-shell": Fault(no_login_shell, "This account is currently not available"),
    "sudo-refused": Fault(sudo_refused, "did not take|not in the sudoers"),
    "sudo-wants-a-password": Fault(sudo_wants_a_password, "sudo: password"),
    "sudo-wrong-password": Fault(sudo_wrong_password, "did not take the password"),
    "sudo-with-password": Fault(sudo_with_password, "", recovers=True),
    "requiretty": Fault(requiretty, "requiretty"),
    "no-sudo": Fault(no_sudo, "sudo: (command )?not found"),
    "hung-question": Fault(hung_question, "did not answer this question in time", within=30),
    "dead-mount": Fault(dead_mount, "did not answer this question in time", within=30),
    "disk-full": Fault(disk_full, "No space left on device"),
    "read-only": Fault(read_only, "Read-only file system"),
    "state-disk-full": Fault(state_disk_full, "No space left on device"),
    "run-full": Fault(run_full, r"(?s)lock could not be taken.*100%"),
    "no-audit": Fault(no_audit, "audit log cannot be written", recovers=True),
    "in-the-way": Fault(in_the_way, "directory"),
    "fought-over": Fault(fought_over, "second look still wants a change"),
    "dead-service": Fault(dead_service, "journalctl -u broken.service"),
    "apt-locked": Fault(apt_locked, "Setting up tree", recovers=True, within=90),
    "dpkg-interrupted": Fault(dpkg_interrupted, "Setting up tree", recovers=True, within=90),
    "package-unknown": Fault(package_unknown, "Unable to locate package no-such-package-anywhere", within=90),
    "step-killed": Fault(step_killed, "killed from outside"),
    "supervisor-killed": Fault(supervisor_killed, "killed before it ended"),
    "job-cancelled": Fault(job_cancelled, "was cancelled"),
    "over-its-limit": Fault(over_its_limit, "longer than its limit"),
    "job-folder-removed": Fault(job_folder_removed, "folder .* is gone"),
    "rebooted-in-a-job": Fault(rebooted_in_a_job, "the host restarted while", within=90),
    "power-lost-in-a-job": Fault(power_lost_in_a_job, "the host restarted while", within=90),
    "another-run": Fault(another_run, r"(?s)ann@desk.*invoke unlock"),
    "not-a-debian": Fault(not_a_debian, "which system it runs"),
    "loud-step": Fault(loud_step, "", recovers=True, within=90),
}
SLOW = {
    "loud-step", "rebooted-in-a-job", "power-lost-in-a-job", "answers-stop", "apt-locked", "dpkg-interrupted",
    "package-unknown", "link-cut-in-a-job", "other-host-key", "link-down", "dead-mount", "sshd-stopped", "read-only",
    "sudo-refused", "sudo-wants-a-password", "sudo-wrong-password", "wrong-key", "state-disk-full", "in-the-way",
    "job-cancelled", "over-its-limit", "another-run", "too-many-logins",
}  # fmt: skip
