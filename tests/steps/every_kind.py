"""Every kind of step that there is, found in the code, and a sample of each for a lab host.

A new kind without a sample, or the name of the test that changes a host by it, fails `test_steps_every_kind.py`.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import runbooks.provision
import runbooks.steps
from runbooks.engine.secret import Secret
from runbooks.engine.step import Step, quote
from runbooks.inventory.shape import PythonIndex
from runbooks.provision.base import ClockSynchronised, CloudInitDone
from runbooks.provision.granted import Peers
from runbooks.provision.passthrough import NotListed
from runbooks.steps.boot import BootOptions, NodeInitramfs
from runbooks.steps.build import BuiltOnce, Command
from runbooks.steps.downloads import Download
from runbooks.steps.files import Directory, File, Line, Symlink
from runbooks.steps.kernel import Initramfs, Sysctl
from runbooks.steps.nvidia import DriverLoaded, ModulesBuilt
from runbooks.steps.packages import Absent, AptKey, AptMirror, Hold, OneSource, Packages, TimersRun
from runbooks.steps.python import PipInstall, Venv
from runbooks.steps.services import Unit, User

ROOT = "/etc/faults"
SENTINEL = "sentinel-4711-'q\"uote"
WHEELS = PythonIndex(find_links=("/root/given",), only=True)
MIRROR = "http://mirror.invalid"
SOURCE = "Types: deb\nURIs: http://twice.invalid/x\nSuites: /\n"

SAMPLES: tuple[Step, ...] = (
    Directory(path=ROOT),
    File(path=f"{ROOT}/file", content="one\ntwo\n", mode=0o640),
    File(path=f"{ROOT}/secret", content=Secret(SENTINEL), mode=0o600),
    Symlink(path=f"{ROOT}/link", target="file"),
    Line(path=f"{ROOT}/lines", line="gamma = 3", owns="gamma"),
    Command(name="command", script=f": >{ROOT}/made", creates=f"{ROOT}/made"),
    BuiltOnce(name="built", folder=f"{ROOT}/built", recipe=': >"$FOLDER/x"', shown=("x",)),
    OneSource(path="/etc/apt/sources.list.d/mine.sources", content=SOURCE),
    AptKey(name="faults", url="file:///root/given/key.gpg"),
    Packages(names=("tree",)),
    Hold(names=("tree",)),
    Absent(names=("bc",), why="a test"),
    TimersRun(),
    User(name="faulty", home="/nonexistent"),
    Unit(name="faulty.service", enabled=True, active=True),
    Sysctl(name="faults", values={"net.ipv4.ip_default_ttl": "65"}, why="a test"),
    Initramfs(kernel="6.1.0-faults", files=("/root/given/key.gpg",)),
    BootOptions(words=("iommu=pt",)),
    NodeInitramfs(files=("/root/given/key.gpg",)),
    NotListed(names=("faulty",)),
    DriverLoaded(version="580.1"),
    ModulesBuilt(version="580.1"),
    CloudInitDone(),
    ClockSynchronised(),
    Peers(asked=True, granted=True),
    Venv(path=f"{ROOT}/venv"),
    PipInstall(venv=f"{ROOT}/venv", requirements=("faulty==1.0",), index=WHEELS),
    Download(source="http://127.0.0.1:8099", path=f"{ROOT}/model", size=1e3),
    AptMirror(url=MIRROR),  # the last one: afterwards no list can be fetched
)

ELSEWHERE = {
    "RebootForCards": "provision/test_provision_node_lab.py",
    "Awake": "provision/test_provision_node_lab.py",
    "Wheel": "provision/test_provision_lab.py",
    "Built": "provision/test_provision_lab.py",
}
"""Kinds that change a host in a test of their own: dressed as a Proxmox node, or with minutes of compiling."""

BEFORE = (Path(__file__).parent / "data/every_kind.sh").read_text()
AFTER = """\
systemctl stop given systemd-timesyncd
rm -rf /etc/apt/sources.list.d && cp -a /root/kept /etc/apt/sources.list.d
rm -f /etc/systemd/system/systemd-timesyncd.service /etc/modules-load.d/faults.conf /etc/default/grub /boot/initrd.img-*
for tool in update-grub depmod timedatectl update-initramfs modprobe nvidia-smi dkms modinfo cloud-init; do
  rm -f "/usr/local/sbin/$tool"
done
apt-mark unhold tree >/dev/null
"""
BY_NAME: dict[str, Callable[[str], Step]] = {
    "Directory": lambda name: Directory(path=f"{ROOT}/d/{name}"),
    "File": lambda name: File(path=f"{ROOT}/f/{name}", content=name),
    "Symlink": lambda name: Symlink(path=f"{ROOT}/l/{name}", target=name),
    "Line": lambda name: Line(path=f"{ROOT}/n/{name}", line="x = 1", owns="x"),
    "Command": lambda name: Command(
        name=name, script=f"install -D -- /dev/null {quote(f'{ROOT}/c/{name}')}", creates=f"{ROOT}/c/{name}"
    ),
    "BuiltOnce": lambda name: BuiltOnce(name=name, folder=f"{ROOT}/b/{name}", recipe=":", shown=(name,)),
    "OneSource": lambda name: OneSource(path=f"{ROOT}/{name}", content=f"URIs: http://x.invalid/{name}\n"),
    "AptKey": lambda name: AptKey(name=name, url=f"file:///root/{name}", proxy=name),
    "Packages": lambda name: Packages(names=(name,)),
    "Hold": lambda name: Hold(names=(name,)),
    "Absent": lambda name: Absent(names=(name,), why=name),
    "User": lambda name: User(name=name, home=f"/h/{name}", groups=(name,), shell=name),
    "Unit": lambda name: Unit(name=name, enabled=True, active=True),
    "Sysctl": lambda name: Sysctl(name=name, values={name: name}, why="x"),
    "Initramfs": lambda name: Initramfs(kernel=name, files=(f"{ROOT}/{name}",)),
    "BootOptions": lambda name: BootOptions(words=(name,)),
    "NodeInitramfs": lambda name: NodeInitramfs(files=(f"{ROOT}/{name}",)),
    "NotListed": lambda name: NotListed(names=(name,)),
    "DriverLoaded": lambda name: DriverLoaded(version=name),
    "ModulesBuilt": lambda name: ModulesBuilt(version=name),
    "Venv": lambda name: Venv(path=f"{ROOT}/v/{name}", python="/bin/false"),
    "PipInstall": lambda name: PipInstall(venv=f"{ROOT}/v/{name}", requirements=(name,), index=WHEELS, proxy=name),
    "Download": lambda name: Download(source=name, path=f"{ROOT}/m/{name}", size=1.0, revision=name, proxy=name),
    "AptMirror": lambda name: AptMirror(url=name),
}
"""A step that carries a name in every place where it takes one."""
NAMELESS = {"TimersRun", "CloudInitDone", "ClockSynchronised", "Peers"}


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        yield importlib.import_module(found.name)


def kinds() -> dict[str, type]:
    """Every class with questions and a plan, by its name; checks, whose plan can only be a verdict, left out."""
    found: dict[str, type] = {}
    for package in (runbooks.steps, runbooks.provision):
        for module in _modules(package):
            for cls in vars(module).values():
                if not inspect.isclass(cls) or cls.__module__ != module.__name__:
                    continue
                plan = getattr(cls, "plan", None)
                if plan and hasattr(cls, "questions") and inspect.signature(plan).return_annotation != "Verdict":
                    found[cls.__name__] = cls
    return found
