"""First contact: the key is learnt from the hypervisor, by agent or console, and from nobody else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runbooks.engine.errors import CheckFailed, HostKeyChanged, HostKeyUnknown, RunbookError, Unreachable, UsageError
from runbooks.engine.transport import Target
from runbooks.inventory.shape import Image, Vm
from runbooks.provision import contact
from runbooks.provision.vm import public_keys
from runbooks.proxmox.client import ApiError

KEY = "ssh-ed25519 " + "A" * 68
OTHER = "ssh-ed25519 " + "B" * 68
VM = Vm(
    node="pve", id=129, cores=2, memory_gib=2, storage="s", disk_gib=1, address="192.0.2.10/24",
    image=Image(url="https://x", sha256="0" * 64, file="x.qcow2"),
)  # fmt: skip
PRINTED = f"""\
[    2.0] cloud-init[600]: ...
-----BEGIN SSH HOST KEY KEYS-----
ecdsa-sha2-nistp256 AAAAE2VjZHNh root@glm5-a\r
{KEY} root@glm5-a\r
-----END SSH HOST KEY KEYS-----
glm5-a login: """


class FakeConnection:
    """Answers only to the key that is pinned in its known_hosts."""

    name = "glm5-a"

    def __init__(self, folder: Path, shows: str = KEY, *, down: int = 0) -> None:
        self.target = Target(name=self.name, address="192.0.2.10", known_hosts=folder / "known_hosts")
        self.shows, self.down, self.asked = shows, down, 0

    def ask(self, _script: str, *, deadline: float = 0) -> None:
        self.asked += 1
        if self.asked <= self.down:
            raise Unreachable("Connection refused")
        pinned = self.target.known_hosts.read_text() if self.target.known_hosts.exists() else ""
        if self.target.address not in pinned:
            raise HostKeyUnknown("not known")
        if self.shows not in pinned:
            raise HostKeyChanged("another key")


class FakeClient:
    """An agent that runs after `silent` questions."""

    def __init__(self, key: str = KEY, *, silent: int = 0, error: ApiError | None = None) -> None:
        self.key, self.silent, self.error, self.asked = key, silent, error, 0

    def get(self, _path: str, /, **_query: Any) -> Any:
        self.asked += 1
        if self.error is not None:
            raise self.error
        if self.asked <= self.silent:
            raise ApiError("GET …", 500, "QEMU guest agent is not running", {})
        return {"content": f"{self.key} root@vm\n"}


class FakeConsole:
    def __init__(self, text: str) -> None:
        self.text, self.hung_up = text, False

    def said(self) -> str:
        return self.text

    def hang_up(self) -> None:
        self.hung_up = True


def reach(connection: Any, client: Any, console: Any = None, limit: float = 30.0) -> bool:
    return contact.reach(
        connection, client, VM, "pve", console=console, limit=limit, tell=lambda *_: None, sleep=lambda _: None
    )


def test_a_new_vm_is_pinned_by_its_agent(tmp_path: Path) -> None:
    connection = FakeConnection(tmp_path, down=3)
    assert reach(connection, FakeClient(silent=4))
    assert connection.target.known_hosts.read_text() == f"192.0.2.10 {KEY}\n"
    client = FakeClient()
    assert not reach(connection, client)
    assert client.asked == 0, "a key that is pinned and right asks nobody"


def test_a_new_vm_without_agent_is_pinned_by_its_console(tmp_path: Path) -> None:
    """Ubuntu's cloud images ship no agent."""
    console = FakeConsole(PRINTED)
    assert reach(FakeConnection(tmp_path), FakeClient(silent=10**6), console)
    assert console.hung_up


def test_whoever_answers_first_is_not_believed(tmp_path: Path) -> None:
    """The address shows another key than the hypervisor tells: nothing is done with it."""
    with pytest.raises(HostKeyChanged):
        reach(FakeConnection(tmp_path, shows=OTHER), FakeClient(KEY))


def test_a_rebuilt_vms_key_replaces_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "known_hosts").write_text(f"192.0.2.9 {OTHER}\n192.0.2.10 {OTHER}\n[192.0.2.10]:2222 {OTHER}\n")
    assert reach(FakeConnection(tmp_path), FakeClient())
    assert (tmp_path / "known_hosts").read_text().splitlines() == [
        f"192.0.2.9 {OTHER}",
        f"[192.0.2.10]:2222 {OTHER}",
        f"192.0.2.10 {KEY}",
    ]


def test_a_forbidden_agent_is_told_at_once(tmp_path: Path) -> None:
    """Not waited for: without VM.GuestAgent.* it would never end (bpg #2091)."""
    no = ApiError("GET …", 403, "Permission check failed (/vms/129, VM.GuestAgent.Unrestricted)", {})
    client = FakeClient(error=no)
    with pytest.raises(ApiError, match="may not do this"):
        reach(FakeConnection(tmp_path), client)
    assert client.asked == 1


def test_without_agent_and_console_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed) as caught:
        reach(FakeConnection(tmp_path), FakeClient(silent=10**6), limit=0.0)
    assert "no guest agent answers, and the node has no `ssh`" in str(caught.value)
    assert not (tmp_path / "known_hosts").exists()


def test_a_vm_that_never_answers_shows_the_end_of_its_console(tmp_path: Path) -> None:
    with pytest.raises(Unreachable) as caught:
        reach(FakeConnection(tmp_path, down=10**6), FakeClient(), FakeConsole("a\nNVRM: BAR1 is 0M\n"), limit=0.0)
    assert "NVRM: BAR1 is 0M" in str(caught.value)
    assert "invoke vm.console" in str(caught.value)


def test_the_console_is_read_as_cloud_init_prints_it() -> None:
    assert contact.from_console(PRINTED) == KEY
    assert contact.from_console(PRINTED + PRINTED.replace("A" * 68, "C" * 68)) == "ssh-ed25519 " + "C" * 68
    assert contact.from_console(PRINTED.partition("-----END")[0]) is None
    assert contact.from_console("") is None


@pytest.mark.parametrize(
    ("words", "files", "keys"),
    [
        (("ssh-ed25519 AAAA a@b",), {}, ("ssh-ed25519 AAAA a@b",)),
        (("k.pub",), {"k.pub": "ssh-rsa B c\n\nsk-ssh-ed25519@openssh.com C\n"},
         ("ssh-rsa B c", "sk-ssh-ed25519@openssh.com C")),
    ],
)  # fmt: skip
def test_public_keys(tmp_path: Path, words: tuple[str, ...], files: dict[str, str], keys: tuple[str, ...]) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert public_keys(_vm(words), tmp_path) == keys


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("missing.pub",), "No such file"),
        (("private",), "is a private key"),
        (("ssh-ed25519",), "is no public key"),
        ((), "names no public key"),
    ],
)
def test_what_is_no_public_key(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    (tmp_path / "private").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nsecretsecret\n")
    with pytest.raises(RunbookError, match=said) as caught:
        public_keys(_vm(words), tmp_path)
    assert "secretsecret" not in str(caught.value)
    assert isinstance(caught.value, UsageError) or not words


def _vm(words: tuple[str, ...]) -> Vm:
    make: Callable[..., Vm] = Vm
    return make(
        node="pve", id=129, cores=2, memory_gib=2, storage="s", disk_gib=1, address="192.0.2.10/24", ssh_keys=words,
        image=VM.image,
    )  # fmt: skip
