"""Files of host keys that are none: said with the line, and never waited for. The person's own is left alone."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import paramiko
import pytest

from runbooks.engine.errors import UsageError
from runbooks.engine.transport import Connection, Target

GOOD = "h ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ6pCdu8SB1Jgq2q0dL9mDlX0Qm2mC9J3ZrJ0o1y0y3y\n"


def check(path: Path) -> None:
    client = paramiko.SSHClient()
    Connection(Target(name="h", address="h", known_hosts=path))._check_host_keys(client, "h")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"not a key\n", r"'not a key' is no line of it"),
        (b"h ssh-ed25519 \x1b[2J!!\n", r"\\x1b\[2J!!' is no line of it"),
        (b"h ssh-ed25519 \xff\xfe\n", r"can't decode byte"),
    ],
)
def test_a_line_that_is_none_is_shown(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "known_hosts"
    path.write_bytes(GOOD.encode() + content)
    with pytest.raises(UsageError, match=f"cannot be read as known_hosts: .*{said}") as refused:
        check(path)
    assert str(refused.value).isprintable()


def test_a_key_that_was_cut_off_is_no_bug(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    for kind, key in (
        ("ssh-ed25519", "AAAA"),
        ("ssh-rsa", "AAAAB3NzaC1yc2EAAAAD"),
        ("ecdsa-sha2-nistp256", "AAAAE2Vj"),
    ):
        path.write_text(f"h {kind} {key}\n")
        with contextlib.suppress(UsageError):  # some Paramiko refuses, some it passes over
            check(path)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(UsageError, match="it is no file"):
            check(path)


def test_a_damaged_line_of_the_persons_own_file_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    for content in (b"h ssh-rsa AAAA!\n", b"not a key\n", b"\xff\xfe\n"):
        (tmp_path / ".ssh" / "known_hosts").write_bytes(content)
        check(tmp_path / "none")
