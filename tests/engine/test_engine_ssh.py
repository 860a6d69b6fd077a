"""The engine against a real host: sshd, sudo, systemd, a reboot, a cut link."""

from __future__ import annotations

import dataclasses
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.guest import Guest
from runbooks import paths
from runbooks.engine.errors import HostKeyChanged, NoAnswer, Unreachable
from runbooks.engine.facts import ask_facts
from runbooks.engine.jobs import run_job
from runbooks.engine.reboot import reboot
from runbooks.engine.report import Reporter
from runbooks.engine.secret import Secret
from runbooks.engine.transport import Connection, Target
from tests.recorder import Recorder

pytestmark = pytest.mark.lab


def quiet() -> Reporter:
    return Reporter(Recorder())


@pytest.fixture
def target(guest: Guest) -> Target:
    return Target(
        name=guest.name,
        address=guest.address,
        key=guest.keys / "id_ed25519",
        known_hosts=guest.keys / "known_hosts",
    )


@pytest.fixture
def connection(target: Target) -> Iterator[Connection]:
    with Connection(target) as found:
        yield found


def test_one_connect_one_exec_many_questions(connection: Connection) -> None:
    for number in range(10):
        assert connection.ask(f"echo {number}; id -un").out == f"{number}\nroot\n"
    assert (connection.connects, connection.execs, connection.exchanges) == (1, 1, 10)
    sock = connection._fabric.transport.sock
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1  # without it each answer waits up to 40 ms
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000


def test_facts_of_a_real_host(connection: Connection) -> None:
    facts = ask_facts(connection)
    assert (facts.os_id, facts.os_version, facts.deb_arch) == ("debian", "12", "amd64")
    assert facts.systemd == 252
    assert facts.is_container


def test_large_files_go_in_blocks_and_come_back(connection: Connection) -> None:
    data = bytes(range(256)) * 20_000
    connection.put(data, "/root/deep/er/large.bin", mode=0o600)
    assert connection.fetch("/root/deep/er/large.bin") == data
    assert connection.ask("cd /root/deep/er; stat -c '%a %U %n' *").out == "600 root large.bin\n"
    assert connection.execs == 1


def test_a_banner_and_noisy_startup_files_are_not_taken_for_answers(guest: Guest, target: Target) -> None:
    guest.run("echo 'echo NOISE; echo NOISE >&2' >>/root/.bashrc; echo welcome >/etc/motd")
    with Connection(target) as connection:
        assert connection.ask("printf x").raw == b"x"


def test_passwordless_sudo(target: Target) -> None:
    with Connection(dataclasses.replace(target, user="ops")) as connection:
        assert connection.ask("id -un; echo $HOME").out == "root\n/root\n"
        connection.put(b"x" * 300_000, "/root/by-ops")
        assert connection.ask("stat -c %U:%s /root/by-ops").out == "root:300000\n"


@pytest.fixture
def password_user(guest: Guest, target: Target) -> Target:
    guest.run(
        "id pat >/dev/null 2>&1 || useradd -m -s /bin/bash pat; echo 'pat:right horse' | chpasswd;"
        "install -d -m 700 -o pat /home/pat/.ssh; install -o pat -m 600 /root/.ssh/authorized_keys /home/pat/.ssh/;"
        "echo 'pat ALL=(ALL) ALL' >/etc/sudoers.d/pat"
    )
    return dataclasses.replace(target, user="pat")


def test_sudo_with_a_password(guest: Guest, password_user: Target) -> None:
    with Connection(dataclasses.replace(password_user, sudo_password=Secret("right horse"))) as connection:
        assert connection.ask("id -un").out == "root\n"
        assert "right horse" not in connection.ask("ps axww -o args; cat /proc/*/environ 2>/dev/null").out


def test_a_cached_sudo_ticket_never_makes_the_shell_run_the_password(guest: Guest, password_user: Target) -> None:
    """The password is a command that leaves a mark; and there is a ticket, so sudo asks for nothing."""
    password = "touch /run/was-run /tmp/was-run"
    guest.run("chpasswd", stdin=f"pat:{password}\n")
    guest.run("printf 'Defaults:pat timestamp_type=global\\n' >/etc/sudoers.d/pat-ticket")
    guest.run("sudo -S -v", user="pat", stdin=f"{password}\n")
    assert guest.run("sudo -n id -u", user="pat").stdout == "0\n"
    try:
        with Connection(dataclasses.replace(password_user, sudo_password=Secret(password))) as connection:
            for _ in range(3):
                assert connection.ask("id -un").out == "root\n"
        assert "was-run" not in guest.run("ls /run /tmp").stdout
    finally:
        guest.run("rm /etc/sudoers.d/pat-ticket")


def test_sudo_that_wants_a_password_which_nobody_gave(password_user: Target) -> None:
    with Connection(password_user) as connection, pytest.raises(Unreachable, match="gives none") as caught:
        connection.ask("id")
    assert "sudo: password" in str(caught.value)


def test_a_wrong_sudo_password_is_said_and_not_shown(password_user: Target) -> None:
    wrong = dataclasses.replace(password_user, sudo_password=Secret("wrong donkey"))
    with Connection(wrong) as connection, pytest.raises(Unreachable, match="did not take the password") as caught:
        connection.ask("id")
    assert "donkey" not in str(caught.value)


def test_a_user_without_sudo_rights(guest: Guest, password_user: Target) -> None:
    guest.run("rm /etc/sudoers.d/pat")
    with Connection(dataclasses.replace(password_user, sudo_password=Secret("right horse"))) as connection:
        with pytest.raises(Unreachable) as caught:
            connection.ask("id")
        assert "not in the sudoers file" in str(caught.value) or "did not take" in str(caught.value)


def test_a_changed_host_key_stops_everything(target: Target, tmp_path: Path) -> None:
    import paramiko

    other = paramiko.ECDSAKey.generate()
    forged = tmp_path / "known_hosts"
    real = target.known_hosts.read_text().split()[2]
    assert real
    key = paramiko.Ed25519Key.from_private_key_file(str(target.key)).get_base64()
    forged.write_text(f"{target.address} ssh-ed25519 {key}\n{target.address} {other.get_name()} {other.get_base64()}\n")
    with (
        Connection(dataclasses.replace(target, known_hosts=forged)) as connection,
        pytest.raises(HostKeyChanged) as caught,
    ):
        connection.ask("id")
    assert "SHA256:" in str(caught.value)
    assert "ssh-keygen" in str(caught.value)


def test_an_unknown_host_key_is_not_accepted(target: Target, tmp_path: Path) -> None:
    with (
        Connection(dataclasses.replace(target, known_hosts=tmp_path / "none")) as connection,
        pytest.raises(Unreachable, match="not known, so it is not trusted"),
    ):
        connection.ask("id")
    assert not (tmp_path / "none").exists()


def test_a_wrong_key_is_refused_with_a_line_to_paste(target: Target, lab_key: Path) -> None:
    with (
        Connection(dataclasses.replace(target, key=lab_key)) as connection,
        pytest.raises(Unreachable, match="refused the login of root") as caught,
    ):
        connection.ask("id")
    assert f"ssh -o UserKnownHostsFile={target.known_hosts} -i {lab_key} root@{target.address}" in str(caught.value)


@pytest.mark.parametrize("kind", ["RSA", "OPENSSH"])
def test_a_file_that_is_no_private_key_is_named_first(target: Target, tmp_path: Path, kind: str) -> None:
    key = tmp_path / "id"
    key.write_text(f"-----BEGIN {kind} PRIVATE KEY-----\nnonsense\n-----END {kind} PRIVATE KEY-----\n")
    with Connection(dataclasses.replace(target, key=key)) as connection, pytest.raises(Unreachable) as caught:
        connection.ask("id")
    assert caught.value.message.startswith(f"{key} is no private key that can be read: ")
    assert caught.value.message.endswith("(`key` in the inventory)")


@pytest.fixture
def lab_key(tmp_path: Path) -> Path:
    from lab.machine import create_key

    create_key(tmp_path / "other", comment="nobody")
    return tmp_path / "other"


def test_a_job_runs_under_systemd_and_its_daemons_survive_it(connection: Connection) -> None:
    script = "systemctl --version | head -1; cat /proc/self/cgroup | head -1; setsid sleep 300 & echo $! >/run/daemon"
    result = run_job(connection, "unit", script, limit=30, report=quiet())
    assert result.rc == 0
    assert any("rb-unit-" in line for line in result.tail)
    assert connection.ask("kill -0 $(cat /run/daemon)").rc == 0
    connection.ask("kill $(cat /run/daemon)")


def test_a_job_survives_a_link_that_is_cut_and_mended(guest: Guest, connection: Connection) -> None:
    lines: list[str] = []

    def line(text: str) -> None:
        lines.append(text)
        if text == "1":
            guest.cut_link()
            threading.Timer(14, guest.mend_link).start()

    script = "for i in 1 2 3 4; do echo $i; sleep 1; done"
    result = run_job(connection, "cut", script, limit=60, report=quiet(), on_line=line)
    assert (result.rc, lines) == (0, ["1", "2", "3", "4"])
    assert connection.connects >= 2


def test_a_link_that_dies_between_questions_is_an_error_within_seconds(guest: Guest, connection: Connection) -> None:
    connection.ask(":")
    guest.cut_link()
    begun = time.monotonic()
    try:
        with pytest.raises((NoAnswer, Unreachable)):
            connection.ask("echo hello", deadline=2)
        assert time.monotonic() - begun < 15
    finally:
        guest.mend_link()
    assert connection.ask("echo hello", deadline=10).out == "hello\n"


def test_a_reboot_is_known_by_its_boot_id(connection: Connection) -> None:
    before = ask_facts(connection).boot_id
    reboot(connection, limit=60, report=quiet())
    assert ask_facts(connection).boot_id != before


def test_a_finished_job_leaves_its_log_and_no_script(connection: Connection) -> None:
    result = run_job(connection, "leaves", "echo hello", limit=30, report=quiet())
    listing = connection.ask(f"ls {result.folder}; cat {result.folder}/log; ls -d {paths.JOBS}/*").out.split()
    assert "script" not in listing
    assert "hello" in listing
    journal = connection.ask("journalctl -u 'rb-leaves-*' --no-pager; systemctl list-units --all 'rb-leaves-*'").out
    assert "runbooks: leaves" in journal
    assert "remain" not in journal, "the unit left a process behind"
