"""The NVIDIA driver as it runs: which module is loaded, and is it the open one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from runbooks.engine.step import Answers, Change, Diff, Question, Verdict, quote, shell
from runbooks.steps.packages import install

_LOADED = shell(
    "cat /sys/module/nvidia/version 2>/dev/null || "
    "nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1"
)
_RIVALS = shell("for name in nouveau nova_core; do [ ! -d /sys/module/$name ] || echo $name; done")
_BUILT = shell("""\
uname -r
built=$(find /lib/modules -name 'nvidia.ko*' 2>/dev/null | cut -d / -f 4 | sort -u)
[ -z "$built" ] || echo "$built"
[ -n "$built" ] || { echo; dkms status 2>/dev/null; }""")
"""The running kernel, the kernels that have an nvidia module, and what DKMS says (which is slow) where none has."""


@dataclass(frozen=True, kw_only=True)
class DriverLoaded:
    """The nvidia module that runs is the one that is installed.

    Where it was built for the running kernel, and nothing else has the cards, it is loaded now; anything else takes a
    reboot. `has_modules` is False in a container, whose modules are its machine's.
    """

    version: str
    has_modules: bool = True
    id: str = "driver loaded"

    def questions(self) -> tuple[Question, ...]:
        return (_LOADED, _RIVALS, _BUILT)

    def plan(self, answers: Answers) -> Change | Verdict | None:
        loaded, rivals = _said(answers, _LOADED), _said(answers, _RIVALS).split()
        if loaded == self.version:
            return None
        kernels, _, dkms = _said(answers, _BUILT).partition("\n\n")
        running, *built = kernels.splitlines() or [""]
        if self.has_modules and not built:
            return Verdict(
                ok=False,
                line="no nvidia module is built, for no kernel at all",
                details=tuple(dkms.splitlines()),
                next="tail -n 50 /var/lib/dkms/nvidia/*/build/make.log",
                page="driver-mismatch",
            )
        is_version = re.fullmatch(r"[0-9.]+", loaded) is not None
        if running in built and not is_version and not rivals:
            script = "modprobe nvidia\nmodprobe nvidia_uvm"
            diff = (Diff(f"load {self.version}"),)
            return Change(script=script, diff=diff, limit=120, next="journalctl -k -n 50", page="driver-mismatch")
        found = f"driver {loaded}" if is_version else " and ".join(rivals) or "no driver"
        diff = (Diff(f"{found} is loaded, {self.version} is installed"),)
        return Change(script="", diff=diff, reboot=True, limit=900, page="driver-mismatch")


def _said(answers: Answers, question: Question) -> str:
    return str(answers[question].get("out") or "").strip()


_LICENSE = shell("cat /proc/driver/nvidia/version 2>/dev/null; modinfo -F license nvidia 2>/dev/null")


@dataclass(frozen=True, kw_only=True)
class OpenModules:
    """The open kernel modules: the proprietary ones do not know Blackwell ('No devices were found')."""

    id: str = "open kernel modules"

    def questions(self) -> tuple[Question, ...]:
        return (_LICENSE,)

    def plan(self, answers: Answers) -> Verdict:
        said = _said(answers, _LICENSE)
        if "Open Kernel Module" in said or "Dual MIT/GPL" in said:
            return Verdict(ok=True, line="Dual MIT/GPL")
        details = tuple(line for line in said.splitlines() if line.strip())[:3]
        return Verdict(ok=False, line="the nvidia module is not the open one", details=details, page="driver-mismatch")


DISTRIBUTIONS = re.compile(r"-0ubuntu0[.~]|~deb[0-9]+u|~bpo")
"""Versions of the distributions' own builds: 580.95.05-0ubuntu0.24.04.2, 535.247.01-1~deb12u1. NVIDIA's end in -1."""

_DRIVER_PACKAGES = shell(
    "dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\\n' '*nvidia*' libcuda1 2>/dev/null | grep ^installed"
)


@dataclass(frozen=True, kw_only=True)
class OneOrigin:
    """No driver package of the distribution beside those of NVIDIA's repository: the two exclude each other.

    Their names and versions interleave, so apt mixes them until nothing can be installed any more
    (open-gpu-kernel-modules #537). They are named, not removed: somebody may be using them.
    """

    id: str = "one origin of the driver"

    def questions(self) -> tuple[Question, ...]:
        return (_DRIVER_PACKAGES,)

    def plan(self, answers: Answers) -> Verdict:
        rows = [line.split(" ") for line in _said(answers, _DRIVER_PACKAGES).splitlines()]
        foreign = [
            (row[1], row[2])
            for row in rows
            if len(row) == 3 and (DISTRIBUTIONS.search(row[2]) or row[1].startswith("linux-modules-nvidia-"))
        ]
        if not foreign:
            return Verdict(ok=True, line="no driver package of the distribution's own")
        names = " ".join(name for name, _ in foreign)
        return Verdict(
            ok=False,
            line="the distribution's driver packages are installed, and exclude those of driver.repository",
            details=tuple(f"{name} {version}" for name, version in foreign[:8]),
            next=f"apt-get purge --allow-change-held-packages {names}",
            page="driver-mismatch",
        )


_SECURE_BOOT = shell("""\
f=/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c
[ -e "$f" ] || { echo off; exit 0; }
[ "$(od -An -tu1 -j4 -N1 "$f" | tr -d ' ')" = 1 ] && echo on || echo off
[ ! -e /sys/module/nvidia ] || echo 'a module is loaded'
for key in /var/lib/shim-signed/mok/MOK.der /var/lib/dkms/mok.pub; do
  [ ! -e "$key" ] || mokutil --test-key "$key" 2>/dev/null
done
modinfo -F signer nvidia 2>/dev/null || :""")
"""The firmware's own variable: four bytes of attributes, then 1 for on. No mokutil needed."""


@dataclass(frozen=True, kw_only=True)
class SecureBoot:
    """Secure Boot is off, or the key that signs DKMS's modules is enrolled in the firmware, or they come signed."""

    id: str = "secure boot"

    def questions(self) -> tuple[Question, ...]:
        return (_SECURE_BOOT,)

    def plan(self, answers: Answers) -> Verdict:
        said = _said(answers, _SECURE_BOOT)
        if not said.startswith("on"):
            return Verdict(ok=True, line="off")
        if "a module is loaded" in said or "is already enrolled" in said or "Canonical" in said:
            return Verdict(ok=True, line="on, and the module's key is known to the firmware")
        return Verdict(
            ok=False,
            line="Secure Boot is on: the kernel will refuse DKMS's module ('Key was rejected by service')",
            details=(
                "either: switch it off in the VM (on Proxmox an EFI disk without pre-enrolled keys)",
                "or: mokutil --import /var/lib/dkms/mok.pub (of package dkms), reboot, confirm at the VM's console",
                "or: Ubuntu's signed linux-modules-nvidia packages in driver.packages, without NVIDIA's repository",
            ),
            next="mokutil --sb-state",
            page="driver-mismatch",
        )


_NEXT_KERNEL = shell("""\
uname -r
new=$(ls -1 /boot/vmlinuz-* 2>/dev/null | sed 's,^/boot/vmlinuz-,,' | sort -V | tail -n 1)
echo "$new"
[ -z "$(find "/lib/modules/$new" -name 'nvidia.ko*' 2>/dev/null | head -n 1)" ] || echo module
[ ! -e "/lib/modules/$new/build/Makefile" ] || echo headers""")


@dataclass(frozen=True, kw_only=True)
class NextKernel:
    """The kernel that will run after the next reboot has an nvidia module: an upgraded kernel without its headers
    boots into a host without a driver, at a time when nobody thinks of the driver.
    """

    id: str = "the next kernel's module"

    def questions(self) -> tuple[Question, ...]:
        return (_NEXT_KERNEL,)

    def plan(self, answers: Answers) -> Change | None:
        running, new, *there = [*_said(answers, _NEXT_KERNEL).splitlines(), "", ""][:4]
        if new in ("", running) or "module" in there:
            return None
        script = f"dkms autoinstall -k {quote(new)}"
        if "headers" not in there:
            script = f"{install([f'linux-headers-{new}'])}\n{script}"
        diff = Diff(f"{new} is installed beside {running}, and has no nvidia module")
        return Change(script=script, diff=(diff,), limit=3600, page="driver-mismatch")


@dataclass(frozen=True, kw_only=True)
class CudaKnows:
    """The toolkit's own assembler takes code for the card. An older one fails only when the server compiles kernels."""

    home: str
    arch: str  # compute capability without its dot: 120
    least: tuple[int, int] = (12, 9)  # FlashInfer's kernels for sm_120 (vllm #50705)

    @property
    def id(self) -> str:
        return f"CUDA for sm_{self.arch}"

    @property
    def _question(self) -> Question:
        return shell(f"""\
cd {quote(self.home)}/bin 2>/dev/null || {{ echo absent; exit 0; }}
./nvcc --version 2>&1 | grep -o 'release [0-9.]*'
printf '.version 7.0\\n.target sm_75\\n.address_size 64\\n.visible .entry k() {{ ret; }}\\n' |
  ./ptxas -arch=sm_{self.arch} -o /dev/null - 2>&1 && echo takes it""")

    def questions(self) -> tuple[Question, ...]:
        return (self._question,)

    def plan(self, answers: Answers) -> Verdict:
        said = _said(answers, self._question)
        match = re.search(r"release ([0-9]+)\.([0-9]+)", said)
        if said == "absent" or match is None:
            return self._no(f"no nvcc below {self.home}/bin", said)
        release = (int(match[1]), int(match[2]))
        name = f"CUDA {release[0]}.{release[1]}"
        if not said.endswith("takes it"):  # it says: Value 'sm_120' is not defined for option 'gpu-name'
            return self._no(f"ptxas of {name} does not know sm_{self.arch}", said)
        if release < self.least:
            return self._no(f"{name} is too old for FlashInfer's kernels: {self.least[0]}.{self.least[1]} or newer", "")
        return Verdict(ok=True, line=f"{name}, its ptxas takes code for sm_{self.arch}")

    def _no(self, line: str, said: str) -> Verdict:
        return Verdict(
            ok=False,
            line=line,
            details=tuple(said.splitlines()[:4]),
            next="cuda.package of the inventory names a newer one, and cuda.home where it stands",
            page="flash-attn-build",
        )
