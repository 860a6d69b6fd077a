"""More cases: what every other kind makes of what it finds. The tables of the two files together hold every kind."""

from __future__ import annotations

import hashlib

import pytest

from runbooks.engine.step import State
from runbooks.provision.base import ClockSynchronised, CloudInitDone
from runbooks.provision.granted import Peers
from runbooks.provision.passthrough import NotListed
from runbooks.steps.boot import BootOptions, NodeInitramfs
from runbooks.steps.build import BuiltOnce, Command
from runbooks.steps.files import Directory, File, Line, Symlink
from runbooks.steps.nvidia import ModulesBuilt
from runbooks.steps.packages import Absent, AptMirror, OneSource, TimersRun
from runbooks.steps.python import PipInstall, Venv
from tests.steps import test_steps_tables
from tests.steps.every_kind import ELSEWHERE, kinds
from tests.steps.test_steps_tables import INSTALLED, Case

FILE: State = {
    "type": "file", "mode": 0o644, "owner": "root:root", "size": 2, "text": "a\n",
    "sha256": hashlib.sha256(b"a\n").hexdigest(),
}  # fmt: skip
FOLDER: State = {"type": "directory", "mode": 0o755, "owner": "root:root", "size": 1}
GRUB: State = {"rc": 0, "out": "== efi\n== tool\n== grub\nthere\n== vendor\nvendor_id : AuthenticAMD"}
MINE = OneSource(path="/etc/apt/sources.list.d/n.sources", content="Types: deb\nURIs: https://x.example/\n")

CASES = {
    "file: absent": Case(File(path="/x", content="a\n"), [{}], ["new, mode 0644, root:root"], ["mv -fT"]),
    "file: as it should be": Case(File(path="/x", content="a\n"), [FILE]),
    "file: mode and owner": Case(
        File(path="/x", content="a\n", owner="sglang:sglang", mode=0o600),
        [FILE],
        ["mode 0644 -> 0600", "owner root:root -> sglang:sglang"],
        ["chown -- sglang:sglang /x\nchmod -- 0600 /x"],
    ),
    "directory: absent": Case(Directory(path="/x"), [{}], ["new, mode 0755, root:root"], ["mkdir -- /x"]),
    "directory: there": Case(Directory(path="/x"), [FOLDER]),
    "link: absent": Case(Symlink(path="/x/y", target="z"), [{}], ["new, to z"], ["ln -s -- z"]),
    "link: another target": Case(
        Symlink(path="/x/y", target="z"), [{"type": "symlink", "target": "old"}], ["target old -> z"]
    ),
    "link: there": Case(Symlink(path="/x/y", target="z"), [{"type": "symlink", "target": "z"}]),
    "line: no file": Case(Line(path="/x", line="b", owns="b"), [{}], ["line: b"], ["printf %s 'b\n'"]),
    "line: another": Case(Line(path="/x", line="b", owns="b"), [FILE], ["line: b"], ["printf %s 'a\nb\n'"]),
    "line: there": Case(Line(path="/x", line="a", owns="a"), [FILE]),
    "command: not done": Case(Command(name="c", script="go", creates="/x"), [{}], ["run"], ["go"]),
    "command: done": Case(Command(name="c", script="go", unless="true"), [{"rc": 0}]),
    "built: never": Case(
        BuiltOnce(name="b", folder="/b", recipe="make", shown=("s",)), [{}], ["new, /b", "s"], ["make\n", "/built"]
    ),
    "built: a result is lost": Case(
        BuiltOnce(name="b", folder="/b", recipe="make", shown=(), keeps=("x",)), [FILE, {}], ["again: x is gone"]
    ),
    "built: there": Case(BuiltOnce(name="b", folder="/b", recipe="make", shown=(), keeps=("x",)), [FILE, FILE]),
    "absent: there": Case(Absent(names=("a", "b"), why="w"), [INSTALLED, {}], ["a goes: w"], ["purge -- a"]),
    "absent: only its configuration": Case(Absent(names=("a",), why="w"), [{"status": "config-files"}]),
    "mirror: the distribution's own": Case(
        AptMirror(url="http://m.example/"),
        [{"out": "/etc/apt/sources.list.d/x y.sources"}],
        ["/etc/apt/sources.list.d/x y.sources asks the distribution's servers"],
        ["#http://m.example/\\2#g", "-- '/etc/apt/sources.list.d/x y.sources'"],
    ),
    "mirror: asked already": Case(AptMirror(url="http://m.example/"), [{"out": ""}]),
    "one source: a second": Case(
        MINE,
        [{"out": "/etc/apt/sources.list.d/cuda.list\n/etc/apt/sources.list.d/n.sources"}],
        ["/etc/apt/sources.list.d/cuda.list names it too: set aside"],
        ["mv -f -- /etc/apt/sources.list.d/cuda.list /etc/apt/sources.list.d/cuda.list.disabled"],
    ),
    "one source: ours alone": Case(MINE, [{"out": "/etc/apt/sources.list.d/n.sources"}]),
    "timers: stopped": Case(
        TimersRun(), [{"out": "apt-daily.timer"}], ["apt-daily.timer is enabled, and does not run"], ["systemctl start"]
    ),
    "timers: at work": Case(TimersRun(), [{"out": ""}]),
    "clock: nothing keeps it": Case(
        ClockSynchronised(), [{"out": "no"}], ["nothing keeps the clock -> systemd-timesyncd"], ["enable --now"]
    ),
    "clock: chrony does": Case(ClockSynchronised(), [{"out": "yes\nchrony"}]),
    "cloud-init: at work": Case(
        CloudInitDone(), [{"out": "status: running"}], ["running; wait for its end"], ["status --wait"]
    ),
    "cloud-init: not begun yet": Case(
        CloudInitDone(), [{"out": "status: not started"}], ["not started; wait for its end"], ["status --wait"]
    ),
    "cloud-init: switched off": Case(CloudInitDone(), [{"out": "status: disabled"}]),
    "cloud-init: ended badly": Case(CloudInitDone(), [{"out": "status: error"}]),
    "cloud-init: none": Case(CloudInitDone(), [{"out": ""}]),
    "not listed: listed": Case(
        NotListed(names=("nouveau",)), [{"out": "/etc/modules:nouveau"}], ["out: /etc/modules:nouveau"], ["sed -i"]
    ),
    "not listed": Case(NotListed(names=("nouveau",)), [{"out": ""}]),
    "peers: granted, not known yet": Case(
        Peers(asked=True, granted=True), [{"out": ""}], ["granted by QEMU -> untested"], ["echo untested"]
    ),
    "modules: one kernel has none": Case(
        ModulesBuilt(version="580.1"),
        [{"out": "6.8.0-1 580.1\n6.8.0-2 "}],
        ["kernel 6.8.0-2: nvidia absent -> 580.1"],
        ["rb_module 6.8.0-2"],
    ),
    "modules: all have it": Case(ModulesBuilt(version="580.1"), [{"out": "6.8.0-1 580.1"}]),
    "venv: does not start": Case(
        Venv(path="/v v", python="python3.12"), [{"rc": 127}], ["new, python3.12"], ["rm -rf -- '/v v'\n", "-m venv"]
    ),
    "venv: starts": Case(Venv(path="/v"), [{"rc": 0}]),
    "pip: another version": Case(
        PipInstall(venv="/v", requirements=("A_b==2", "c==1")),
        [{"rc": 0, "out": "a-b==1\nc==1"}],
        ["A_b==2"],
        ["-m pip install", "A_b==2"],
    ),
    "pip: there, under another spelling": Case(
        PipInstall(venv="/v", requirements=("Flash.Infer[cu13]==1",)), [{"rc": 0, "out": "flash_infer==1"}]
    ),
    "boot: a word is missing": Case(
        BootOptions(words=("iommu=pt",)),
        [GRUB, {"out": 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\n== cmdline\n== stamp'}],
        ["grub: iommu=pt"],
        ["update-grub"],
    ),
    "boot: as it should be": Case(
        BootOptions(words=("iommu=pt",)),
        [GRUB, {"out": 'GRUB_CMDLINE_LINUX_DEFAULT="quiet iommu=pt"\n== cmdline\n== stamp\ngrub iommu=pt'}],
    ),
    "initramfs: packed before": Case(
        NodeInitramfs(files=("/a",)), [{"out": "1 /a\n==\n2 /a"}, GRUB], ["packed anew"], ["update-initramfs -u -k all"]
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_state_in_change_out(case: Case) -> None:
    test_steps_tables.test_state_in_diff_and_script_out(case)


def test_every_kind_has_a_case() -> None:
    found = {type(case.step).__name__ for case in (*CASES.values(), *test_steps_tables.CASES.values())}
    assert set(kinds()) == found | set(ELSEWHERE)
