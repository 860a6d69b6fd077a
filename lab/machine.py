"""This machine, as far as guests depend on it: what it lacks for them, and what they take over from it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runbooks.engine.errors import RunbookError, UsageError

SUITE = "bookworm"  # what guests run: Debian 12

_TOOLS = {  # command -> Debian package
    "debootstrap": "debootstrap",
    "systemd-nspawn": "systemd-container",
    "ip": "iproute2",
    "iptables": "iptables",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "unshare": "util-linux",
}


def cache() -> Path:
    """Where everything of the lab lives, outside the checkout."""
    named = os.environ.get("RUNBOOKS_LAB_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "runbooks-lab"


def why_no_guests() -> str | None:
    """The one sentence that says why guests cannot be started here, or None."""
    if os.geteuid() != 0:
        return "lab guests need root (systemd-nspawn, a bridge, overlay mounts)"
    missing = sorted({package for command, package in _TOOLS.items() if shutil.which(command) is None})
    return f"lab guests need packages that are not installed: {' '.join(missing)}" if missing else None


def require_guests() -> None:
    reason = why_no_guests()
    if reason:
        cure = "sudo ./dev setup" if os.geteuid() else "./dev setup"
        raise UsageError(reason, next=cure)


def sh(*argv: str, check: bool = True, stdin: str = "") -> str:
    """Run one command of this machine; its standard output, or an error with its last words."""
    done = subprocess.run(argv, capture_output=True, text=True, input=stdin, check=False)
    if check and done.returncode != 0:
        raise RunbookError(
            f"lab: {argv[0]} ended with {done.returncode}",
            details=[" ".join(argv), *(done.stderr or done.stdout).strip().splitlines()[-5:]],
        )
    return done.stdout


@dataclass(frozen=True)
class Mirror:
    """Debian's archive as this machine reaches it. None: the installer's own default."""

    archive: str | None
    security: str | None


def mirror(etc: Path = Path("/etc")) -> Mirror:
    """Read from the machine's apt sources; a machine that is not Debian has none to offer."""
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)', (etc / "os-release").read_text(), re.MULTILINE))
    if release.get("ID") != "debian":
        return Mirror(None, None)
    codename = release.get("VERSION_CODENAME", "")
    entries = list(_apt_entries(etc / "apt"))
    return Mirror(
        archive=next((uri for uri, suites in entries if codename in suites), None),
        security=next((uri for uri, suites in entries if f"{codename}-security" in suites), None),
    )


def _apt_entries(apt: Path) -> Iterator[tuple[str, list[str]]]:
    for path in [apt / "sources.list", *sorted(apt.glob("sources.list.d/*.list"))]:
        for line in path.read_text().splitlines() if path.exists() else []:
            if found := re.match(r"deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+(\S+)", line):
                yield found[1], [found[2]]
    for path in sorted(apt.glob("sources.list.d/*.sources")):
        for stanza in re.split(r"\n\s*\n", path.read_text()):
            fields = dict(re.findall(r"^(\w[\w-]*):\s*(.*)$", stanza, re.MULTILINE))
            if "deb" in fields.get("Types", "").split() and fields.get("Enabled", "yes") != "no":
                for uri in fields.get("URIs", "").split():
                    yield uri, fields.get("Suites", "").split()


def lend_settings(tree: Path) -> None:
    """What a guest needs to reach the registries as this machine does: names, certificates, apt and pip settings."""
    _copy(_resolv_conf(), tree / "etc/resolv.conf")
    _copy(Path("/etc/ssl/certs/ca-certificates.crt"), tree / "etc/ssl/certs/ca-certificates.crt")
    _copy(Path("/etc/pip.conf"), tree / "etc/pip.conf")
    for path in Path("/etc/xdg/pip").glob("*"):
        _copy(path, tree / "etc/xdg/pip" / path.name)
    settings = sh("apt-config", "dump").splitlines() if shutil.which("apt-config") else []
    wanted = re.compile(r"Acquire::(https?::.*Proxy|https?::Proxy|Check-Valid-Until|Check-Date|https?::CaInfo)\b")
    lines = ['Acquire::Languages "none";', *(line for line in settings if wanted.match(line))]
    write(tree / "etc/apt/apt.conf.d/90lab", "\n".join(lines) + "\n")


def _resolv_conf() -> Path:
    """systemd-resolved's stub listens on the machine's loopback, which is not a guest's: take the file behind it."""
    behind = Path("/run/systemd/resolve/resolv.conf")
    return behind if behind.exists() else Path("/etc/resolv.conf")


def _copy(source: Path, target: Path) -> None:
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        shutil.copyfile(source, target)


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(mode)


def create_key(path: Path, *, comment: str) -> None:
    """An ed25519 key pair for ssh, without passphrase."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path))
