"""Faults of the host itself, of work that ends in the middle, and of other people."""

from __future__ import annotations

import dataclasses
import threading

from runbooks import paths
from runbooks.engine.jobs import LOG_LIMIT
from runbooks.engine.step import Step
from runbooks.steps.build import Command
from runbooks.steps.packages import Packages
from runbooks.steps.services import Unit
from tests.faults.faults_memory import MemoryGroup
from tests.faults.faults_world import ROOT, Ran, World, slow

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


def state_disk_full_in_a_job(world: World) -> Ran:
    """The log cannot tell why: it has no room for that either."""
    world.sh(f"mkdir -p {paths.STATE} && mount -t tmpfs -o size=1m faults {paths.STATE}")
    world.undo(f"umount -l {paths.STATE}")
    fill = f"head -c 2000000 /dev/zero >{paths.STATE}/full; df {paths.STATE} | grep 100%"
    script = f"for i in $(seq 9); do echo at work $i; printf '%8000s\\n' x; sleep 0.5; done; : >{ROOT}/slow"
    loud = Command(name="slow", script=script, creates=f"{ROOT}/slow")
    return world.run([loud], when={"at work 2": lambda: world.sh(fill)})


def run_full(world: World) -> Ran:
    """/run has no room: the shell's private folder goes elsewhere, and the lock cannot be written."""
    used = int(world.sh("df -k --output=used /run | tail -n 1"))
    world.sh(
        f"mount -o remount,size={used + 64}k /run; dd if=/dev/zero of=/run/full bs=4k 2>/dev/null; df /run | grep 100%"
    )
    world.undo("rm -f /run/full; mount -o remount,size=20% /run")
    return world.run()


def _bound(world: World, option: str, *folders: str) -> None:
    names = " ".join(folders)
    world.sh(
        f"for d in {names}; do mkdir -p $d && mount -o bind $d $d && mount -o remount,bind,{option} $d || exit; done"
    )
    world.undo(f"umount -l {names}")


def no_room_anywhere(world: World) -> Ran:
    """Nowhere for a shell to put its answers."""
    _bound(world, "ro", "/run", "/dev/shm", "/tmp")
    world.sh("! touch /run/x /dev/shm/x /tmp/x 2>/dev/null")
    return world.run()


def nothing_executable(world: World) -> Ran:
    """As hardening guides want it."""
    _bound(world, "noexec,nosuid,nodev", paths.STATE, "/run", "/dev/shm", "/tmp", "/var/tmp")
    world.sh(f"cp /bin/true {paths.STATE}/true && ! {paths.STATE}/true 2>/dev/null")
    return world.run([slow(1)])


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


def out_of_memory(world: World) -> Ran:
    """The kernel's own kill: the step is moved into a control group of 64 MB, and then wants more."""
    group = MemoryGroup(limit=64 * 1024 * 1024)
    world.cleanup.append(group.remove)
    eat = "head -c 600M /dev/zero | tail -c 500M >/dev/null"
    script = f"echo hungry; while [ ! -e {ROOT}/go ]; do sleep 0.1; done; {eat}; : >{ROOT}/hungry"
    hungry = Command(name="hungry", script=script, creates=f"{ROOT}/hungry", limit=60)

    def take() -> None:
        group.take(world.sh("cat /etc/machine-id"))
        world.sh(f": >{ROOT}/go")

    ran = world.run([hungry], when={"hungry": take})
    assert group.kills() > 0, "the kernel did not kill anything"
    return ran


CLOCKS = "date find touch apt-get dpkg"


def _clock(world: World, jump: str) -> Ran:
    """Everything that we ask for the time sees a clock that jumped; the kernel's own cannot be set in a guest."""
    steps = _tree(world)
    world.sh("dpkg -s libfaketime >/dev/null 2>&1 || apt-get -q -y install libfaketime >/dev/null")
    library = world.sh("dpkg -L libfaketime | grep '/libfaketime.so'").strip()
    before = int(world.sh("date +%s"))
    wrapper = f'#!/bin/sh\\nLD_PRELOAD={library} FAKETIME={jump} exec /usr/bin/${{0##*/}} "$@"\\n'
    world.undo(f"cd /usr/local/sbin && rm -f {CLOCKS}")

    def hit() -> None:
        world.sh(f"cd /usr/local/sbin; for t in {CLOCKS}; do printf '{wrapper}' >$t; chmod 755 $t; done")
        assert abs(int(world.sh("/usr/local/sbin/date +%s")) - before) > 9000, "the clock did not jump"

    return world.run([slow(4), *steps], when={"at work 2": hit})


def clock_jumps_ahead(world: World) -> Ran:
    return _clock(world, "+3h")


def clock_jumps_back(world: World) -> Ran:
    return _clock(world, "-3h")


def supervisor_killed(world: World) -> Ran:
    return _in_the_job(
        world, "kill -9 $(cat /var/lib/runbooks/jobs/middle-*/pid); pkill -9 -f '[s]h -e ./script'; true"
    )


AT_WORK = "pgrep -fa '[s]h -e ./script|^sleep 0[.]5'; true"


def _nothing_is_at_work(world: World, ran: Ran) -> Ran:
    assert world.sh(AT_WORK) == "", "a process of the job is left"
    return ran


def job_cancelled(world: World) -> Ran:
    def cancel() -> None:
        assert "script" in world.sh(AT_WORK)
        world.sh("kill -TERM $(cat /var/lib/runbooks/jobs/middle-*/pid)")

    return _nothing_is_at_work(world, world.run([slow(4)], when={"at work 2": cancel}))


def over_its_limit(world: World) -> Ran:
    ran = world.run([dataclasses.replace(slow(20), limit=2)], when={"at work 2": lambda: world.sh(AT_WORK)})
    assert "at work 2" in ran.text
    return _nothing_is_at_work(world, ran)


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
    ran = world.run([loud])
    assert int(world.sh(f"stat -c %s {paths.JOBS}/middle-*/log")) <= LOG_LIMIT, "its log is not bounded"
    return ran
