"""The long-lived shell: exact answers whatever the host prints, and an end to everything."""

from __future__ import annotations

import dataclasses
import errno
import os
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import paramiko
import pytest

from runbooks.engine import shell, transport
from runbooks.engine.errors import NoAnswer, Unreachable, UsageError
from runbooks.engine.reasons import unusable
from runbooks.engine.shell import request
from runbooks.engine.transport import Connection, Target
from tests.engine.conftest import LocalChannel


def test_an_answer_is_exact(local: Connection) -> None:
    answer = local.ask("printf 'a\\0b\\377\\n'; echo oops >&2; exit 3")
    assert (answer.rc, answer.raw, answer.err) == (3, b"a\0b\xff\n", "oops\n")


def test_output_without_a_newline_and_empty_output(local: Connection) -> None:
    assert local.ask("printf x").raw == b"x"
    assert local.ask(":").raw == b""


def test_many_questions_cost_one_exec(local: Connection) -> None:
    for number in range(20):
        assert local.ask(f"echo {number}").out == f"{number}\n"
    assert (local.execs, local.exchanges) == (1, 20)


def test_children_cannot_read_the_next_request(local: Connection) -> None:
    assert local.ask("cat").raw == b""
    assert local.ask("cat", stdin=b"given\n").raw == b"given\n"
    assert local.ask("echo still here").out == "still here\n"


def test_a_script_with_quotes_heredocs_and_a_syntax_error(local: Connection) -> None:
    script = "x='it''s'\ncat <<EOF\n$x \"q\" `echo b`\nEOF"
    assert local.ask(script).out == 'its "q" b\n'
    assert local.ask("if then").rc != 0
    assert local.ask("echo alive").out == "alive\n"


def test_a_request_that_is_cut_anywhere_runs_whole_or_not_at_all(tmp_path: Path) -> None:
    """As when a link breaks in the middle of one: sh takes the end of its input for the end of a here-document."""
    whole = request("echo a >>ran\necho b >>ran\ncat >>ran", "token", deadline=5, stdin=b"c" * 9)
    close = whole.index("cat >>ran")
    for at in {*range(0, len(whole), 9), *range(close, close + 40)}:
        folder = tmp_path / str(at)
        folder.mkdir()
        environment = {"T": str(folder), "PATH": os.environ["PATH"]}
        subprocess.run(
            ["sh"], input=whole[:at], text=True, cwd=folder, env=environment, capture_output=True, check=False
        )
        ran = (folder / "ran").read_text() if (folder / "ran").exists() else ""
        assert ran in ("", "a\nb\n" + "c" * 9), f"cut after {whole[at - 60 : at]!r}: {ran!r}"


def test_a_background_child_cannot_answer_later(local: Connection) -> None:
    local.ask("(sleep 0.2; echo late) &")
    assert local.ask("sleep 0.4; echo mine").out == "mine\n"


def test_a_login_that_was_begun_is_waited_for_and_what_it_met_is_raised_once(local: Connection) -> None:
    local.begin()
    assert local.ask("echo x").out == "x\n"
    assert (local.execs, local.exchanges) == (1, 1)
    gone = Connection(dataclasses.replace(local.target, port=1))
    gone.begin()
    for _ in range(2):  # what was begun, and then a try of its own
        with pytest.raises(Unreachable, match="Connection refused"):
            gone.ask("echo x")


def test_a_question_past_its_deadline_is_given_up_and_the_next_is_answered(local: Connection) -> None:
    with pytest.raises(NoAnswer, match="no answer within 1 s"):
        local.ask("sleep 60", deadline=1)
    assert local.ask("echo again").out == "again\n"
    assert local.execs == 2


def test_a_shell_that_dies_is_replaced(local: Connection) -> None:
    local.ask(":")
    with pytest.raises(Exception, match="connection was lost"):
        local.ask("kill -9 $(ps -o ppid= -p $(ps -o ppid= -p $$))", deadline=5)
    assert local.ask("echo back").out == "back\n"


def test_large_output_is_whole_up_to_its_limit(local: Connection) -> None:
    assert len(local.ask("head -c 3000000 /dev/zero").raw) == 3_000_000
    assert len(local.ask("head -c 20000000 /dev/zero").raw) == 16 * 1024 * 1024


def test_files_go_and_come_back(local: Connection, tmp_path: object) -> None:
    path = f"{tmp_path}/a folder/-odd 'name'\n\"é"
    data = bytes(range(256)) * 500
    local.put(data, path, mode=0o640)
    assert local.fetch(path) == data
    assert local.ask(f"stat -c %a -- '{tmp_path}/a folder/'*").out.strip() == "640"


def test_a_known_hosts_that_is_no_text_and_a_key_that_is_not_there(tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_bytes(bytes(range(256)))
    target = Target(name="x", address="127.0.0.1", port=9, known_hosts=known)
    with Connection(target) as connection, pytest.raises(UsageError, match="cannot be read as known_hosts"):
        connection._check_host_keys(paramiko.SSHClient(), "192.0.2.1")
    lost = dataclasses.replace(target, known_hosts=tmp_path / "none", key=tmp_path / "id")
    with Connection(lost) as connection, pytest.raises(UsageError, match="the key file") as caught:
        connection.ask(":")
    assert (caught.value.page, str(caught.value.next)[:6]) == ("host-unreachable", "ls -l ")


def test_a_key_that_cannot_be_read_is_named_and_one_that_can_is_not(tmp_path: Path) -> None:
    good, bad, public = tmp_path / "good", tmp_path / "bad", tmp_path / "id.pub"
    paramiko.RSAKey.generate(2048).write_private_key_file(str(good))
    bad.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nnonsense\n-----END OPENSSH PRIVATE KEY-----\n")
    public.write_text("ssh-ed25519 AAAA somebody\n")
    tripped = paramiko.SSHException("Invalid key")
    how: dict[str, Any] = {"read": paramiko.PKey.from_path, "locked": paramiko.PasswordRequiredException}
    for key in (bad, public):
        told = unusable(tripped, key, None, **how)
        assert told == f"{key} is no private key that can be read: Invalid key (`key` in the inventory)"
    by_config = unusable(tripped, None, [str(good), str(bad)], **how)
    assert by_config == f"{bad} is no private key that can be read: Invalid key (IdentityFile in ssh_config)"
    assert unusable(tripped, good, None, **how) == ""
    assert unusable(tripped, None, None, **how) == ""


def test_a_send_that_nobody_takes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that died in the middle of an upload: the kernel alone would try for a quarter of an hour."""
    monkeypatch.setattr(transport, "UNHEARD", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        sock = transport._open_socket("127.0.0.1", server.getsockname()[1])
        taken, _ = server.accept()
        sock.settimeout(20)
        with taken, sock, pytest.raises(OSError, match="timed out") as ended:
            sock.sendall(bytes(64 * 1024 * 1024))
        assert ended.value.errno == errno.ETIMEDOUT


@pytest.mark.parametrize("deaf", [True, False])
def test_a_host_that_never_says_that_a_command_begins_or_refuses_it(
    local: Connection, monkeypatch: pytest.MonkeyPatch, deaf: bool
) -> None:
    """Paramiko waits for that word without an end, until the channel is closed; and a refusal closes it."""

    class Mute(LocalChannel):
        def __init__(self) -> None:
            super().__init__()
            self._shut = threading.Event()

        def exec_command(self, command: str) -> None:
            assert not deaf or self._shut.wait(20), "nobody closed it"
            raise paramiko.SSHException("Channel closed.")

        def close(self) -> None:
            self._shut.set()

    monkeypatch.setattr(shell, "EXEC_TIMEOUT", 0.3)
    monkeypatch.setattr(local, "_channel", Mute)
    with pytest.raises(Unreachable, match=r"no shell \(Channel closed") as met:
        local.ask(":")
    assert met.value.next == local.target.ssh
