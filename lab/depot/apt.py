"""Debian packages from the table of stand-ins, and the signed flat repository around them."""

from __future__ import annotations

import gzip
import hashlib
import os
import subprocess
import time
from collections.abc import Sequence
from email.utils import formatdate
from pathlib import Path
from tempfile import TemporaryDirectory

from lab.depot.part import Progress
from lab.depot.signing import Key
from lab.standins.driver.packages import HERE, Package
from runbooks.engine.errors import RunbookError

_EPOCH = "1767225600"  # 2026-01-01, the date of every file: the same sources give the same bytes


def build(table: Sequence[Package], key: Key, out: Path, progress: Progress) -> None:
    """Fill `out` with the packages, Packages(.gz), Release, InRelease, Release.gpg and the public key."""
    stanzas = []
    for number, package in enumerate(table, 1):
        progress(f"depot: apt packages {number} of {len(table)}: {package.name} {package.version}")
        stanzas.append(_index_entry(package, _build_deb(package, out)))
    index = "\n".join(stanzas).encode()
    (out / "Packages").write_bytes(index)
    (out / "Packages.gz").write_bytes(gzip.compress(index, mtime=0))
    (out / "Release").write_text(_release(out))
    (out / "lab-archive-keyring.gpg").write_bytes(key.public.read_bytes())
    key.sign(out)


def _control(package: Package, installed_kib: int) -> str:
    relations = {
        "Depends": package.depends,
        "Recommends": package.recommends,
        "Conflicts": package.conflicts,
        "Provides": package.provides,
    }
    lines = [
        f"Package: {package.name}",
        f"Version: {package.version}",
        f"Architecture: {package.architecture}",
        "Maintainer: runbooks lab <lab@example.invalid>",
        f"Installed-Size: {installed_kib}",
        *(f"{name}: {', '.join(values)}" for name, values in relations.items() if values),
        "Section: misc",
        "Priority: optional",
        f"Description: {package.summary}",
        " The lab stand-in of the package of this name: no driver, no CUDA.",
    ]
    return "\n".join(lines) + "\n"


def _build_deb(package: Package, out: Path) -> Path:
    deb = out / f"{package.name}_{package.version}_{package.architecture}.deb"
    with TemporaryDirectory(prefix="rb-deb-") as scratch:
        tree = Path(scratch)
        for target, source in package.files.items():
            _place(tree / target, source, package)
        for target, pointed in package.links.items():
            (tree / target).parent.mkdir(parents=True, exist_ok=True)
            (tree / target).symlink_to(pointed)
        kib = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file()) // 1024 + 1
        for name, source in package.scripts.items():
            _place(tree / "DEBIAN" / name, source, package)
        (tree / "DEBIAN").mkdir(exist_ok=True)
        (tree / "DEBIAN/control").write_text(_control(package, kib))
        configuration = [f"/{path}\n" for path in package.files if path.startswith("etc/")]
        if configuration:
            (tree / "DEBIAN/conffiles").write_text("".join(configuration))
        tree.chmod(0o755)
        argv = ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", scratch, str(deb)]
        same = {**os.environ, "SOURCE_DATE_EPOCH": _EPOCH}
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=same)
        if done.returncode != 0:
            raise RunbookError(f"depot: {package.name}: dpkg-deb failed", details=done.stderr.splitlines()[-5:])
    return deb


def _place(target: Path, source: str, package: Package) -> None:
    content = (HERE / source).read_bytes()
    for word, text in package.fill.items():
        content = content.replace(f"@{word}@".encode(), text.encode())
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    target.chmod(0o755 if content.startswith(b"#!") else 0o644)


def _index_entry(package: Package, deb: Path) -> str:
    control = subprocess.run(["dpkg-deb", "-f", str(deb)], capture_output=True, text=True, check=True).stdout
    where = f"Filename: ./{deb.name}\nSize: {deb.stat().st_size}\nSHA256: {_sha256(deb)}\n"
    head, _, description = control.partition("Description:")
    return f"{head}{where}Description:{description}"


def _release(out: Path) -> str:
    """Origin and Label as in NVIDIA's repository: pins name them."""
    lines = [
        "Origin: NVIDIA",
        "Label: NVIDIA CUDA",
        "Architecture: x86_64",
        "Architectures: amd64",
        f"Date: {formatdate(time.time(), usegmt=True)}",
        "Description: lab stand-in of NVIDIA's repository",
        "SHA256:",
    ]
    lines += [f" {_sha256(out / name)} {(out / name).stat().st_size} {name}" for name in ("Packages", "Packages.gz")]
    return "\n".join(lines) + "\n"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
