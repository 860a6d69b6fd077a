"""Public failures: what is really printed, and the cause and cure that a person is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from runbooks import oncall
from runbooks.proxmox import guestlog
from runbooks.proxmox.failures import FAILURES, explain

DATA = Path(__file__).with_name("data") / "guest-mmio"

ROWS = [
    line.split("\t") for line in (DATA.parent / "failures.tsv").read_text().splitlines() if not line.startswith("#")
]
CASES = [(where, text.replace("\\n", "\n"), cause, cure) for where, text, cause, cure in ROWS]


@pytest.mark.parametrize(("where", "text", "cause", "cure"), CASES, ids=[case[0] for case in CASES])
def test_a_public_failure_is_told_by_cause_and_cure(where: str, text: str, cause: str, cure: str) -> None:
    found = explain(text)
    assert found is not None, text
    assert cause in found.what, found.what
    assert cure in found.cure, found.cure
    assert found.page in oncall.names()


def test_each_row_is_reached() -> None:
    reached = {explain(text) for _, text, _, _ in CASES}
    unseen = [failure.pattern for failure in FAILURES if failure not in reached]
    assert unseen == [
        r"unable to create VM \d+ - VM \d+ already exists|VM \d+ already exists",
        r"Cannot allocate memory|cannot set up guest memory",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "TASK OK",
        "generating cloud-init ISO",
        "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.126.20  Release Build",
        "vfio_pci: add [10de:2bb5[ffffffff:ffffffff]] class 0x000000/00000000",
        "pci 0000:00:1f.2: BAR 5 [mem 0xc1000000-0xc1000fff]",
        "iommu: Default domain type: Passthrough (set via kernel command line)",
        "vfio-pci 0000:01:00.0: enabling device (0140 -> 0142)",
        "DMAR: IOMMU enabled",
    ],
)
def test_harmless_lines_are_no_failure(text: str) -> None:
    assert explain(text) is None


# -- a guest's own kernel log, really captured: q35, OVMF, eight BARs of 128 GiB; the name tells the address bits

HOMELESS = {"t40": 8, "t41": 7, "t42": 5, "t43": 0, "t44": 0, "t46": 0, "t46n": 8, "t48": 0}


@pytest.mark.parametrize("name", HOMELESS)
def test_cards_without_room_are_counted(name: str) -> None:
    log = guestlog.read((DATA / f"guest-8x128G-{name}.txt").read_text())
    assert len(log.homeless) == HOMELESS[name]
    assert log.ok is (HOMELESS[name] == 0)
    assert log.largest == (128 << 30 if log.homeless else 0)
    assert log.window is not None


def test_the_window_is_read() -> None:
    windows = {name: guestlog.read((DATA / f"guest-8x128G-{name}.txt").read_text()).window for name in HOMELESS}
    assert windows["t40"] == windows["t46n"] == (0xE000000000, 0xE7FFFFFFFF)
    assert windows["t42"] == (0x38000000000, 0x3E27FFFFFFF)
    assert windows["t43"] == (0x70000000000, 0x7FFFFFFFFFF)


def test_what_is_sent_back_suffices() -> None:
    """The guest filters its log by TELLING first."""
    import re

    for name, count in HOMELESS.items():
        lines = (DATA / f"guest-8x128G-{name}.txt").read_text().splitlines()
        kept = "\n".join(line for line in lines if re.search(guestlog.TELLING, line))
        assert len(guestlog.read(kept).homeless) == count


def test_the_advice_names_window_and_cure() -> None:
    log = guestlog.read((DATA / "guest-8x128G-t42.txt").read_text())
    text = "\n".join(guestlog.advice(log, 8))
    assert "no room for 128 GiB each: 0000:0" in text
    assert "the firmware's window is 394 GiB, from 0x38000000000" in text or "GiB, from 0x38000000000" in text
    assert "cpu: host with 43 address bits" in text
    assert guestlog.advice(guestlog.read("all is well"), 8) == ()


def test_the_drivers_own_words_count_too() -> None:
    log = guestlog.read("NVRM: BAR1 is 0M @ 0x0 (PCI:0000:04:00.0)\nNVRM: BAR1 is 0M @ 0x0 (PCI:0000:04:00.0)")
    assert log.driver == ("BAR1 is 0M @ 0x0 (PCI:0000:04:00.0)",)
    assert not log.ok


def test_a_small_bar_without_room_is_harmless() -> None:
    assert guestlog.read("pci 0000:01:00.0: BAR 6 [mem size 0x00080000 pref]: can't assign; no space").ok
