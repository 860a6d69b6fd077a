"""The GPU driver."""

from __future__ import annotations

import re
from dataclasses import replace
from urllib.parse import urlsplit

from runbooks.engine.facts import Facts
from runbooks.engine.step import Stage, Step
from runbooks.inventory.shape import AptRepository, Driver, Inventory
from runbooks.provision.cards import CardState, ModuleOptions, Peers, Xids
from runbooks.steps.checks import Gpus
from runbooks.steps.files import File
from runbooks.steps.kernel import Initramfs, blacklist, modprobe
from runbooks.steps.nvidia import CudaKnows, DriverLoaded, ModulesBuilt, OneOrigin, OpenModules, SecureBoot
from runbooks.steps.packages import Absent, AptKey, Hold, OneSource, Packages, apt_pin, apt_source
from runbooks.steps.services import Unit

PINNED = "*nvidia* libcuda1 libcudadebugger1 libnv*"


def stages(facts: Facts, inventory: Inventory) -> list[Stage]:
    """The open kernel modules from one origin, pinned and held; nouveau and nova kept off; a reboot only when the
    module that is loaded is not the one that is installed; then every card is looked at.
    """
    driver, tags = inventory.driver, frozenset({"driver"})
    key, source = repository(facts, driver.repository, proxy=inventory.proxy)
    only = OneSource(path=source.path, content=str(source.content))
    rivals = blacklist("nouveau", "nova_core", "nova_drm", why="They bind the cards first, and nvidia finds none.")
    options = [
        modprobe(name, (line,), why="Option of the nvidia modules.") for name, line in driver.module_options.items()
    ]
    held = Hold(names=tuple(name for name in driver.packages if not _follows_the_kernel(name)))
    fabric = ("nvidia-fabricmanager", f"nvidia-fabricmanager-{driver.version.partition('.')[0]}")
    loaded: list[Step] = [DriverLoaded(version=driver.version)]
    if not facts.is_container:  # a container has no modules of its own to look at
        loaded.append(OpenModules())
    return [
        Stage(
            "driver sources",
            (SecureBoot(), OneOrigin(origin=driver.origin), only, key, source, pin(driver), rivals, *options),
            tags,
        ),
        Stage(
            "driver packages",
            (
                *_kernel_side(facts, [rivals.path, *(o.path for o in options)]),
                _packages(inventory),
                held,
                Absent(names=fabric, why="it is for machines with NVSwitch, and fails on all others"),
                *([] if facts.is_container else [ModulesBuilt(version=driver.version)]),
            ),
            tags,
        ),
        Stage(
            "driver loaded",
            (
                *loaded,
                Gpus(wanted=inventory.gpus, driver=driver.version),
                Unit(name="nvidia-persistenced.service", enabled=True, active=True),
                CardState(wanted=inventory.gpus),
                ModuleOptions(lines=tuple(driver.module_options.values())),
                Peers(),
                Xids(),
            ),
            tags,
        ),
    ]


def cuda_stages(inventory: Inventory) -> list[Stage]:
    """The toolkit beside the driver: kernels are compiled on the host, and need a ptxas that knows sm_120."""
    packages = Packages(names=(inventory.cuda.package,), page="driver-mismatch")
    known = CudaKnows(home=inventory.cuda.home, arch=inventory.gpus.arch.replace(".", ""))
    return [Stage("cuda", (packages, known), frozenset({"cuda"}))]


def repository(facts: Facts, repository: AptRepository, *, proxy: str | None) -> tuple[AptKey, File]:
    """NVIDIA names its repositories debian12 and ubuntu2404."""
    places = {"os": f"{facts.os_id}{facts.os_version.replace('.', '')}", "arch": facts.arch}
    key = AptKey(name="nvidia", url=repository.key_url.format(**places), sha256=repository.key_sha256, proxy=proxy)
    return key, apt_source("nvidia", repository, key, url=repository.url.format(**places))


def pin(driver: Driver) -> File:
    """One version for modules and libraries; where the distribution has the driver, NVIDIA's repository keeps CUDA."""
    one = apt_pin("nvidia", PINNED, f"{driver.version}*", why="One driver version for modules and libraries.")
    if driver.origin == "nvidia":
        return one
    host = urlsplit(driver.repository.url).hostname
    never = f"Package: {PINNED}\nPin: origin {host}\nPin-Priority: -1\n"
    return replace(one, content=f"# The driver is the distribution's (driver.origin).\n{never}\n{one.content}")


def _packages(inventory: Inventory) -> Packages:
    driver = inventory.driver
    names = tuple(name if _follows_the_kernel(name) else f"{name}={driver.version}*" for name in driver.packages)
    return Packages(names=names, family=tuple(PINNED.split()), limit=3600, page="driver-mismatch")


def _follows_the_kernel(package: str) -> bool:
    """Ubuntu's precompiled modules have the kernel's version, and have to come with each of its upgrades."""
    return package.startswith("linux-modules-nvidia-")


def _kernel_side(facts: Facts, modprobe_files: list[str]) -> list[Step]:
    """Headers first: without them DKMS builds nothing, and apt calls that a success."""
    if facts.is_container:
        return []
    return [Packages(names=headers(facts)), Initramfs(kernel=facts.kernel, files=tuple(modprobe_files))]


def headers(facts: Facts) -> tuple[str, ...]:
    """Headers of the running kernel, and the metapackage that brings those of every later one.

    6.12.48+deb13-cloud-amd64 -> linux-headers-cloud-amd64; 6.8.0-63-generic -> linux-headers-generic
    """
    flavour = re.sub(r"^[0-9][^-]*-(?:[0-9]+-)?", "", facts.kernel)
    return (f"linux-headers-{facts.kernel}", f"linux-headers-{flavour}")
