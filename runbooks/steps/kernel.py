"""Kernel modules and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runbooks.engine.step import Answers, Change, Diff, Question, Verdict, quote, shell
from runbooks.steps import ask
from runbooks.steps.files import File


def modprobe(name: str, lines: tuple[str, ...], *, why: str) -> File:
    """A file of /etc/modprobe.d."""
    return File(path=f"/etc/modprobe.d/{name}.conf", content="\n".join((f"# {why}", *lines)) + "\n")


def blacklist(*modules: str, why: str) -> File:
    """`install ... /bin/false` as well: a blacklist alone does not stop a module that another one asks for."""
    lines = [line for name in modules for line in (f"blacklist {name}", f"install {name} /bin/false")]
    return modprobe(f"blacklist-{modules[0]}", tuple(lines), why=why)


@dataclass(frozen=True, kw_only=True)
class Initramfs:
    """The running kernel's initramfs holds these modprobe files as they are now (it is younger than each of them)."""

    kernel: str
    files: tuple[str, ...]

    @property
    def id(self) -> str:
        return f"initramfs {self.kernel}"

    @property
    def _question(self) -> Question:
        """By inode change time: a rename keeps a file's modification time, and would hide a change."""
        image = quote(f"/boot/initrd.img-{self.kernel}")
        files = " ".join(map(quote, self.files))
        return shell(f"[ -e {image} ] || exit 0\nfind {files} -cnewer {image} 2>/dev/null")

    def questions(self) -> tuple[Question, ...]:
        return (self._question,)

    def plan(self, answers: Answers) -> Change | None:
        newer = str(answers[self._question].get("out") or "").splitlines()
        if not newer:
            return None
        script = f"update-initramfs -u -k {quote(self.kernel)}"
        return Change(script=script, diff=tuple(Diff(f"older than {name}") for name in newer))


@dataclass(frozen=True, kw_only=True)
class Sysctl:
    """Kernel settings, now and after a reboot."""

    name: str
    values: Mapping[str, str]
    why: str

    @property
    def id(self) -> str:
        return f"sysctl {self.name}"

    @property
    def _file(self) -> File:
        lines = [f"# {self.why}", *(f"{key} = {value}" for key, value in self.values.items())]
        return File(path=f"/etc/sysctl.d/60-{self.name}.conf", content="\n".join(lines) + "\n")

    def questions(self) -> tuple[Question, ...]:
        return (*self._file.questions(), *map(ask.sysctl, self.values))

    def plan(self, answers: Answers) -> Change | Verdict | None:
        diff: list[Diff] = []
        scripts: list[str] = []
        file = self._file.plan(answers)
        if isinstance(file, Verdict):
            return file
        if file is not None:
            scripts.append(file.script)
            diff += file.diff
        for key, value in self.values.items():
            now = answers[ask.sysctl(key)].get("value")
            if now != value:
                diff.append(Diff(f"{key} {now or 'absent'} -> {value}"))
                scripts.append(f"printf '%s\\n' {quote(value)} >{quote('/proc/sys/' + key.replace('.', '/'))}")
        return Change(script="\n".join(scripts), diff=tuple(diff)) if scripts else None
