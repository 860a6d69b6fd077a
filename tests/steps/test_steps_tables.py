"""Cases of the steps that only a real host can run: the state that was found, and the diff and script that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from runbooks.engine.errors import UsageError
from runbooks.engine.facts import Facts
from runbooks.engine.step import NO_ANSWER, Answers, Change, State, Step, Verdict
from runbooks.inventory.shape import AptRepository
from runbooks.inventory.shape import Gpus as GpusWanted
from runbooks.steps.checks import DiskFree, Gpus, OperatingSystem
from runbooks.steps.downloads import Download
from runbooks.steps.files import render
from runbooks.steps.kernel import Initramfs, Sysctl
from runbooks.steps.nvidia import DriverLoaded, OpenModules
from runbooks.steps.packages import AptKey, Hold, Packages, apt_pin, apt_source
from runbooks.steps.services import Unit, User

INSTALLED: State = {"status": "installed", "version": "580.126.20-1", "held": False}
DF: State = {"out": "/dev/sda1 1000000 1 500000000 1% /srv"}
CARD = "{}, NVIDIA RTX PRO 6000 Blackwell Server Edition, 97887, 580.126.20"
EIGHT = "\n".join(CARD.format(number) for number in range(8))
GPUS = Gpus(
    wanted=GpusWanted(count=8, name=CARD.split(", ")[1], memory_mib=97887, arch="12.0"),
    driver="580.126.20",
)


def answered(step: Step, states: Sequence[State]) -> Answers:
    """States for the step's questions, in their order; what is left out is absent."""
    questions = step.questions()
    return {question: states[n] if n < len(states) else {} for n, question in enumerate(questions)}


@dataclass
class Case:
    """`diff` None: nothing to change. `script`: parts that the script holds."""

    step: Step
    states: list[State] = field(default_factory=list)
    diff: list[str] | None = None
    script: list[str] = field(default_factory=list)


CASES = {
    "packages: absent": Case(
        Packages(names=("curl", "git")),
        [{}, {"status": "config-files", "version": "1"}],
        ["curl absent -> installed", "git absent -> installed"],
        ["--no-install-recommends", "DPkg::Lock::Timeout", "--force-confold", "install -- curl git"],
    ),
    "packages: there": Case(Packages(names=("nvidia-open=580.126.20*", "curl")), [INSTALLED, INSTALLED]),
    "packages: another version": Case(
        Packages(names=("nvidia-open=590.48.01*",)),
        [INSTALLED],
        ["nvidia-open 580.126.20-1 -> 590.48.01*"],
        ["--allow-downgrades --allow-change-held-packages install -- 'nvidia-open=590.48.01*'"],
    ),
    "packages: what they bring may be held": Case(
        Packages(names=("a",), family=("*nvidia*", "libcuda1")),
        [{}],
        ["a absent -> installed"],
        ["'*nvidia*' libcuda1", "apt-mark -q unhold -- $rb_held", 'apt-mark -q hold -- "$rb_name"'],
    ),
    "packages: an exact version is exact": Case(
        Packages(names=("a=580.126.20",)), [INSTALLED], ["a 580.126.20-1 -> 580.126.20"]
    ),
    "hold": Case(Hold(names=("a", "b")), [{**INSTALLED, "held": True}, INSTALLED], ["b held"], ["apt-mark hold -- b"]),
    "hold: held": Case(Hold(names=("a",)), [{**INSTALLED, "held": True}]),
    "unit: off, should be on": Case(
        Unit(name="x.service", enabled=True, active=True),
        [{"load": "loaded", "enabled": "disabled", "active": "inactive", "reload": "no"}],
        ["disabled -> enabled", "inactive -> active"],
        ["systemctl enable -- x.service\nsystemctl restart -- x.service"],
    ),
    "unit: as it should be": Case(
        Unit(name="x.service", enabled=True, active=True),
        [{"load": "loaded", "enabled": "enabled", "active": "active", "reload": "no"}],
    ),
    "unit: its file changed": Case(
        Unit(name="x.service"),
        [{"load": "loaded", "enabled": "enabled", "active": "active", "reload": "yes"}],
        ["read again from disk"],
        ["systemctl daemon-reload"],
    ),
    "unit: a static one cannot be more enabled": Case(
        Unit(name="x.service", enabled=True), [{"load": "loaded", "enabled": "static", "active": "active"}]
    ),
    "unit: not there, which is fine": Case(Unit(name="x.timer", active=False, optional=True), [{"load": "not-found"}]),
    "user: new": Case(
        User(name="sglang", home="/var/lib/x", groups=("video",)),
        [{}],
        ["new, home /var/lib/x, groups video"],
        ["useradd --system --user-group -d /var/lib/x -s /usr/sbin/nologin -G video -- sglang"],
    ),
    "user: missing a group": Case(
        User(name="s", home="/h", groups=("render", "video")),
        [{"uid": "9", "home": "/h", "shell": "/usr/sbin/nologin", "groups": "video"}],
        ["into render"],
        ["usermod -a -G render -- s"],
    ),
    "user: as it should be": Case(
        User(name="s", home="/h"), [{"uid": "9", "home": "/h", "shell": "/usr/sbin/nologin", "groups": "x"}]
    ),
    "sysctl: the file is right, the kernel is not": Case(
        Sysctl(name="x", values={"vm.swappiness": "1"}, why="w"),
        [{"type": "file", "mode": 0o644, "owner": "root:root", "sha256": "no"}, {"value": "60"}],
        ["content", "vm.swappiness 60 -> 1"],
        ["printf '%s\\n' 1 >/proc/sys/vm/swappiness"],
    ),
    "initramfs: older than a file": Case(
        Initramfs(kernel="6.8.0-1", files=("/etc/modprobe.d/a.conf",)),
        [{"rc": 0, "out": "/etc/modprobe.d/a.conf"}],
        ["older than /etc/modprobe.d/a.conf"],
        ["update-initramfs -u -k 6.8.0-1"],
    ),
    "initramfs: fresh, or none": Case(Initramfs(kernel="6", files=("/a",)), [{"rc": 0, "out": ""}]),
    "apt key: missing": Case(
        AptKey(name="nvidia", url="https://x.example/k.gpg"),
        [{}],
        ["from https://x.example/k.gpg"],
        ["mktemp /etc/apt/keyrings/", "https://x.example/k.gpg", "mv -fT"],
    ),
    "apt key: another one than pinned": Case(
        AptKey(name="n", url="https://x.example/k.gpg", sha256="b" * 64),
        [{"type": "file", "size": 9, "sha256": "a" * 64}],
        ["from https://x.example/k.gpg"],
        ["sha256sum -c"],
    ),
    "apt key: there": Case(AptKey(name="n", url="https://x.example/k"), [{"type": "file", "size": 9, "sha256": "a"}]),
    "driver: built for this kernel, nothing loaded": Case(
        DriverLoaded(version="580.126.20"),
        [{"out": "sh: nvidia-smi: not found"}, {"out": ""}, {"out": "580.126.20"}],
        ["load 580.126.20"],
        ["modprobe nvidia"],
    ),
    "driver: another one is loaded": Case(
        DriverLoaded(version="580.126.20"),
        [{"out": "570.86.10"}, {"out": ""}, {"out": "580.126.20"}],
        ["driver 570.86.10 is loaded, 580.126.20 is installed"],
    ),
    "driver: nouveau has the cards": Case(
        DriverLoaded(version="580.126.20"),
        [{"out": ""}, {"out": "nouveau"}, {"out": "580.126.20"}],
        ["nouveau is loaded, 580.126.20 is installed"],
    ),
    "driver: the library is newer than the module": Case(
        DriverLoaded(version="580.126.20"),
        [{"out": "Failed to initialize NVML: Driver/library version mismatch"}, {}, {"out": "580.126.20"}],
        ["another driver is loaded, 580.126.20 is installed"],
    ),
    "driver: loaded": Case(DriverLoaded(version="580.126.20"), [{"out": "580.126.20"}, {}, {}]),
    "driver: loaded, and no card answers": Case(  # which the check of the GPUs says: a reboot would be in vain
        DriverLoaded(version="580.126.20"), [{"out": "No devices were found"}, {}, {"out": "580.126.20"}]
    ),
    "download: nothing there": Case(
        Download(source="hf:o/n", path="/srv/m", size=441e9),
        [{"out": ""}, DF],
        ["hf:o/n main, 441.0 GB"],
        ["--source hf:o/n", "--into /srv/m"],
    ),
    "download: a part is there": Case(
        Download(source="hf:o/n", path="/srv/m", size=441e9),
        [{"out": "-\n97656250"}, DF],
        ["hf:o/n main, 441.0 GB", "100.0 GB are there; what is missing comes, what is there is kept"],
    ),
    "download: whole": Case(
        Download(source="hf:o/n", path="/srv/m", size=441e9), [{"out": "hf:o/n main\nwhole"}, {"out": "/d 1 1 0 1% /"}]
    ),
    "download: whole, of another revision": Case(
        Download(source="hf:o/n", path="/srv/m", size=1e9, revision="abc"),
        [{"out": "hf:o/n main\nwhole"}, DF],
        ["hf:o/n abc, 1.0 GB"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_state_in_diff_and_script_out(case: Case) -> None:
    change = case.step.plan(answered(case.step, case.states))
    if case.diff is None:
        assert change is None
        return
    assert isinstance(change, Change)
    assert [diff.line for diff in change.diff] == case.diff
    for part in case.script:
        assert part in change.script


def test_a_driver_that_is_loaded_wrongly_takes_a_reboot() -> None:
    for name in (
        "driver: another one is loaded",
        "driver: nouveau has the cards",
        "driver: the library is newer than the module",
    ):
        change = CASES[name].step.plan(answered(CASES[name].step, CASES[name].states))
        assert isinstance(change, Change)
        assert change.reboot


FACTS = Facts(
    os_id="ubuntu", os_version="24.04", codename="noble", arch="x86_64", deb_arch="amd64", kernel="6.8.0-63-generic",
    boot_id="b", cores=16, memory_bytes=512 * 10**9, python="3.12", systemd=255, virt="kvm", boot_loader="grub",
    fqdn="h",
)  # fmt: skip


@pytest.mark.parametrize(
    ("step", "states", "ok", "said"),
    [
        (OperatingSystem(facts=FACTS), [], True, "ubuntu 24.04, kernel 6.8.0-63-generic"),
        (DiskFree(path="/", needed=2e9, what="packages"), [DF], True, "2.0 GB for packages, 512.0 GB free on /srv"),
        (DiskFree(path="/", needed=2e12, what="x"), [DF], False, "2000.0 GB for x, 512.0 GB free on /srv"),
        (GPUS, [{"out": EIGHT}], True, "8 x NVIDIA RTX PRO 6000"),
        (GPUS, [{"out": EIGHT.rpartition("\n")[0]}], False, "7 of 8 cards"),
        (GPUS, [{"out": EIGHT.replace("3, NVIDIA RTX PRO", "3, NVIDIA GTX")}], False, "card 3 is a NVIDIA GTX"),
        (GPUS, [{"out": EIGHT.replace("580.126.20", "570.1", 1)}], False, "runs under driver 570.1, not 580.126.20"),
        (GPUS, [{"out": "absent"}], False, "nvidia-smi is not installed"),
        (GPUS, [{"out": "No devices were found"}], False, "No devices were found"),
        (GPUS, [{"out": "Failed to initialize NVML: Driver/library version mismatch"}], False, "version mismatch"),
        (GPUS, [NO_ANSWER], False, "nvidia-smi does not answer"),
        (OpenModules(), [{"out": "Dual MIT/GPL"}], True, ""),
        (OpenModules(), [{"out": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580"}], True, ""),
        (OpenModules(), [{"out": "NVIDIA"}], False, "not the open one"),
        (DriverLoaded(version="5"), [NO_ANSWER], False, "nvidia-smi does not answer"),
        (
            Download(source="hf:o/n", path="/srv/m", size=441e9),
            [{"out": "-\n97656250"}, {"out": "/dev/sda1 1 1 48828125 1% /srv"}],
            False,
            "441.0 GB to download, 50.0 GB free on /srv",
        ),
    ],
)  # fmt: skip
def test_verdicts(step: Step, states: list[State], ok: bool, said: str) -> None:
    verdict = step.plan(answered(step, states))
    assert isinstance(verdict, Verdict)
    assert verdict.ok is ok
    assert said in "\n".join([verdict.line, *verdict.details])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"os_id": "fedora", "os_version": "41"}, "this is fedora 41; known are: debian 12, 13; ubuntu 22.04"),
        ({"os_version": "20.04"}, "this is ubuntu 20.04"),
        ({"arch": "aarch64"}, "this is aarch64"),
    ],
)
def test_unknown_systems(changes: dict[str, str], said: str) -> None:
    wrong: Any = changes
    verdict = OperatingSystem(facts=replace(FACTS, **wrong)).plan({})
    assert not verdict.ok
    assert said in verdict.line


def test_templates_tell_their_line(tmp_path: Path) -> None:
    (tmp_path / "a.j2").write_text("one\n{% if x %}\nuser={{ user }}\n{% endif %}\n{{ typo }}\n")
    with pytest.raises(UsageError, match=r"template a\.j2, line 3: 'user' is undefined"):
        render("a.j2", {"x": True}, folder=tmp_path)
    with pytest.raises(UsageError, match=r"line 5: 'typo' is undefined"):
        render("a.j2", {"x": False}, folder=tmp_path)
    assert render("a.j2", {"x": True, "user": "<s>", "typo": ""}, folder=tmp_path) == "one\nuser=<s>\n\n"
    (tmp_path / "outer.j2").write_text("one\ntwo\nthree\n{% include 'a.j2' %}\n")
    with pytest.raises(UsageError, match=r"template a\.j2, line 5: 'typo' is undefined"):
        render("outer.j2", {"x": False}, folder=tmp_path)
    (tmp_path / "b.j2").write_text("one\n{% if %}\n")
    with pytest.raises(UsageError, match=r"template b\.j2, line 2: "):
        render("b.j2", {}, folder=tmp_path)
    with pytest.raises(UsageError, match=r"there is no template c\.j2"):
        render("c.j2", {}, folder=tmp_path)


def test_apt_files() -> None:
    key = AptKey(name="nvidia", url="https://x.example/3bf863cc.pub")
    assert key.path == "/etc/apt/keyrings/nvidia.asc"
    repository = AptRepository(url="u", key_url="k", suite="bookworm", components=("main", "extra"))
    source = apt_source("nvidia", repository, key, url="https://x.example/debian12/")
    assert source.path == "/etc/apt/sources.list.d/nvidia.sources"
    assert source.content == (
        "Types: deb\nURIs: https://x.example/debian12/\nSuites: bookworm\nComponents: main extra\n"
        "Signed-By: /etc/apt/keyrings/nvidia.asc\n"
    )
    pin = apt_pin("nvidia", "*nvidia*", "580.126.20*", why="One version.")
    assert pin.content == "# One version.\nPackage: *nvidia*\nPin: version 580.126.20*\nPin-Priority: 1001\n"
