"""The kernel's command line and the initramfs of a Proxmox node, in whichever boot loader really boots it.

Editing the other loader's file is the classic that changes nothing (pve-docs, system booting).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from runbooks import paths
from runbooks.engine.step import Answers, Change, Diff, Question, Verdict, quote, shell
from runbooks.steps.files import unified, write_file

GRUB, SYSTEMD_BOOT = "grub", "systemd-boot"
GRUB_FILE, CMDLINE_FILE = "/etc/default/grub", "/etc/kernel/cmdline"
_VARIABLE = "GRUB_CMDLINE_LINUX_DEFAULT"
REFRESH = {GRUB: "update-grub", SYSTEMD_BOOT: "proxmox-boot-tool refresh"}
_STAMP = f"{paths.STATE}/node-{{}}"  # what was written into the loader, or packed, and is not visible there

_LOADER = shell(
    """\
echo '== efi'; efibootmgr -v 2>/dev/null
echo '== tool'; [ ! -s /etc/kernel/proxmox-boot-uuids ] || proxmox-boot-tool status 2>/dev/null
echo '== grub'; [ ! -d /boot/grub ] || echo there
echo '== vendor'; grep -m1 '^vendor_id' /proc/cpuinfo""",
    deadline=20,
)
_FILES = shell(
    f"cat {GRUB_FILE} 2>/dev/null; echo '== cmdline'; cat {CMDLINE_FILE} 2>/dev/null; "
    f"echo '== stamp'; cat {_STAMP.format('boot')} 2>/dev/null"
)


def loader(said: str) -> str | None:
    """The loader that booted this system: what the firmware says first, then Proxmox's own tool, then what is there."""
    parts = _parts(said)
    efi = parts.get("efi", "")
    current = re.search(r"^BootCurrent: (\w+)", efi, re.MULTILINE)
    entry = re.search(rf"^Boot{current[1]}\*? (.*)$", efi, re.MULTILINE) if current else None
    if entry is not None:
        if re.search(r"systemd-boot", entry[1], re.IGNORECASE):
            return SYSTEMD_BOOT
        if re.search(r"grub|shim", entry[1], re.IGNORECASE):
            return GRUB
    configured = set(re.findall(r"is configured with: (\w+)", parts.get("tool", "")))
    if configured == {"uefi"}:
        return SYSTEMD_BOOT
    if configured == {"grub"} or (not configured and "there" in parts.get("grub", "")):
        return GRUB
    return None


def is_intel(said: str) -> bool:
    return "GenuineIntel" in _parts(said).get("vendor", "")


@dataclass(frozen=True, kw_only=True)
class BootOptions:
    """These words on the kernel's command line, and no other word of the same key; `intel` only on Intel's."""

    words: tuple[str, ...]
    intel: tuple[str, ...] = ()
    id: str = "kernel command line"

    def questions(self) -> tuple[Question, ...]:
        return (_LOADER, _FILES)

    def wanted(self, answers: Answers) -> tuple[str, ...]:
        return (*(self.intel if is_intel(_said(answers, _LOADER)) else ()), *self.words)

    def plan(self, answers: Answers) -> Change | Verdict | None:
        which = loader(_said(answers, _LOADER))
        if which is None:
            return Verdict(
                ok=False,
                line="it cannot be told which boot loader starts this node",
                details=tuple(_said(answers, _LOADER).splitlines()[:8]),
                next="efibootmgr -v; proxmox-boot-tool status",
                page="node-prepare",
            )
        grub, _, rest = f"{_said(answers, _FILES)}\n".partition("== cmdline\n")
        cmdline, _, stamp = rest.partition("== stamp\n")
        wanted = self.wanted(answers)
        path, old = (GRUB_FILE, grub) if which == GRUB else (CMDLINE_FILE, cmdline)
        new = edit_grub(old, wanted) if which == GRUB else edit_cmdline(old, wanted)
        mark = f"{which} {' '.join(wanted)}"
        if new == old and stamp.strip() == mark:
            return None
        write, _ = write_file(path, new)
        keep, _ = write_file(_STAMP.format("boot"), mark + "\n")
        line = f"{which}: {' '.join(wanted)}" if new != old else f"{which}: written, and not yet taken over"
        script = "\n".join([*([write] if new != old else []), REFRESH[which], keep])
        return Change(script=script, diff=(Diff(line, unified(path, old, new)),), limit=600, page="node-prepare")


def edit_grub(text: str, words: tuple[str, ...]) -> str:
    """The last assignment counts, as in the shell; a file without one gets it at its end."""
    lines = text.splitlines()
    mine = [number for number, line in enumerate(lines) if re.match(rf"\s*{_VARIABLE}=", line)]
    if not mine:
        return "\n".join([*lines, f'{_VARIABLE}="{" ".join(words)}"']) + "\n"
    value = lines[mine[-1]].partition("=")[2].strip()
    quoted = value[:1] in "\"'" and len(value) > 1
    old = value[1:].partition(value[0])[0] if quoted else value
    lines[mine[-1]] = f'{_VARIABLE}="{_merged(old, words)}"'
    return "\n".join(lines) + "\n"


def edit_cmdline(text: str, words: tuple[str, ...]) -> str:
    """One line only: proxmox-boot-tool takes the first."""
    return _merged(next(iter(text.splitlines()), ""), words) + "\n"


def _merged(old: str, words: tuple[str, ...]) -> str:
    """Ours in their order at the end; a word of the same key is replaced."""
    if all(word in old.split() for word in words) and not _rivals(old, words):
        return old.strip()
    keys = {word.partition("=")[0] for word in words}
    kept = [word for word in old.split() if word.partition("=")[0] not in keys]
    return " ".join([*kept, *words])


def _rivals(old: str, words: tuple[str, ...]) -> list[str]:
    keys = {word.partition("=")[0] for word in words}
    return [word for word in old.split() if word.partition("=")[0] in keys and word not in words]


@dataclass(frozen=True, kw_only=True)
class NodeInitramfs:
    """The initramfs of every kernel holds these files as they are now: the next boot may take any of them."""

    files: tuple[str, ...]
    id: str = "initramfs of every kernel"

    @property
    def _question(self) -> Question:
        names = " ".join(map(quote, self.files))
        return shell(f"cat {_STAMP.format('initramfs')} 2>/dev/null; echo ==; sha256sum -- {names} 2>/dev/null")

    def questions(self) -> tuple[Question, ...]:
        return (self._question, _LOADER)

    def plan(self, answers: Answers) -> Change | None:
        stamp, _, now = f"{_said(answers, self._question)}\n".partition("==\n")
        if now.strip() and stamp.strip() == now.strip():
            return None
        names = " ".join(map(quote, self.files))
        refresh = [REFRESH[SYSTEMD_BOOT]] if loader(_said(answers, _LOADER)) == SYSTEMD_BOOT else []
        keep = f"mkdir -p -- {paths.STATE}\nsha256sum -- {names} >{_STAMP.format('initramfs')}"
        script = "\n".join(["update-initramfs -u -k all", *refresh, keep])
        return Change(script=script, diff=(Diff("packed anew"),), limit=1200, page="node-prepare")


def _said(answers: Answers, question: Question) -> str:
    return str(answers[question].get("out") or "")


def _parts(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("== "):
            name = line[3:].strip()
        else:
            found[name] = f"{found.get(name, '')}{line}\n"
    return found
