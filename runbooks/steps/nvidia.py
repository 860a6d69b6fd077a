"""The NVIDIA driver as it runs: which module is loaded, and is it the open one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from runbooks.engine.step import Answers, Change, Diff, Question, Verdict, shell

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
