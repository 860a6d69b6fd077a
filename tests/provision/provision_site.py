"""A second package repository of a site, on a guest: what people have beside NVIDIA's own, built there by dpkg."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lab.guest import Guest
from lab.standins.driver.packages import HERE

FOLDER, SOURCE = "/srv/site", "/etc/apt/sources.list.d/site.list"
_INDEX = f"""\
cd {FOLDER} && dpkg-scanpackages --multiversion . >Packages 2>/dev/null
printf 'Origin: Site\\nLabel: Site\\nSuite: site\\nDate: %s\\nSHA256:\\n %s %s Packages\\n' \\
  "$(date -Ru)" "$(sha256sum Packages | cut -d ' ' -f 1)" "$(stat -c %s Packages)" >Release
echo 'deb [trusted=yes] file:{FOLDER} ./' >{SOURCE}
apt-get -q update
"""


@dataclass(frozen=True)
class Deb:
    """`fields`: more lines of control; `files`: path on the host -> content; `copies`: path -> a file of the host."""

    name: str
    version: str
    fields: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)
    postinst: str = ""


def publish(guest: Guest, *debs: Deb) -> None:
    for deb in debs:
        tree = f"/tmp/{deb.name}_{deb.version}"
        control = f"Package: {deb.name}\nVersion: {deb.version}\nArchitecture: amd64\nMaintainer: site <s@x.invalid>\n"
        files = {**deb.files, "DEBIAN/control": f"{control}{deb.fields}Description: of a site\n"}
        if deb.postinst:
            files["DEBIAN/postinst"] = f"#!/bin/sh\nset -e\n{deb.postinst}\n"
        for path, content in files.items():
            guest.run(f"install -D -m 755 /dev/stdin {tree}/{path}", stdin=content)
        for path, source in deb.copies.items():
            guest.run(f"install -D -m 644 {source} {tree}/{path}")
        guest.run(f"mkdir -p {FOLDER} && dpkg-deb --root-owner-group --build {tree} {FOLDER} && rm -r {tree}")
    guest.run(_INDEX, timeout=120)


def withdraw(guest: Guest) -> None:
    guest.run(f"rm -rf {FOLDER} {SOURCE}; apt-get -q update", timeout=120)


def headers(kernel: str) -> Deb:
    """As the lab's own, for another kernel: DKMS only looks if they are there."""
    source = f"usr/src/linux-headers-{kernel}"
    names = {"Makefile": "headers.mk", ".config": "kernel.config", "include/generated/autoconf.h": "autoconf.h"}
    files = {f"{source}/{path}": Path(HERE / "files" / name).read_text() for path, name in names.items()}
    link = f"mkdir -p /lib/modules/{kernel}\nln -sfn /{source} /lib/modules/{kernel}/build"
    return Deb(f"linux-headers-{kernel}", "1", files=files, postinst=link)
