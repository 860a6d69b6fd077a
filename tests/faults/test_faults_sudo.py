"""Becoming root: by the sudo that Ubuntu 25.10 and Debian 13 have, and by a password that a person types once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.guest import Guest
from lab.lab import Lab
from runbooks.engine.errors import Unreachable
from runbooks.engine.secret import Secret
from runbooks.engine.transport import Connection, Target
from tests.faults.faults_world import make_pat
from tests.faults.terminal import INVOKE, on_a_terminal

pytestmark = pytest.mark.lab
PASSWORD = "touch /tmp/ran; right horse"  # as a command it would leave a mark

# Debian 12 has none; that of 13 brings its own C library, so the guest is thrown away afterwards.
_SUDO_RS = """\
mirror=$(sed -n 's/^URIs: //p' /etc/apt/sources.list.d/*.sources | head -n 1)
echo "deb $mirror trixie main" >/etc/apt/sources.list.d/next.list
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
apt-get -q update >/dev/null && apt-get -q -y --no-install-recommends install sudo-rs >/dev/null 2>&1
ln -sf ../lib/cargo/bin/sudo /usr/bin/sudo && sudo --version 2>&1
"""


@pytest.fixture(scope="module")
def rust(lab: Lab) -> Iterator[Guest]:
    """A guest whose sudo is the real sudo-rs."""
    guest = lab.add()
    try:
        make_pat(guest, password=PASSWORD)
        assert "sudo-rs" in guest.run(_SUDO_RS, timeout=300).stdout
        yield guest
    finally:
        lab.remove(guest)


def _ask(guest: Guest, rule: str, password: str | None) -> str:
    guest.run(f"printf '{rule}\\n' >/etc/sudoers.d/pat")
    target = Target(
        name=guest.name,
        address=guest.address,
        user="pat",
        key=guest.keys / "id_ed25519",
        known_hosts=guest.keys / "known_hosts",
        sudo_password=Secret(password) if password else None,
    )
    with Connection(target) as connection:
        return connection.ask("id -u; ls /tmp/ran 2>/dev/null").out


@pytest.mark.slow
def test_sudo_rs_makes_root(rust: Guest) -> None:
    assert _ask(rust, "pat ALL=(ALL) NOPASSWD: ALL", None).split() == ["0"]
    for _ in range(2):  # the second time there may be a ticket: the shell never gets the password
        assert _ask(rust, "pat ALL=(ALL) ALL", PASSWORD).split() == ["0"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "password", "said"),
    [
        ("pat ALL=(ALL) ALL", "wrong donkey", "sudo did not take the password"),
        ("pat ALL=(ALL) ALL", None, "sudo asks for a password, and the inventory gives none"),
        ("# nothing for pat", PASSWORD, "does not let this login become root"),
        ("# nothing for pat", None, "does not let this login become root"),
    ],
)
def test_sudo_rs_refuses(rust: Guest, rule: str, password: str | None, said: str) -> None:
    with pytest.raises(Unreachable, match=said) as refused:
        _ask(rust, rule, password)
    assert "right horse" not in str(refused.value)


def test_a_person_is_asked_once_for_all_hosts(guest: Guest, tmp_path: Path) -> None:
    """On a terminal, without an echo; two hosts whose login is the same person's."""
    make_pat(guest, password=PASSWORD)
    text = guest.keys.joinpath("inventory.yaml").read_text()
    login = f"address: {guest.address}, user: pat, sudo: password, key: {guest.keys}/id_ed25519"
    text = re.sub(r"(?ms)^hosts:\n.*?\n\n", f"hosts:\n  one: {{{login}}}\n  two: {{{login}}}\n\n", text)
    (tmp_path / "inventory.yaml").write_text(text)
    said, code = on_a_terminal(
        [*INVOKE, "status", "--inventory", str(tmp_path / "inventory.yaml")],
        waits_for="sudo password of pat",
        types=PASSWORD + "\n",
    )
    assert code == 0, said
    assert said.count("sudo password of pat") == 1, said
    assert "right horse" not in said
    assert re.search(r"one .*two ", said.partition("sudo password")[2], re.DOTALL), said
    assert guest.run("ls /tmp/ran 2>/dev/null; true").stdout == ""
    tried = guest.run("journalctl -q --no-pager | grep -cE 'authentication failure|incorrect password'; true").stdout
    assert tried.strip() == "0"  # nobody tries without a password first
    guest.run("rm -f /etc/sudoers.d/pat")
