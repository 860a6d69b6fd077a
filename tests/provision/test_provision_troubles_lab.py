"""What the field meets while a driver is installed, on one guest against the signed repository: said, and mended.

The guest shares this machine's kernel. Another one is a name that `uname -r` says, or an image below /boot; what the
firmware and loaded modules say comes by mounts. None of that shows in the product's own steps.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

import pytest

from lab.guest import Guest
from lab.lab import Lab
from runbooks.engine.errors import RunbookError
from runbooks.steps.nvidia import DriverLoaded, ModulesBuilt, SecureBoot
from runbooks.steps.packages import Packages
from tests.provision.provision_runs import Provision, Run
from tests.provision.provision_site import Deb, headers, publish, withdraw

pytestmark = [pytest.mark.lab, pytest.mark.slow]

VERSION, OTHER = "580.126.20", "595.58.03"
DRIVER, BASE = frozenset({"driver"}), frozenset({"base"})
APT = "DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends"
NEXT_KERNEL = "6.99.0-1-generic"
MODULES = ModulesBuilt(version=VERSION)
SOURCES = f"/usr/src/nvidia-{VERSION}"


@pytest.fixture(scope="module")
def provision(lab: Lab, guest: Guest) -> Provision:
    run = Provision(lab, guest)
    assert run(tags=BASE | DRIVER).errors == []
    return run


@pytest.fixture
def host(provision: Provision) -> Iterator[Guest]:
    """The guest, put back to what provisioning wants after the test."""
    yield provision.guest
    withdraw(provision.guest)
    run = provision(tags=BASE | DRIVER)
    assert run.errors == []


def the_error(run: Run) -> RunbookError:
    (error,) = run.result.failed
    return error


def said(run: Run) -> str:
    return "\n".join(event.text for event in run.said.events if event.kind == "output")


def boots(guest: Guest) -> int:
    return len(guest.run("journalctl --list-boots -q --no-pager").stdout.splitlines())


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


# -- packages --------------------------------------------------------------------------------------------------------


def test_two_repositories_and_one_driver(provision: Provision, host: Guest) -> None:
    """A distribution's packages of the same names, newer: the pin keeps apt at NVIDIA's, for us and for everybody."""
    names = ("libcuda1", "libnvidia-ml1", "nvidia-driver-cuda", "nvidia-persistenced")
    publish(host, *(Deb(name, "610.43.02-1~deb12u1") for name in names))
    assert provision(tags=DRIVER).result.changed == 0
    upgrade = host.run("apt-get -s dist-upgrade --allow-change-held-packages").stdout
    assert "610.43.02" not in upgrade
    host.run("dpkg -r --force-depends libcuda1")
    host.run(f"{APT} -f install", timeout=120)
    assert host.run("dpkg-query -W -f '${Version}' libcuda1").stdout == f"{VERSION}-1"


def test_ubuntus_driver_beside_nvidias_has_a_command_that_mends(provision: Provision, host: Guest) -> None:
    publish(host, Deb("nvidia-utils-580", "580.95.05-0ubuntu0.24.04.2"))
    host.run(f"{APT} install nvidia-utils-580", timeout=120)
    error = the_error(provision(tags=DRIVER))
    assert "exclude those of NVIDIA's repository" in error.message
    assert "nvidia-utils-580 580.95.05-0ubuntu0.24.04.2" in str(error)
    assert error.page == "driver-mismatch"
    cure = str(error.next).partition("   (")[0]
    assert cure.startswith("apt-get purge")
    host.run(f"DEBIAN_FRONTEND=noninteractive {cure} -y", timeout=120)
    again = provision(tags=DRIVER)
    assert (again.errors, again.result.changed) == ([], 0)


def upgraded(guest: Guest) -> None:
    """As somebody did by hand: the other branch, and every package of it held."""
    guest.run("rm /etc/apt/preferences.d/nvidia; apt-mark unhold $(apt-mark showhold)")
    guest.run("apt-get -q update", timeout=120)
    guest.run(f"{APT} install nvidia-open={OTHER}-1 nvidia-persistenced={OTHER}-1", timeout=300)
    guest.run(f"apt-mark hold $(dpkg-query -W -f '${{Package}} ${{Version}}\\n' | sed -n 's/ {OTHER}.*//p')")


def test_an_upgrade_under_the_loaded_module_goes_back_without_a_reboot(provision: Provision, host: Guest) -> None:
    """Held packages of the wrong version, and 'Driver/library version mismatch'."""
    upgraded(host)
    assert "library version mismatch" in host.run("nvidia-smi", check=False).stdout
    held = host.run("apt-mark showhold").stdout.split()
    assert len(held) > 5
    before = host.boot_id()
    run = provision(tags=DRIVER)
    assert run.errors == []
    assert "packages nvidia-open nvidia-persistenced" in run.said.steps("changed")
    assert host.boot_id() == before
    assert host.run("dpkg-query -W -f '${Version}' libcuda1").stdout == f"{VERSION}-1"
    assert set(held) & set(host.run("apt-mark showhold").stdout.split()) >= {"libcuda1", "nvidia-driver"}
    assert host.run("nvidia-smi -L").stdout.count("GPU ") == 8


def test_a_loaded_module_of_another_version_is_one_reboot(provision: Provision, host: Guest) -> None:
    upgraded(host)
    host.reboot()
    assert host.run("cat /run/lab-nvidia/version").stdout.strip() == OTHER
    before = boots(host)
    run = provision(tags=DRIVER)
    assert run.errors == []
    assert "driver loaded" in run.said.steps("changed")
    assert boots(host) == before + 1
    assert host.run("cat /run/lab-nvidia/version").stdout.strip() == VERSION
    again = provision(tags=DRIVER)
    assert (again.errors, again.result.changed, boots(host)) == ([], 0, before + 1)


def test_unattended_upgrades_hold_the_lock_and_leave_the_driver_alone(provision: Provision, host: Guest) -> None:
    """Debian's own, at a slow package: we wait and say for whom. A newer driver is there for it, unpinned, unheld."""
    host.run(f"{APT} install unattended-upgrades", timeout=300)
    host.run("systemctl disable --now unattended-upgrades.service apt-daily-upgrade.timer apt-daily.timer")
    publish(host, Deb("slow-one", "1"))
    host.run(f"{APT} install slow-one", timeout=120)
    publish(host, Deb("slow-one", "2", postinst="touch /run/slow-one; sleep 20"))
    host.run("rm /etc/apt/preferences.d/nvidia; apt-mark unhold $(apt-mark showhold); apt-get -q update")
    origins = 'Unattended-Upgrade::Origins-Pattern { "origin=Site"; "origin=NVIDIA"; };\n'
    host.write("/etc/apt/apt.conf.d/53site", origins)
    host.run("dpkg -r --force-depends numactl")
    host.run("systemd-run --quiet --unit=theirs unattended-upgrade --verbose")
    until(lambda: host.run("test -e /run/slow-one", check=False).returncode == 0, "it upgrades nothing")
    run = provision(tags=BASE)
    assert run.errors == []
    assert re.search(r"held by process \d+ \(unattended-upgr\)", said(run)), said(run)[-2000:]
    until(lambda: host.run("systemctl is-active theirs", check=False).returncode != 0, "it does not end")
    look = "dpkg-query -W -f '${Version} ' slow-one nvidia-open libcuda1 && command -v numactl"
    assert host.run(look).stdout.split() == [f"{VERSION}-1", f"{VERSION}-1", "2", "/usr/bin/numactl"]
    host.run("rm /etc/apt/apt.conf.d/53site")


def test_no_room_for_packages(provision: Provision, host: Guest) -> None:
    host.run("dpkg -r --force-depends numactl; apt-get clean")
    host.run("mount -t tmpfs -o size=16k archives /var/cache/apt/archives && mkdir /var/cache/apt/archives/partial")
    error = the_error(provision(tags=BASE))
    host.run("umount /var/cache/apt/archives")
    assert "the disk is full" in str(error)
    assert "/var/cache/apt/archives" in str(error)
    assert "invoke runbook disk-full" in str(error)
    assert provision(tags=BASE).errors == []


ASKS = Deb(
    "asks",
    "1",
    fields="Depends: debconf\n",
    files={
        "DEBIAN/templates": "Template: asks/why\nType: string\nDefault: because\nDescription: Why?\n Say why.\n",
        "DEBIAN/config": "#!/bin/sh\n. /usr/share/debconf/confmodule\ndb_input critical asks/why || :\ndb_go || :\n",
    },
    postinst='. /usr/share/debconf/confmodule\ndb_get asks/why\necho "$RET" >/run/asked',
)


def test_nobody_is_asked_and_no_service_is_restarted(provision: Provision, host: Guest) -> None:
    """A question of the highest priority, and Debian's own needrestart, which works for everybody else."""
    host.run(f"{APT} install needrestart", timeout=300)
    host.run("dpkg-divert --local --rename --add /usr/sbin/needrestart")
    host.run("printf '#!/bin/sh\\necho ran >>/run/ran\\n' >/usr/sbin/needrestart; chmod 755 /usr/sbin/needrestart")
    publish(host, ASKS)
    run = provision.steps(Packages(names=("asks",)))
    assert (run.errors, run.result.changed) == ([], 1)
    assert host.run("cat /run/asked; cat /run/ran 2>/dev/null", check=False).stdout == "because\n"
    host.run(f"{APT} install --reinstall asks")
    assert host.run("cat /run/ran").stdout.startswith("ran")


# -- kernels ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def next_kernel(provision: Provision, host: Guest) -> Iterator[str]:
    """The newest image below /boot: what the next reboot starts."""
    host.run(f"touch /boot/vmlinuz-{NEXT_KERNEL}")
    yield NEXT_KERNEL
    host.run(f"rm -f /boot/vmlinuz-{NEXT_KERNEL}; dkms remove nvidia/{VERSION} -k {NEXT_KERNEL} 2>&1; dpkg -P "
                 f"linux-headers-{NEXT_KERNEL}; rm -rf /lib/modules/{NEXT_KERNEL}", check=False)  # fmt: skip


def of_kernel(guest: Guest, kernel: str) -> str:
    return guest.run(f"modinfo -k {kernel} -F version nvidia", check=False).stdout.strip()


def test_a_second_kernel_gets_its_headers_and_its_module(provision: Provision, host: Guest, next_kernel: str) -> None:
    publish(host, headers(next_kernel))
    module = "stat -c '%i %y' /lib/modules/$(uname -r)/updates/dkms/nvidia.ko*"
    before = host.run(module).stdout
    run = provision.steps(MODULES)
    assert (run.errors, run.said.steps("changed")) == ([], [MODULES.id])
    assert of_kernel(host, next_kernel) == VERSION
    assert host.run(module).stdout == before
    assert provision.steps(MODULES).result.changed == 0


def test_signed_modules_of_a_kernel_come_again_as_their_package(
    provision: Provision, host: Guest, next_kernel: str
) -> None:
    """As Ubuntu's linux-modules-nvidia-…, which is what Secure Boot takes: nothing is compiled for that kernel."""
    place = f"lib/modules/{next_kernel}/kernel/nvidia-580/nvidia.ko"
    signed = Deb(f"linux-modules-nvidia-580-server-open-{next_kernel}", "6.99.0-1.1", postinst=f"depmod {next_kernel}",
                 copies={place: "/var/lib/dkms/nvidia/*/*/x86_64/module/nvidia.ko"})  # fmt: skip
    publish(host, signed)
    host.run(f"{APT} install {signed.name}", timeout=120)
    assert provision.steps(MODULES).result.changed == 0
    host.run(f"rm /{place}")
    run = provision.steps(MODULES)
    assert (run.errors, run.said.steps("changed")) == ([], [MODULES.id])
    assert of_kernel(host, next_kernel) == VERSION
    assert next_kernel not in host.run("dkms status").stdout
    host.run(f"dpkg -P {signed.name}")


def test_a_kernel_whose_headers_nobody_has(provision: Provision, host: Guest, next_kernel: str) -> None:
    error = the_error(provision.steps(MODULES))
    assert f"linux-headers-{next_kernel}" in str(error)
    assert "the headers of a kernel are missing" in str(error)
    assert error.page == "driver-mismatch"


@pytest.mark.parametrize(
    ("damage", "log", "cause"),
    [
        (f"sed -i '1i #include <linux/no_such.h>' {SOURCES}/module.c", "linux/no_such.h", "does not compile for this"),
        (f"sed -i 's/gcc -c/gcc -fmin-no-such=16 -c/' {SOURCES}/Makefile", "-fmin-no-such", "a newer C compiler"),
    ],
    ids=["another kernel's interface", "another kernel's compiler"],
)
def test_a_module_that_does_not_compile(
    provision: Provision, host: Guest, next_kernel: str, damage: str, log: str, cause: str
) -> None:
    """The lines of make.log that tell why stand in the error; once it compiles, the same command goes on."""
    publish(host, headers(next_kernel))
    host.run(f"cp -a {SOURCES} /srv/sources && {damage}")
    error = the_error(provision.steps(MODULES))
    host.run(f"cp -a /srv/sources/. {SOURCES} && rm -r /srv/sources")
    assert re.search(f"make.log: .*{log}", str(error)), str(error)
    assert cause in str(error)
    assert provision.steps(MODULES).errors == []
    assert of_kernel(host, next_kernel) == VERSION


# -- the firmware ----------------------------------------------------------------------------------------------------

VARIABLE = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


@pytest.fixture
def sys(provision: Provision) -> Iterator[Guest]:
    """The guest with a /sys that a test may write to; systemd-nspawn leaves these two out of it."""
    guest = provision.guest
    guest.run("mount -o remount,rw /sys && mkdir -p /sys/firmware/efi/efivars /sys/module/nvidia")
    yield guest
    guest.run("[ ! -e /sys/firmware ] || rm -r /sys/firmware /sys/module && mount -o remount,ro /sys")


def test_secure_boot_is_read_from_the_firmware(provision: Provision, sys: Guest) -> None:
    """The variable as efivarfs shows it: four bytes of attributes, and its value."""
    sys.run(rf"rm -r /sys/module; printf '\006\000\000\000\000' >{VARIABLE}")
    assert provision(tags=DRIVER).errors == []
    sys.run(rf"printf '\006\000\000\000\001' >{VARIABLE}")
    run = provision(tags=DRIVER)
    error = the_error(run)
    assert "Secure Boot is on" in error.message
    assert "mokutil --import /var/lib/dkms/mok.pub" in str(error)
    assert run.result.changed == 0
    sys.run("mkdir -p /sys/module/nvidia")
    assert provision.steps(SecureBoot()).errors == []


def test_a_module_that_another_kernel_loaded_is_one_reboot(provision: Provision, sys: Guest) -> None:
    """/sys/module as after a kernel's upgrade that brought a module of its own."""
    sys.write("/sys/module/nvidia/version", "570.86.10\n")
    before = boots(sys)
    run = provision.steps(DriverLoaded(version=VERSION))
    assert (run.errors, run.result.changed, boots(sys)) == ([], 1, before + 1)
    assert provision.steps(DriverLoaded(version=VERSION)).result.changed == 0
    assert boots(sys) == before + 1
