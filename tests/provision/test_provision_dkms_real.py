"""A real NVIDIA module: Debian's own packages, DKMS, the headers of a real kernel; only nothing can load it here.

The guest shares this machine's kernel, for which there are no headers, so it takes itself for one of Debian's kernels:
what `uname -r` says there is all that DKMS, and our steps, know of it. Between 5 and 20 minutes.
"""

from __future__ import annotations

import pytest

from lab.guest import Guest
from lab.lab import Lab
from runbooks.steps.nvidia import ModulesBuilt
from runbooks.steps.packages import Packages, apt_pin
from tests.provision.provision_runs import Provision

pytestmark = [pytest.mark.lab, pytest.mark.slow]

UNAME = "/usr/local/bin/uname"
AREAS = "s/^Components: main$/Components: main contrib non-free non-free-firmware/; s/ main$/ main contrib non-free/"


@pytest.fixture(scope="module")
def debian(guest: Guest) -> Guest:
    """With contrib and non-free, and a kernel of Debian's."""
    guest.run(f"sed -i '{AREAS}' /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null || :")
    guest.run("apt-get -q update", timeout=120)
    kernel = guest.run(
        "apt-cache depends linux-headers-amd64 | sed -n 's/.*Depends: linux-headers-\\(6.*-amd64\\)$/\\1/p' | head -n 1"
    ).stdout.strip()
    assert kernel
    guest.write(UNAME, f'#!/bin/sh\n[ "$*" = -r ] && exec echo {kernel}\nexec /usr/bin/uname "$@"\n')
    guest.run(f"chmod 755 {UNAME}")
    return guest


def test_dkms_builds_it_and_a_deleted_one_comes_again(lab: Lab, debian: Guest) -> None:
    provision = Provision(lab, debian)
    kernel = debian.run("uname -r").stdout.strip()
    policy = debian.run("apt-cache policy nvidia-kernel-dkms | sed -n 's/ *Candidate: //p'").stdout.strip()
    version = policy.partition("-")[0]
    pin = apt_pin("nvidia", "*nvidia* libcuda1 libnv*", f"{version}*", why="One version.")
    packages = Packages(names=(f"linux-headers-{kernel}", f"nvidia-kernel-dkms={version}*"), limit=3600)
    built = ModulesBuilt(version=version)

    run = provision.steps(pin, packages)
    assert run.errors == []
    module = f"/lib/modules/{kernel}/updates/dkms/nvidia-current.ko"
    assert debian.run(f"modinfo -F version {module}").stdout.strip() == version
    assert debian.run(f"modinfo -F vermagic {module}").stdout.startswith(kernel)
    assert provision.steps(pin, packages, built).result.changed == 0

    debian.run(f"rm {module}")
    run = provision.steps(pin, packages, built)
    assert (run.errors, run.said.steps("changed")) == ([], [built.id])
    assert debian.run(f"modinfo -F version {module}").stdout.strip() == version
    assert provision.steps(pin, packages, built).result.changed == 0
