"""Jobs under a real systemd: every process of theirs ends with them, whatever it did to get away; and what they see."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from lab.guest import Guest
from runbooks import paths
from runbooks.engine import follow
from runbooks.engine.errors import StepFailed
from runbooks.engine.jobs import run_job
from runbooks.engine.reboot import reboot
from runbooks.engine.report import Reporter
from runbooks.engine.run import Options, converge
from runbooks.engine.step import Stage
from runbooks.engine.transport import Connection, Target
from runbooks.steps.build import Command
from tests.recorder import Recorder

pytestmark = pytest.mark.lab

PIDS = "/run/escaped"
ESCAPES = {
    "child": "sleep 600 & echo $! >>{pids}",
    "grandchild": "sh -c 'sleep 600 & echo $! >>{pids}; wait' &",
    "own session": "setsid sh -c 'echo $$ >>{pids}; exec sleep 600' &",
    "deaf to TERM": "sh -c 'trap \"\" TERM HUP INT; echo $$ >>{pids}; while :; do sleep 5; done' &",
    "no environment": "env -i setsid sh -c 'echo $$ >>{pids}; exec sleep 600' &",
    "orphan": "sh -c 'env -i setsid sleep 600 & echo $! >>{pids}' &",
    "stopped": "sh -c 'echo $$ >>{pids}; kill -STOP $$; sleep 600' &",
    "another user's": "setsid runuser -u nobody -- sh -c 'echo $$ >>{pids}; exec sleep 600' &",
}
"""Ways in which a step leaves the tree that a plain kill ends."""


@pytest.fixture
def connection(guest: Guest) -> Iterator[Connection]:
    target = Target(
        name=guest.name, address=guest.address, key=guest.keys / "id_ed25519", known_hosts=guest.keys / "known_hosts"
    )
    with Connection(target) as found:
        yield found


def quiet() -> Reporter:
    return Reporter(Recorder())


def escaping(guest: Guest) -> str:
    """A script from which a process gets away in every known way, and which then goes on itself."""
    guest.run(f"rm -f {PIDS}; : >{PIDS}; chmod 666 {PIDS}")
    ways = "\n".join(way.format(pids=PIDS) for way in ESCAPES.values())
    return f"{ways}\nwhile [ $(wc -l <{PIDS}) -lt {len(ESCAPES)} ]; do sleep 0.1; done\necho escaped\nsleep 600"


def alive(guest: Guest) -> list[str]:
    """Seen over plain ssh: which of them are left, and were there."""
    said = guest.run(f"wc -l <{PIDS}; for p in $(cat {PIDS}); do ps -o pid=,stat=,args= -p $p; done; true").stdout
    count, *left = said.splitlines()
    assert int(count) == len(ESCAPES)
    return [line for line in left if line.split()[1][0] != "Z"]


def test_a_limit_ends_every_process_of_a_job(guest: Guest, connection: Connection) -> None:
    result = run_job(connection, "limited", escaping(guest), limit=8, report=quiet())
    assert (result.rc, "escaped" in result.tail) == (124, True)
    assert "8 s are over: the job was ended" in result.tail
    assert alive(guest) == []
    assert guest.run("systemctl list-units --no-legend --all 'rb-limited-*'").stdout == ""


def test_a_cancel_ends_every_process_of_a_job(guest: Guest, connection: Connection) -> None:
    with Connection(connection.target) as second:

        def cancel(line: str) -> None:
            if line == "escaped":
                assert len(alive(guest)) == len(ESCAPES)
                (job,) = [job for job in follow.list_jobs(second) if job.state == "running"]
                assert follow.cancel(second, job.label) == "cancelled"

        result = run_job(connection, "ended", escaping(guest), limit=60, report=quiet(), on_line=cancel)
    assert (result.rc, "cancelled" in result.tail) == (143, True)
    assert alive(guest) == []


def test_what_a_job_sees(connection: Connection) -> None:
    """Under systemd-run nothing is set; and apt, debconf, needrestart and Python need to be told."""
    names = "HOME USER PATH LC_ALL DEBIAN_FRONTEND NEEDRESTART_SUSPEND PYTHONUNBUFFERED"
    lines: list[str] = []
    script = f'for n in {names}; do eval "echo $n=\\$$n"; done; umask; cat; pwd; stat -c %a "$UPLOADS"'
    result = run_job(connection, "sees", script, limit=20, report=quiet(), on_line=lines.append)
    assert result.rc == 0
    assert lines == [
        "HOME=/root",
        "USER=root",
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL=C.UTF-8",
        "DEBIAN_FRONTEND=noninteractive",
        "NEEDRESTART_SUSPEND=1",
        "PYTHONUNBUFFERED=1",
        "0022",
        result.folder,
        "700",
    ]


def test_a_script_is_not_read_by_systemd(connection: Connection) -> None:
    """systemd 252 expands variables and specifiers in a command line; ours is a file."""
    lines: list[str] = []
    script = "HERE=mine; echo $HERE ${HERE} %n %i '$$' \"\\\\$HERE\" a\\\\x20b"
    run_job(connection, "expands", script, limit=20, report=quiet(), on_line=lines.append)
    assert lines == ["mine mine %n %i $$ \\mine a\\x20b"]


def test_a_stage_may_have_any_name(connection: Connection) -> None:
    """Its job's folder and unit stand in systemd-run's own command line."""
    step = Command(name="named", script='echo "$JOB" >/run/named', creates="/run/named")
    stage = Stage('it\'s $HOME ${PATH} %n %% "é" `id`', (step,))
    said = Recorder()
    result = converge(connection, lambda _facts: [stage], options=Options(), report=Reporter(said))
    assert (result.failed, result.changed) == ([], 1), said.texts
    assert connection.ask("cat /run/named").out.startswith(f"{paths.JOBS}/it-s-home-path-n-id-")


def test_a_loud_job_leaves_a_bounded_log(guest: Guest, connection: Connection) -> None:
    """All that it says in its last moment too: 300 MB come faster than anybody looks."""
    loud = "head -c 300000000 /dev/zero | tr '\\0' x; echo; echo end"
    result = run_job(connection, "loud", loud, limit=120, report=quiet(), on_line=lambda _line: None)
    assert (result.rc, result.tail[-1]) == (0, "end")
    assert int(guest.run(f"stat -c %s {result.folder}/log").stdout) <= 64 * 1024 * 1024


def test_the_logs_of_killed_jobs_are_not_kept_for_ever(guest: Guest, connection: Connection) -> None:
    """They have no exit code; but nobody holds their lock."""
    make = f"cd {paths.JOBS} && for i in $(seq 60); do mkdir dead-$i; : >dead-$i/lock; : >dead-$i/log; done"
    guest.run(f"mkdir -p {paths.JOBS}; {make}; touch -d '2 days ago' dead-*; ls | wc -l")
    run_job(connection, "later", "echo x", limit=20, report=quiet())
    assert int(guest.run(f"ls -d {paths.JOBS}/dead-* | wc -l").stdout) <= 40


# --- reboots that must not be claimed


def test_a_reboot_that_somebody_blocks_is_refused_with_who(guest: Guest, connection: Connection) -> None:
    before = guest.boot_id()
    hold = "systemd-inhibit --what=shutdown --mode={} --who=backup --why=tape sleep 60"
    guest.run(f"systemd-run --quiet --collect --unit=holder {hold.format('block')}; sleep 1; systemd-inhibit --list")
    try:
        with pytest.raises(StepFailed, match="refuses to reboot") as refused:
            reboot(connection, limit=30, report=quiet())
        assert "backup" in str(refused.value)
        assert "next: the same command once" in str(refused.value)
        assert guest.boot_id() == before
    finally:
        guest.run("systemctl stop holder")


def test_a_host_that_never_goes_down_is_not_called_rebooted(guest: Guest, connection: Connection) -> None:
    """Other tools saw it answer, and took that for the reboot."""
    guest.run("printf '#!/bin/sh\\nexit 0\\n' >/usr/local/bin/systemctl; chmod 755 /usr/local/bin/systemctl")
    before, began = guest.boot_id(), time.monotonic()
    try:
        with pytest.raises(StepFailed, match="never went down within 6 s") as failed:
            reboot(connection, limit=6, report=quiet())
        assert "next: ssh" in str(failed.value)
        assert (guest.boot_id(), time.monotonic() - began < 40) == (before, True)
    finally:
        guest.run("rm /usr/local/bin/systemctl")


def test_who_waits_for_a_shutdown_does_not_stop_it(guest: Guest, connection: Connection) -> None:
    """Ubuntu's unattended-upgrades always holds a delay."""
    before = guest.boot_id()
    hold = "systemd-inhibit --what=shutdown --mode=delay --who=unattended sleep 600"
    guest.run(f"systemd-run --quiet --collect --unit=holder {hold}; sleep 1")
    reboot(connection, limit=90, report=quiet())
    assert guest.boot_id() != before
