"""Which boot loader really starts a node, and what its files become."""

from __future__ import annotations

import pytest

from runbooks.engine.step import Answers, Change, Question, State, Verdict
from runbooks.steps import boot
from runbooks.steps.boot import GRUB, SYSTEMD_BOOT, BootOptions, NodeInitramfs, edit_cmdline, edit_grub, loader

EFI_SYSTEMD = """\
BootCurrent: 0003
BootOrder: 0003,0001
Boot0001* UEFI: USB	PciRoot(0x0)/Pci(0x14,0x0)
Boot0003* Linux Boot Manager	HD(2,GPT,11111111)/File(\\EFI\\systemd\\systemd-bootx64.efi)
"""
EFI_GRUB = """\
BootCurrent: 0000
Boot0000* proxmox	HD(2,GPT,11111111)/File(\\EFI\\proxmox\\shimx64.efi)
Boot0001* Linux Boot Manager	HD(2,GPT,11111111)/File(\\EFI\\systemd\\systemd-bootx64.efi)
"""
TOOL_UEFI = """\
System currently booted with uefi
8B3C-1A2F is configured with: uefi (versions: 6.14.11-1-pve, 6.17.2-1-pve)
8B3D-22D0 is configured with: uefi (versions: 6.14.11-1-pve, 6.17.2-1-pve)
"""
TOOL_GRUB = """\
System currently booted with legacy bios
8B3C-1A2F is configured with: grub (versions: 6.14.11-1-pve, 6.17.2-1-pve)
"""


def said(*, efi: str = "", tool: str = "", grub: bool = False, vendor: str = "AuthenticAMD") -> str:
    there = "there\n" if grub else ""
    return f"== efi\n{efi}== tool\n{tool}== grub\n{there}== vendor\nvendor_id\t: {vendor}\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (said(efi=EFI_SYSTEMD, tool=TOOL_UEFI, grub=True), SYSTEMD_BOOT),
        (said(efi=EFI_SYSTEMD, grub=True), SYSTEMD_BOOT),  # both are installed, and this one booted
        (said(efi=EFI_GRUB, tool=TOOL_GRUB, grub=True), GRUB),  # Secure Boot: shim, and GRUB behind the tool
        (said(tool=TOOL_UEFI, grub=True), SYSTEMD_BOOT),
        (said(tool=TOOL_GRUB), GRUB),
        (said(grub=True), GRUB),  # legacy BIOS on ext4
        (said(), None),
        (said(tool=TOOL_UEFI + TOOL_GRUB), None),
    ],
)
def test_the_loader_that_booted(text: str, found: str | None) -> None:
    assert loader(text) == found


WORDS = ("iommu=pt", "hugepages=768")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('GRUB_CMDLINE_LINUX_DEFAULT="quiet"\n', 'GRUB_CMDLINE_LINUX_DEFAULT="quiet iommu=pt hugepages=768"\n'),
        ("GRUB_CMDLINE_LINUX_DEFAULT=quiet\n", 'GRUB_CMDLINE_LINUX_DEFAULT="quiet iommu=pt hugepages=768"\n'),
        ("GRUB_CMDLINE_LINUX_DEFAULT=''\n", 'GRUB_CMDLINE_LINUX_DEFAULT="iommu=pt hugepages=768"\n'),
        ("GRUB_TIMEOUT=5\n", 'GRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX_DEFAULT="iommu=pt hugepages=768"\n'),
        (
            'GRUB_CMDLINE_LINUX_DEFAULT="quiet iommu=off hugepages=4"\nGRUB_CMDLINE_LINUX=""\n',
            'GRUB_CMDLINE_LINUX_DEFAULT="quiet iommu=pt hugepages=768"\nGRUB_CMDLINE_LINUX=""\n',
        ),
        (
            '# GRUB_CMDLINE_LINUX_DEFAULT="x"\nGRUB_CMDLINE_LINUX_DEFAULT="a"\nGRUB_CMDLINE_LINUX_DEFAULT="b"\n',
            '# GRUB_CMDLINE_LINUX_DEFAULT="x"\nGRUB_CMDLINE_LINUX_DEFAULT="a"\n'
            'GRUB_CMDLINE_LINUX_DEFAULT="b iommu=pt hugepages=768"\n',
        ),
    ],
)
def test_grub(old: str, new: str) -> None:
    assert edit_grub(old, WORDS) == new
    assert edit_grub(new, WORDS) == new


def test_systemd_boot() -> None:
    old = "root=ZFS=rpool/ROOT/pve-1 boot=zfs iommu=on\n"
    new = "root=ZFS=rpool/ROOT/pve-1 boot=zfs iommu=pt hugepages=768\n"
    assert edit_cmdline(old, WORDS) == new
    assert edit_cmdline(new, WORDS) == new
    assert edit_cmdline(f"{old}a second line that nobody reads\n", WORDS) == new


def answers(loader_said: str, grub: str = "", cmdline: str = "", stamp: str = "") -> Answers:
    files = f"{grub}== cmdline\n{cmdline}== stamp\n{stamp}"
    found: dict[Question, State] = {boot._LOADER: {"rc": 0, "out": loader_said}, boot._FILES: {"rc": 0, "out": files}}
    return found


STEP = BootOptions(words=("iommu=pt",), intel=("intel_iommu=on",))
GRUB_FILE = 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\n'
CMDLINE = "root=ZFS=rpool boot=zfs\n"


def planned(text: str, **files: str) -> Change:
    change = STEP.plan(answers(text, **files))
    assert isinstance(change, Change)
    return change


def test_only_the_active_loaders_file_is_written() -> None:
    both = {"grub": GRUB_FILE, "cmdline": CMDLINE}
    change = planned(said(efi=EFI_SYSTEMD, grub=True), **both)
    assert "/etc/kernel/cmdline" in change.script
    assert "proxmox-boot-tool refresh" in change.script
    assert "/etc/default/grub" not in change.script
    change = planned(said(efi=EFI_GRUB, grub=True), **both)
    assert "update-grub" in change.script
    assert "/etc/kernel/cmdline" not in change.script


def test_intels_word_only_on_intels() -> None:
    assert "intel_iommu=on iommu=pt" in planned(said(grub=True, vendor="GenuineIntel"), grub=GRUB_FILE).script
    assert "intel_iommu" not in planned(said(grub=True), grub=GRUB_FILE).script


def test_a_file_that_was_written_but_not_taken_over_is_taken_over() -> None:
    """update-grub failed last time: the file alone does not tell."""
    right = 'GRUB_CMDLINE_LINUX_DEFAULT="quiet iommu=pt"\n'
    change = planned(said(grub=True), grub=right)
    assert change.diff[0].line == "grub: written, and not yet taken over"
    assert "update-grub" in change.script
    assert STEP.plan(answers(said(grub=True), grub=right, stamp="grub iommu=pt\n")) is None


def test_an_unknown_loader_is_not_guessed() -> None:
    verdict = STEP.plan(answers(said(), grub=GRUB_FILE))
    assert isinstance(verdict, Verdict)
    assert not verdict.ok
    assert "cannot be told which boot loader" in verdict.line


def test_the_initramfs_is_packed_once_for_its_files() -> None:
    step = NodeInitramfs(files=("/etc/modprobe.d/a.conf",))
    sums = "abc  /etc/modprobe.d/a.conf"

    def plan(stamp: str) -> Change | None:
        found: dict[Question, State] = {
            step._question: {"rc": 0, "out": f"{stamp}\n==\n{sums}"},
            boot._LOADER: {"rc": 0, "out": said(efi=EFI_SYSTEMD)},
        }
        return step.plan(found)

    change = plan("")
    assert change is not None
    assert change.script.startswith("update-initramfs -u -k all\nproxmox-boot-tool refresh\n")
    assert plan(sums) is None
