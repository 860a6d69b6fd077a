"""The base tree that all guests stand on: a small Debian 12, much as a cloud image has it, made once and kept."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from lab.machine import SUITE, cache, lend_settings, mirror, write
from lab.network import locked
from runbooks.engine.errors import RunbookError

Progress = Callable[[str], None]

PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "openssh-server",
    "sudo",
    "iproute2",
    "ca-certificates",
    "python3",
)
# In apt's own cache, not installed: provisioning installs them, and need not fetch them for each new guest.
WARM = (
    "build-essential", "curl", "dkms", "gnupg", "kmod", "libnuma1",
    "numactl", "pciutils", "procps", "python3-dev", "python3-venv",
)  # fmt: skip

_RECIPE = """
set -eu
export DEBIAN_FRONTEND=noninteractive
rm -f /etc/ssh/ssh_host_* /etc/machine-id /var/lib/dbus/machine-id
useradd --create-home --shell /bin/bash ops
echo 'ops ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/ops && chmod 0440 /etc/sudoers.d/ops
ln -sf /lib/systemd/system/systemd-networkd.service /etc/systemd/system/multi-user.target.wants/
ln -sf /dev/null /etc/systemd/system/systemd-networkd-wait-online.service
apt-get -q update
apt-get -q upgrade -y
apt-get -q clean
apt-get -q install -y --no-install-recommends --download-only $1
"""


def name() -> str:
    """The tree's folder name carries everything that decides its content, so an edit here makes a new tree."""
    key = "\n".join([SUITE, *PACKAGES, *WARM, _RECIPE, *_files("", None).values()])
    return f"base-{SUITE}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"


def ensure(progress: Progress) -> Path:
    """The base tree, made when it is not in the cache yet (about a minute)."""
    tree = cache() / name()
    with locked("base"):
        if not tree.exists():
            _remove_old()
            part = tree.with_name(f"{tree.name}.part")
            _debootstrap(part, progress)
            _finish(part, progress)
            part.rename(tree)
    return tree


def _remove_old() -> None:
    """Unfinished trees; and those of earlier recipes, unless a lab may stand on one."""
    in_use = any((cache() / "labs").glob("*/state.json"))
    for old in cache().glob("base-*.part" if in_use else "base-*"):
        shutil.rmtree(old)


def _debootstrap(part: Path, progress: Progress) -> None:
    part.parent.mkdir(parents=True, exist_ok=True)
    argv = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(part)]
    archive = mirror().archive
    _follow([*argv, *([archive] if archive else [])], "base tree: Debian 12, made once", progress)


def _finish(part: Path, progress: Progress) -> None:
    lend_settings(part)
    archive = (part / "etc/apt/sources.list").read_text().split()[1]
    for path, text in _files(archive, mirror().security).items():
        write(part / path, text)
    (part / "etc/apt/sources.list").unlink()
    argv = ["chroot", str(part), "sh", "-c", _RECIPE, "sh", " ".join(WARM)]
    _follow(argv, "base tree: user, network, apt's cache", progress)


def _files(archive: str, security: str | None) -> dict[str, str]:
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    sources = f"Types: deb\nURIs: {archive}\nSuites: {SUITE} {SUITE}-updates\nComponents: main\nSigned-By: {keyring}\n"
    if security:
        sources += f"\nTypes: deb\nURIs: {security}\nSuites: {SUITE}-security\nComponents: main\nSigned-By: {keyring}\n"
    return {
        "etc/apt/sources.list.d/debian.sources": sources,
        "etc/dpkg/dpkg.cfg.d/lab": "force-unsafe-io\n",  # a guest lives for minutes: no fsync for each file
        "etc/systemd/journald.conf.d/lab.conf": "[Journal]\nStorage=persistent\n",  # a reboot loses nothing
    }


def _follow(argv: list[str], what: str, progress: Progress) -> None:
    """Run a command of a minute, with its lines as progress; its last ones in the error."""
    lines: list[str] = []
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip())
            progress(f"{what}: {lines[-1].removeprefix('I: ')}")
    if process.returncode != 0:
        raise RunbookError(f"lab: {argv[0]} ended with {process.returncode}", details=lines[-8:])
