"""The checks around the driver, and what mends it: what a host said, and what follows from it."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runbooks.engine.step import Change, State, Step, Verdict
from runbooks.inventory import Loaded, load
from runbooks.inventory.shape import Gpus
from runbooks.provision import stages
from runbooks.provision.base import ClockSynchronised
from runbooks.provision.cards import FIELDS, CardState, ModuleOptions, Peers, Xids, read_peers
from runbooks.provision.driver import pin
from runbooks.provision.interpreter import interpreter, packages
from runbooks.steps.checks import SMI_FIELDS
from runbooks.steps.checks import Gpus as GpusThere
from runbooks.steps.nvidia import CudaKnows, ModulesBuilt, OneOrigin, SecureBoot
from runbooks.steps.packages import Absent, AptMirror, OneSource
from tests.provision.test_provision_stages import DEBIAN, UBUNTU, every_step

DATA = Path(__file__).parents[1] / "lab" / "data"
CARDS = Gpus(count=2, name="NVIDIA RTX PRO 6000 Blackwell Server Edition", memory_mib=97887, arch="12.0")
SOURCE = "Types: deb\nURIs: https://repo.example/debian12/x86_64/\nSuites: /\n"
ONE_SOURCE = OneSource(path="/etc/apt/sources.list.d/nvidia.sources", content=SOURCE)


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load(Path(__file__).parents[2] / "inventory.yaml")


def planned(step: Step, *said: str) -> Change | Verdict | None:
    states: Sequence[State] = [{"rc": 0, "out": text} for text in said]
    return step.plan(dict(zip(step.questions(), states, strict=True)))


def card(**other: str) -> str:
    usual = {
        "index": "0", "compute_cap": "12.0", "persistence_mode": "Enabled", "ecc.mode.current": "Enabled",
        "mig.mode.current": "Disabled", "ecc.errors.uncorrected.volatile.total": "0", "pcie.link.width.current": "16",
        "pcie.link.width.max": "16", "power.limit": "600.00", "power.default_limit": "600.00",
    }  # fmt: skip
    values = usual | {key.replace("__", "."): value for key, value in other.items()}
    return ", ".join(values[name] for name in FIELDS)


TWO = f"{card()}\n{card(index='1')}"
P2P = (
    " \tGPU0\tGPU1\tGPU2\t\n GPU0\tX\t{0}\tCNS\t\n GPU1\t{0}\tX\tOK\t\n GPU2\tCNS\tOK\tX\t\n\nLegend:\n  X    = Self\n"
)
XID = "NVRM: Xid (PCI:0000:c1:00): 79, pid=1, GPU has fallen off the bus."
HMM = ModuleOptions(lines=("options nvidia_uvm uvm_disable_hmm=1",))
OFF_AND_ON = "MIG off, ECC enabled, no memory errors, persistence on"
PTXAS = "release 13.0\ntakes it"

VERDICTS: list[tuple[Step, str, bool, str]] = [
    (SecureBoot(), "off", True, "off"),
    (SecureBoot(), "on\na module is loaded", True, "known to the firmware"),
    (SecureBoot(), "on\n/var/lib/dkms/mok.pub is already enrolled", True, "known to the firmware"),
    (SecureBoot(), "on\nCanonical Ltd. Kernel Module Signing", True, "known to the firmware"),
    (SecureBoot(), "on\n/var/lib/dkms/mok.pub is not enrolled", False, "mokutil --import /var/lib/dkms/mok.pub"),
    (OneOrigin(), "", True, "no driver package of the distribution"),
    (OneOrigin(), "installed nvidia-open 580.126.20-1", True, "no driver package of the distribution"),
    (OneOrigin(), "installed libcuda1 535.247.01-1~deb12u1", False, "libcuda1 535.247.01-1~deb12u1"),
    (OneOrigin(), "installed nvidia-utils-580 580.95.05-0ubuntu0.24.04.2", False, "nvidia-utils-580 580.95.05"),
    (OneOrigin(), "installed linux-modules-nvidia-580-open-generic 6.8.0-63.66", False, "linux-modules-nvidia-580"),
    (
        OneOrigin(origin="distribution"),
        "installed nvidia-utils-580 580.95.05-0ubuntu0.24.04.2\ninstalled linux-modules-nvidia-580-open-x 6.8.0-63\n"
        "installed nvidia-container-toolkit 1.17.8-1",
        True,
        "the distribution: no driver package of NVIDIA's repository",
    ),
    (OneOrigin(origin="distribution"), "installed nvidia-open 580.126.20-1ubuntu1", False, "580.126.20-1ubuntu1"),
    (CudaKnows(home="/usr/local/cuda", arch="120"), PTXAS, True, "CUDA 13.0, its ptxas takes code for sm_120"),
    (CudaKnows(home="/usr/local/cuda", arch="120"), "absent", False, "no nvcc below /usr/local/cuda/bin"),
    (CudaKnows(home="/c", arch="120"), "release 12.8\ntakes it", False, "12.9 or newer"),
    (
        CudaKnows(home="/c", arch="120"),
        "release 12.4\nptxas fatal   : Value 'sm_120' is not defined for option 'gpu-name'",
        False,
        "ptxas of CUDA 12.4 does not know sm_120",
    ),
    (CardState(wanted=CARDS), TWO, True, f"{OFF_AND_ON}; all lanes (x16), full power (600 W)"),
    (CardState(wanted=CARDS), "", False, "tells no card's state"),
    (CardState(wanted=CARDS), card(compute_cap="9.0"), False, "card 0 has compute capability 9.0, not 12.0"),
    (CardState(wanted=CARDS), card(mig__mode__current="Enabled"), False, "nvidia-smi -mig 0"),
    (CardState(wanted=CARDS), card(ecc__errors__uncorrected__volatile__total="3"), False, "3 uncorrected memory"),
    (CardState(wanted=CARDS), f"{TWO}\n{card(ecc__mode__current='Disabled')}", False, "ECC is on for some cards"),
    (CardState(wanted=CARDS), card(pcie__link__width__current="8"), True, "card 0: x8 of x16 lanes"),
    (CardState(wanted=CARDS), card(power__limit="450.00"), True, "card 0: limited to 450 of 600 W"),
    (CardState(wanted=CARDS), card(persistence_mode="Disabled"), True, "persistence off"),
    (CardState(wanted=CARDS), card(ecc__mode__current="[N/A]", power__limit="[N/A]"), True, "ECC [n/a]"),
    (Peers(), P2P.format("NS"), True, "OK for 1 pairs"),
    (Peers(), P2P.format("NS"), True, "NS for 1 pairs: not supported here; as in every VM without a clique"),
    (Peers(), P2P.format("TNS"), True, "CNS for 1 pairs: chipset not supported"),
    (Peers(), P2P.format("GNS"), True, "GNS for 1 pairs: the card or its driver does not support it"),
    (Peers(), "No devices were found", True, "one card, or nvidia-smi does not tell"),
    (HMM, "Y", True, "nvidia_uvm: uvm_disable_hmm is Y"),
    (HMM, "N", True, "uvm_disable_hmm is N as it runs: 1 from the next reboot on"),
    (HMM, "-", True, "uvm_disable_hmm cannot be read"),
    (Xids(), "", True, "none since boot"),
    (Xids(), "NVRM: Xid (PCI:0000:c1:00): 13, pid=4711, Graphics Exception", True, "1 of single processes"),
    (Xids(), XID, False, "PCI:0000:c1:00: Xid 79, pid=1, GPU has fallen off the bus."),
]  # fmt: skip


@pytest.mark.parametrize(("step", "said", "ok", "text"), VERDICTS)
def test_what_is_said_is_judged(step: Step, said: str, ok: bool, text: str) -> None:
    """And what fails has a page to read, and a command to type."""
    verdict = planned(step, said)
    assert isinstance(verdict, Verdict)
    assert verdict.ok is ok
    assert text in "\n".join([verdict.line, *verdict.details, verdict.next or ""])
    assert ok or (verdict.page and verdict.next)


RUNS, NEXT = "6.8.0-63-generic", "6.8.0-65-generic"
CHANGES: list[tuple[Step, str, list[str], list[str]]] = [
    (ModulesBuilt(version="580.126.20"), f"{RUNS} 580.126.20\n{NEXT} 580.126.20", [], []),
    (
        ModulesBuilt(version="580.126.20"),
        f"{RUNS} 580.126.20\n{NEXT} ",
        [f"kernel {NEXT}: nvidia absent -> 580.126.20"],
        [f"rb_module {NEXT} 580.126.20", "linux-headers-$1", "dkms install --force"],
    ),
    (
        ModulesBuilt(version="580.126.20"),
        f"{RUNS} 570.86.10",
        [f"kernel {RUNS}: nvidia 570.86.10 -> 580.126.20"],
        ["install --reinstall -- $signed"],
    ),
    (ONE_SOURCE, "/etc/apt/sources.list.d/nvidia.sources", [], []),
    (
        ONE_SOURCE,
        "/etc/apt/sources.list.d/cuda-debian12.list\n/etc/apt/sources.list.d/nvidia.sources",
        ["/etc/apt/sources.list.d/cuda-debian12.list names it too: set aside"],
        ["mv -f -- /etc/apt/sources.list.d/cuda-debian12.list /etc/apt/sources.list.d/cuda-debian12.list.disabled"],
    ),
    (AptMirror(url="https://mirror.example/"), "", [], []),
    (
        AptMirror(url="https://mirror.example/"),
        "/etc/apt/sources.list",
        ["/etc/apt/sources.list asks the distribution's servers"],
        ["sed -i -E", "#https://mirror.example/\\2#g", "-- /etc/apt/sources.list"],
    ),
    (ClockSynchronised(), "yes\nchrony", [], []),
    (ClockSynchronised(), "no\nsystemd-timesyncd", [], []),  # at work, and not there yet
    (ClockSynchronised(), "no", ["nothing keeps the clock -> systemd-timesyncd"], ["install -- systemd-timesyncd"]),
]


@pytest.mark.parametrize(("step", "said", "diff", "script"), CHANGES)
def test_what_is_said_is_mended(step: Step, said: str, diff: list[str], script: list[str]) -> None:
    change = planned(step, said)
    assert isinstance(change, Change) is bool(diff)
    if isinstance(change, Change):
        assert [line.line for line in change.diff] == diff
        assert all(part in change.script for part in script)


def test_fabric_manager_goes_and_nothing_else() -> None:
    step = Absent(names=("nvidia-fabricmanager", "nvidia-fabricmanager-580"), why="it is for NVSwitch")
    none, one = step.questions()
    assert step.plan({none: {}, one: {"status": "config-files"}}) is None
    change = step.plan({none: {}, one: {"status": "installed"}})
    assert change is not None
    assert "purge -- nvidia-fabricmanager-580" in change.script


def test_a_mirror_is_asked_in_place_of_the_official_servers(tmp_path: Path) -> None:
    """The expression is sed's, so sed is asked; a source of anybody else stays as it is."""
    import subprocess

    sources = tmp_path / "sources.list"
    ours, other = "deb http://archive.ubuntu.com/ubuntu noble main\n", "deb https://repo.example/debian x main\n"
    sources.write_text(ours + other)
    change = planned(AptMirror(url="https://mirror.example"), str(sources))
    assert isinstance(change, Change)
    subprocess.run(["sh", "-ec", change.script], check=True)
    assert sources.read_text() == "deb https://mirror.example/ubuntu noble main\n" + other


def real_cards(*fields: str) -> str:
    """These fields of a real H200, as `--format=csv,noheader,nounits` has them."""
    header, *rows = csv.reader((DATA / "smi-query.csv").read_text().splitlines(), skipinitialspace=True)
    names = [name.partition(" [")[0] for name in header]
    lines = [[row[names.index(field)].removesuffix(" W").removesuffix(" MiB") for field in fields] for row in rows]
    return "\n".join(", ".join(line) for line in lines)


def test_the_cards_of_a_real_driver() -> None:
    h200 = Gpus(count=1, name="NVIDIA H200", memory_mib=143771, arch="9.0")
    state = planned(CardState(wanted=h200), real_cards(*FIELDS))
    assert isinstance(state, Verdict)
    assert (state.ok, state.line) == (True, f"{OFF_AND_ON}; all lanes (x16), full power (700 W)")
    cards = planned(GpusThere(wanted=h200, driver="580.159.04"), real_cards(*SMI_FIELDS))
    assert isinstance(cards, Verdict)
    assert (cards.ok, cards.line) == (True, "1 x NVIDIA H200 of 143771 MiB, driver and library 580.159.04")


def test_the_matrix_of_a_real_driver() -> None:
    """`nvidia-smi topo -p2p r` of two H200, with the codes for colour that it writes."""
    captured = [path for path in DATA.iterdir() if "p2p" in path.name]
    assert captured
    for path in captured:
        assert sum(read_peers(path.read_text()).values()) == 1, path.name


def test_the_distributions_driver_keeps_nvidias_repository_for_cuda(loaded: Loaded) -> None:
    """Ubuntu's precompiled modules have the kernel's version: neither pinned to the driver's, nor held."""
    names = ("linux-modules-nvidia-580-server-open-generic", "nvidia-utils-580-server")
    driver = msgspec.structs.replace(loaded.inventory.driver, origin="distribution", packages=names)
    never, one = str(pin(driver).content).split("\n\n")
    assert "Pin: origin developer.download.nvidia.com\nPin-Priority: -1" in never
    assert "Pin: version 580.126.20*" in one
    assert pin(loaded.inventory.driver).content == one
    inventory = msgspec.structs.replace(loaded.inventory, driver=driver)
    found = every_step(stages(UBUNTU, replace(loaded, inventory=inventory), "glm5-a"))
    packages: Any = found[f"packages {' '.join(names)}"]
    assert packages.names == (names[0], f"{names[1]}=580.126.20*")
    assert f"hold {names[1]}" in found


@pytest.mark.parametrize(
    ("os_id", "os_version", "python", "repository", "runtime_python"),
    [
        ("ubuntu", "22.04", "3.10", "ubuntu2204", "python3.11"),
        ("ubuntu", "24.04", "3.12", "ubuntu2404", "python3"),
        ("ubuntu", "26.04", "3.14", "ubuntu2604", "python3"),
        ("debian", "12", "3.11", "debian12", "python3"),
        ("debian", "13", "3.13", "debian13", "python3"),
    ],
)
def test_every_system_has_its_repository_and_a_python_that_is_new_enough(
    loaded: Loaded, os_id: str, os_version: str, python: str, repository: str, runtime_python: str
) -> None:
    facts = replace(DEBIAN, os_id=os_id, os_version=os_version, python=python)
    source: Any = every_step(stages(facts, loaded, "glm5-a"))["file /etc/apt/sources.list.d/nvidia.sources"]
    assert f"/repos/{repository}/x86_64/\n" in source.content
    runtime = loaded.runtime_for("glm5-a")
    assert interpreter(facts, runtime) == runtime_python
    brings = () if runtime_python == "python3" else ("python3.11", "python3.11-dev", "python3.11-venv")
    assert packages(facts, runtime) == brings
