"""The NVIDIA driver as it runs: which module is loaded, and is it the open one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from runbooks.engine.step import Answers, Change, Diff, Question, Verdict, quote, shell
from runbooks.steps.explain import APT, explained
from runbooks.steps.packages import APT_GET

_LOADED = shell(
    "cat /sys/module/nvidia/version 2>/dev/null || "
    "nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>&1 | head -n 1",
    deadline=15,
)
_RIVALS = shell("for name in nouveau nova_core; do [ ! -d /sys/module/$name ] || echo $name; done")
_LOADABLE = shell("modinfo -F version nvidia 2>/dev/null | head -n 1")


@dataclass(frozen=True, kw_only=True)
class DriverLoaded:
    """The nvidia module that runs is the one that is installed.

    Where nothing else has the cards and none is loaded, it is loaded now; anything else takes a reboot. What no reboot
    mends by itself, cards that do not answer, is told at once.
    """

    version: str
    id: str = "driver loaded"
    accepts_silence: bool = True

    def questions(self) -> tuple[Question, ...]:
        return (_LOADED, _RIVALS, _LOADABLE)

    def plan(self, answers: Answers) -> Change | Verdict | None:
        loaded, rivals = _said(answers, _LOADED), _said(answers, _RIVALS).split()
        if answers[_LOADED].get("no answer"):
            return Verdict(
                ok=False,
                line="nvidia-smi does not answer: a card or its GSP firmware hangs",
                next="journalctl -k | grep -i xid",
                page="gpu-lost",
            )
        if loaded == self.version or _CARDS_GONE.search(loaded):
            return None  # how many cards there are is judged by the check of the GPUs
        is_version = re.fullmatch(r"[0-9.]+", loaded) is not None
        if _said(answers, _LOADABLE) == self.version and not (is_version or rivals or "mismatch" in loaded):
            script = "modprobe nvidia\nmodprobe nvidia_uvm"
            diff = (Diff(f"load {self.version}"),)
            return Change(script=script, diff=diff, limit=120, next="journalctl -k -n 50", page="driver-mismatch")
        other = "another driver" if "mismatch" in loaded else "no driver"
        found = f"driver {loaded}" if is_version else " and ".join(rivals) or other
        diff = (Diff(f"{found} is loaded, {self.version} is installed"),)
        return Change(script="", diff=diff, reboot=True, limit=900, page="driver-mismatch")


_CARDS_GONE = re.compile(r"No devices were found|Unable to determine the device handle|GPU is lost")
"""What nvidia-smi says where a module is loaded, and cards are not there."""


def _said(answers: Answers, question: Question) -> str:
    return str(answers[question].get("out") or "").strip()


_VERSION = """\
rb_version() {
  modinfo -k "$1" -F version nvidia 2>/dev/null || modinfo -k "$1" -F version nvidia-current 2>/dev/null || :
}
"""
"""Of a kernel's module by its file; Debian calls its own nvidia-current."""

_KERNELS = shell(
    _VERSION
    + """\
new=$(ls -1 /boot/vmlinuz-* 2>/dev/null | sed 's,^/boot/vmlinuz-,,' | sort -V | tail -n 1)
for kernel in $(printf '%s\\n' "$(uname -r)" $new | sort -u); do
  echo "$kernel $(rb_version "$kernel" | head -n 1)"
done""",
    deadline=20,
)


@dataclass(frozen=True, kw_only=True)
class ModulesBuilt:
    """The running kernel and the newest one, which the next reboot starts, have this version's nvidia module.

    An upgraded kernel without its headers boots into a host without a driver, at a time when nobody thinks of it.
    """

    version: str
    id: str = "module of every kernel that runs"

    def questions(self) -> tuple[Question, ...]:
        return (_KERNELS,)

    def plan(self, answers: Answers) -> Change | None:
        """modinfo finds modules by their file, so one that was deleted is none, whatever DKMS believes."""
        rows = [line.partition(" ") for line in _said(answers, _KERNELS).splitlines()]
        lacking = [(kernel, version) for kernel, _, version in rows if version != self.version]
        if not lacking:
            return None
        diff = tuple(
            Diff(f"kernel {kernel}: nvidia {version or 'absent'} -> {self.version}") for kernel, version in lacking
        )
        script = explained(
            "\n".join([_VERSION + _MODULE, *(f"rb_module {quote(kernel)} {self.version}" for kernel, _ in lacking)]),
            APT,
        )
        return Change(script=script, diff=diff, limit=3600, page="driver-mismatch", next=f"dkms status; {_MAKE_LOG}")


_MAKE_LOG = "tail -n 50 /var/lib/dkms/nvidia*/*/build/make.log"
_MODULE = f"""\
rb_module() {{
  signed=$(dpkg-query -W -f '${{db:Status-Status}} ${{Package}}\\n' "linux-modules-nvidia-*-$1" 2>/dev/null |
    sed -n 's/^installed //p')
  if [ -n "$signed" ]; then {APT_GET} install --reinstall -- $signed
  else
    [ -e "/lib/modules/$1/build/Makefile" ] || {APT_GET} --no-install-recommends install -- "linux-headers-$1"
    for rb_source in $(dkms status | sed -nE "s#^(nvidia[^/,]*)(/|, )($2)[,:].*#\\1/\\3#p" | sort -u); do
      dkms install --force "$rb_source" -k "$1"
    done
  fi
  depmod -- "$1"
  if [ -z "$(rb_version "$1")" ]; then
    echo "no nvidia module came of it for kernel $1: no driver package brought DKMS sources or that kernel's modules"
    exit 1
  fi
}}"""
"""Precompiled modules (Ubuntu's signed linux-modules-nvidia-…) come again as a package, DKMS's are compiled again."""


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
_NO_DRIVER = re.compile(r"nvidia-(container|modprobe|settings|prime|ctk)|libnvidia-container|linux-|firmware-")


@dataclass(frozen=True, kw_only=True)
class OneOrigin:
    """All driver packages are NVIDIA's, or all the distribution's: the two exclude each other.

    Their names and versions interleave, so apt mixes them until nothing can be installed any more
    (open-gpu-kernel-modules #537). They are named, not removed: somebody may be using them.
    """

    origin: Literal["nvidia", "distribution"] = "nvidia"
    id: str = "one origin of the driver"

    def questions(self) -> tuple[Question, ...]:
        return (_DRIVER_PACKAGES,)

    def plan(self, answers: Answers) -> Verdict:
        rows = [line.split(" ") for line in _said(answers, _DRIVER_PACKAGES).splitlines()]
        pairs = [(row[1], row[2]) for row in rows if len(row) == 3]
        foreign = [pair for pair in pairs if self._is_foreign(*pair)]
        mine, theirs = "NVIDIA's repository", "the distribution"
        if self.origin == "distribution":
            mine, theirs = theirs, mine
        if not foreign:
            return Verdict(ok=True, line=f"{mine}: no driver package of {theirs}")
        names = " ".join(name for name, _ in foreign)
        return Verdict(
            ok=False,
            line=f"driver packages of {theirs} are installed, and exclude those of {mine}",
            details=tuple(f"{name} {version}" for name, version in foreign[:8]),
            next=f"apt-get purge --allow-change-held-packages {names}   (or the other driver.origin)",
            page="driver-mismatch",
        )

    def _is_foreign(self, name: str, version: str) -> bool:
        """Debian's versions and NVIDIA's look alike, so among the distribution's only Ubuntu's can be told apart."""
        its_own = DISTRIBUTIONS.search(version) is not None or name.startswith("linux-modules-nvidia-")
        if self.origin == "nvidia":
            return its_own
        return "ubuntu" in version and not its_own and not _NO_DRIVER.match(name)


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
                "or: driver.origin: distribution with Ubuntu's signed linux-modules-nvidia packages (inventory.yaml)",
            ),
            next="mokutil --sb-state",
            page="driver-mismatch",
        )


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
