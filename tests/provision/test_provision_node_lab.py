"""Node preparation on lab guests dressed as Proxmox nodes, with either boot loader: files, reboot, cards, rerun."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.guest import Guest
from lab.lab import Lab
from runbooks.engine.report import Reporter
from runbooks.engine.run import HostResult, Options, converge
from runbooks.engine.transport import Connection, Target
from runbooks.inventory.shape import Gpus, Node, SecretRef
from runbooks.provision.node import look_at, stages
from runbooks.proxmox.preflight import checks
from tests.recorder import Recorder

pytestmark = pytest.mark.lab

DRESS = Path(__file__).with_name("node") / "dress.sh"
GPUS = Gpus(count=8, name="NVIDIA RTX PRO 6000 Blackwell Server Edition", memory_mib=97887, arch="12.0")
NODE = Node(
    api="https://192.0.2.2:8006", user="root@pam!x", token=SecretRef(env="X"), kernel_options=("pcie_aspm=off",)
)


class Dressed:
    def __init__(self, lab: Lab, guest: Guest, loader: str) -> None:
        self.guest, self.loader = guest, loader
        self.previewed: dict[str, list[str]] = {}
        self.done: dict[str, list[str]] = {}
        self.connection = Connection(
            Target(
                name="pve", address=guest.address, known_hosts=lab.folder / "known_hosts", key=lab.folder / "id_ed25519"
            )
        )

    def provision(self, *, check: bool = False, consent: bool = True, node: Node = NODE) -> HostResult:
        options, said = Options(check=check, consent=lambda _question: consent), Recorder()
        result = converge(self.connection, lambda _facts: stages(node, GPUS), options=options, report=Reporter(said))
        for event in said.events:
            if event.kind == "step" and event.data["state"] in ("would-change", "changed"):
                (self.previewed if check else self.done)[event.text] = event.data["diff"]
        return result

    def calls(self) -> list[str]:
        return self.guest.run("cat /var/lib/dressed/calls 2>/dev/null", check=False).stdout.splitlines()

    def text(self, path: str) -> str:
        return self.guest.run(f"cat {path}").stdout


@pytest.fixture(scope="module", params=["grub", "systemd-boot"])
def node(request: pytest.FixtureRequest, lab: Lab) -> Iterator[Dressed]:
    guest = lab.add()
    try:
        guest.run(f"sh -s {request.param}", stdin=DRESS.read_text())
        dressed = Dressed(lab, guest, request.param)
        yield dressed
        dressed.connection.close()
    finally:
        lab.remove(guest)


def test_the_preview_touches_nothing(node: Dressed) -> None:
    before = node.text("/etc/default/grub /etc/kernel/cmdline /etc/modules")
    result = node.provision(check=True)
    assert result.failed == []
    assert result.would_change >= 8
    assert node.text("/etc/default/grub /etc/kernel/cmdline /etc/modules") == before
    assert [call for call in node.calls() if "status" not in call] == []


def test_without_consent_there_is_no_reboot(node: Dressed) -> None:
    boot_id = node.guest.boot_id()
    result = node.provision(consent=False)
    assert "needs a reboot" in str(result.failed[0])
    assert "the running kernel lacks" in str(result.failed[0])
    assert node.guest.boot_id() == boot_id


def test_it_is_prepared_rebooted_and_looked_at(node: Dressed) -> None:
    boot_id = node.guest.boot_id()
    result = node.provision()
    assert [str(error) for error in result.failed] == []
    assert node.guest.boot_id() != boot_id
    assert "iommu=pt" in node.text("/proc/cmdline").split()
    assert "pcie_aspm=off" in node.text("/proc/cmdline").split()
    assert node.done == node.previewed  # the reboot and the cards too


def test_only_the_active_loaders_file_was_written(node: Dressed) -> None:
    grub, cmdline = node.text("/etc/default/grub"), node.text("/etc/kernel/cmdline")
    assert ("iommu=pt" in grub) is (node.loader == "grub")
    assert ("iommu=pt" in cmdline) is (node.loader == "systemd-boot")
    assert ("update-grub" in node.calls()) is (node.loader == "grub")
    assert ("proxmox-boot-tool refresh" in node.calls()) is (node.loader == "systemd-boot")
    assert node.calls().count("update-initramfs -u -k all") == 1


def test_modules_that_must_not_be_listed_are_out(node: Dressed) -> None:
    lines = node.text("/etc/modules").splitlines()
    assert lines == ["# runbooks: vfio_virqfd", "# runbooks: nvidia", "loop"]


def test_the_cards_are_awake_and_fit(node: Dressed) -> None:
    state = look_at(node.connection)
    assert [check for check in checks(state, NODE, GPUS) if not check.ok and not check.advice] == []
    assert {card.d3cold for card in state.cards(NODE.gpu_ids)} == {"0"}
    assert {card.driver for card in state.devices} == {"vfio-pci"}


def test_a_second_run_changes_nothing(node: Dressed) -> None:
    calls = node.calls()
    result = node.provision()
    assert [str(error) for error in result.failed] == []
    assert (result.changed, result.would_change) == (0, 0)
    assert [call for call in node.calls() if "status" not in call] == [call for call in calls if "status" not in call]


def test_a_dead_card_stops_it(node: Dressed) -> None:
    node.guest.run(r"printf '\377\377' >/sys/bus/pci/devices/0000:61:00.0/config")
    try:
        (error,) = node.provision().failed
        assert "cards alive: 0000:61:00.0 answers ffff" in str(error)
        assert "cold boot" in str(error)
        assert "page: invoke runbook gpu-reset" in str(error)
    finally:
        node.guest.run(r"printf '\336\020' >/sys/bus/pci/devices/0000:61:00.0/config")


def test_no_reboot_with_guests_running(node: Dressed) -> None:
    node.guest.run("mkdir -p /run/qemu-server; echo 1 >/run/qemu-server/105.pid")
    boot_id = node.guest.boot_id()
    more = Node(api=NODE.api, user=NODE.user, token=NODE.token, kernel_options=("pcie_aspm=off", "pcie_port_pm=off"))
    try:
        (error,) = node.provision(node=more).failed
        assert "the node needs a reboot, and 1 guests run on it" in str(error)
        assert "VM 105" in str(error)
        assert node.guest.boot_id() == boot_id
    finally:
        node.guest.run("rm /run/qemu-server/105.pid")
