"""The packages of NVIDIA's repository that the lab stands in for, as one table.

Names as in a public `dpkg -l` of a Debian host with NVIDIA's 595.58.03-1, and as the driver installation guide has them
(compute-only: nvidia-driver-cuda nvidia-kernel-open-dkms; all: nvidia-open). A driver's own packages need each other in
exactly their version, so asking for an older one without pinning its dependencies fails as on the real repository.
What only a desktop needs (GL, X11, Vulkan) is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
DRIVERS = ("580.126.20", "595.58.03")  # the second is there so that pinning and holding mean something
TOOLKIT, NVCC = "13.0.2", "13.0.88"
SMI = {
    f"usr/lib/lab-nvidia/smi/{path.name}": f"smi/{path.name}"
    for path in sorted((HERE / "smi").iterdir())
    if path.suffix in (".py", ".tsv", ".txt")
}


@dataclass(frozen=True, kw_only=True)
class Package:
    """`files`: path on the host -> path below this folder; `links`: path -> target; `scripts`: postinst … -> path.

    In files and scripts the words of `fill` stand for themselves between @ signs, e.g. @VERSION@.
    """

    name: str
    version: str
    summary: str
    depends: tuple[str, ...] = ()
    recommends: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    architecture: str = "amd64"
    files: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)
    fill: Mapping[str, str] = field(default_factory=dict)


def packages(kernel: str, key: Path) -> list[Package]:
    """All of them. `kernel`: `uname -r` here, which is that of guests too; `key`: the repository's public key."""
    table = [package for version in DRIVERS for package in driver(version, kernel)]
    return [*table, *toolkit(), keyring(key), headers(kernel)]


def driver(version: str, kernel: str) -> list[Package]:
    branch = version.split(".")[0]
    deb = f"{version}-1"
    same = f"(= {deb})"
    fill = {"VERSION": version}

    def package(name: str, summary: str, *depends: str, **more: object) -> Package:
        own = {"version": deb, "summary": summary, "depends": depends, "fill": fill, **more}
        return Package(name=name, **own)  # type: ignore[arg-type]

    def dkms(name: str, summary: str, license: str, other: str) -> Package:
        source = f"usr/src/nvidia-{version}"
        return package(
            name,
            summary,
            "dkms",
            f"linux-headers-{kernel}",  # only here: people install them by hand, for a kernel of the host's own
            f"firmware-nvidia-gsp {same}",
            f"nvidia-kernel-support {same}",
            conflicts=(other,),
            provides=(f"nvidia-kernel-{version}",),
            files={
                f"{source}/dkms.conf": "files/dkms.conf",
                f"{source}/Makefile": "files/module.mk",
                f"{source}/module.c": "files/module.c",
            },
            scripts={"postinst": "files/dkms.postinst", "prerm": "files/dkms.prerm"},
            fill={**fill, "LICENSE": license},
        )

    return [
        package(
            "nvidia-open",
            "NVIDIA Driver meta-package, Open GPU kernel modules, latest version",
            f"nvidia-open-{branch} (>= {version})",
        ),
        package(
            f"nvidia-open-{branch}",
            f"NVIDIA Driver meta-package, Open GPU kernel modules, {branch} branch only",
            f"nvidia-driver {same}",
            f"nvidia-driver-cuda {same}",
            f"nvidia-kernel-open-dkms {same}",
        ),
        package(
            "cuda-drivers",
            "NVIDIA Driver meta-package, proprietary kernel modules, latest version",
            f"cuda-drivers-{branch} (>= {version})",
        ),
        package(
            f"cuda-drivers-{branch}",
            f"NVIDIA Driver meta-package, proprietary kernel modules, {branch} branch only",
            f"nvidia-driver {same}",
            f"nvidia-driver-cuda {same}",
            f"nvidia-kernel-dkms {same}",
        ),
        package(
            "nvidia-driver",
            "NVIDIA metapackage",
            f"nvidia-driver-libs {same}",
            f"nvidia-kernel-dkms {same} | nvidia-kernel-{version}",
            f"nvidia-kernel-support {same}",
            "nvidia-modprobe",
        ),
        package(
            "nvidia-driver-libs",
            "NVIDIA metapackage (OpenGL/GLX/EGL/GLES libraries)",
        ),
        package(
            "nvidia-driver-cuda",
            "NVIDIA driver CUDA integration components",
            f"libcuda1 {same}",
            f"libnvidia-ml1 {same}",
            f"libnvidia-cfg1 {same}",
            f"nvidia-persistenced {same}",
            f"nvidia-modprobe (>= {version})",
            "python3",
            files={"usr/bin/nvidia-smi": "files/nvidia-smi", **SMI},
            scripts={"prerm": "files/driver-cuda.prerm"},
        ),
        package(
            "libcuda1",
            "NVIDIA CUDA Driver Library",
            f"libnvidia-ptxjitcompiler1 {same}",
            f"libnvidia-nvvm4 {same}",
        ),
        package(
            "libnvidia-ml1",
            "NVIDIA Management Library (NVML) runtime library",
            files={"usr/share/lab-nvidia/nvml-version": "files/version"},
        ),
        package("libnvidia-cfg1", "NVIDIA binary OpenGL/GLX configuration library"),
        package("libnvidia-ptxjitcompiler1", "NVIDIA PTX JIT Compiler library"),
        package("libnvidia-nvvm4", "NVIDIA NVVM Compiler library"),
        package("firmware-nvidia-gsp", "NVIDIA GSP firmware", architecture="all"),
        package(
            "nvidia-kernel-support",
            "NVIDIA binary kernel module support files",
            "nvidia-modprobe",
            "kmod",
            files={
                "lib/systemd/system/lab-nvidia-module.service": "files/lab-nvidia-module.service",
                "usr/lib/lab-nvidia/load-module": "files/load-module",
                "etc/modprobe.d/lab-nvidia.conf": "files/modprobe.conf",
            },
            scripts={"postinst": "files/kernel-support.postinst", "prerm": "files/kernel-support.prerm"},
        ),
        dkms(
            "nvidia-kernel-open-dkms",
            "NVIDIA binary kernel module DKMS source open flavor",
            "Dual MIT/GPL",
            "nvidia-kernel-dkms",
        ),
        dkms("nvidia-kernel-dkms", "NVIDIA binary kernel module DKMS source", "NVIDIA", "nvidia-kernel-open-dkms"),
        package("nvidia-modprobe", "utility to load NVIDIA kernel modules and create device nodes"),
        package(
            "nvidia-persistenced",
            "daemon to maintain persistent software state in the NVIDIA driver",
            f"libnvidia-cfg1 {same}",
            files={
                "usr/bin/nvidia-persistenced": "files/nvidia-persistenced",
                "lib/systemd/system/nvidia-persistenced.service": "files/nvidia-persistenced.service",
            },
            scripts={"postinst": "files/persistenced.postinst", "prerm": "files/persistenced.prerm"},
        ),
    ]


def toolkit() -> list[Package]:
    """cuda-toolkit-13-0, with the one tool of it that the lab needs: nvcc."""
    home = "usr/local/cuda-13.0"
    meta, tools = f"{TOOLKIT}-1", f"{NVCC}-1"
    return [
        Package(
            name="cuda-toolkit-13-0",
            version=meta,
            summary="CUDA Toolkit 13.0 meta-package",
            depends=("cuda-compiler-13-0 (>= 13.0.2)", "cuda-libraries-dev-13-0 (>= 13.0.2)"),
        ),
        Package(
            name="cuda-compiler-13-0",
            version=meta,
            summary="CUDA compiler",
            depends=("cuda-nvcc-13-0 (>= 13.0.88)",),
        ),
        Package(
            name="cuda-libraries-dev-13-0",
            version=meta,
            summary="CUDA Libraries 13.0 development meta-package",
            depends=("cuda-cudart-dev-13-0 (>= 13.0.96)",),
        ),
        Package(
            name="cuda-cudart-dev-13-0",
            version="13.0.96-1",
            summary="CUDA Runtime native dev links, headers",
            depends=("cuda-toolkit-13-0-config-common",),
        ),
        Package(
            name="cuda-nvcc-13-0",
            version=tools,
            summary="CUDA nvcc",
            depends=("cuda-toolkit-13-0-config-common", "python3", "build-essential"),
            files={f"{home}/bin/nvcc": "files/nvcc", f"{home}/bin/ptxas": "files/ptxas"},
            fill={"VERSION": NVCC},
        ),
        Package(
            name="cuda-toolkit-13-0-config-common",
            version="13.0.96-1",
            summary="Common config package for CUDA Toolkit 13.0",
            architecture="all",
            files={f"{home}/version.json": "files/version.json"},
            scripts={"postinst": "files/toolkit.postinst", "prerm": "files/toolkit.prerm"},
            fill={"VERSION": NVCC},
        ),
    ]


def keyring(key: Path) -> Package:
    """The real one also brings the list file of NVIDIA's repository; the lab's address is not known here."""
    return Package(
        name="cuda-keyring",
        version="1.1-1",
        summary="GPG keyring for the CUDA repository",
        architecture="all",
        files={"usr/share/keyrings/cuda-archive-keyring.gpg": str(key)},
    )


def headers(kernel: str) -> Package:
    """Debian has no headers of the kernel that guests share with this machine; DKMS only looks if they are there."""
    source = f"usr/src/linux-headers-{kernel}"
    return Package(
        name=f"linux-headers-{kernel}",
        version="0~lab1",  # older than a real one of this name
        summary=f"Header files for Linux {kernel}",
        files={
            f"{source}/Makefile": "files/headers.mk",
            f"{source}/.config": "files/kernel.config",
            f"{source}/include/generated/autoconf.h": "files/autoconf.h",
        },
        links={f"lib/modules/{kernel}/build": f"/{source}"},
    )
