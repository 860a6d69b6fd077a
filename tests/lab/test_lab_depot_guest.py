"""The depot as a real host meets it: apt, pip and the driver's states on one guest, in the order of a real life."""

from __future__ import annotations

import pytest

from lab.guest import Guest
from lab.lab import Lab

pytestmark = pytest.mark.lab

APT = "DEBIAN_FRONTEND=noninteractive apt-get -q -y"
LOADED = "nvidia-smi --query-gpu=driver_version --format=csv,noheader"
PIN = "Package: *nvidia* libcuda1 libnv*\nPin: version 580.126.20*\nPin-Priority: 1001\n"
FETCH = "import sys, urllib.request as u; open(sys.argv[2], 'wb').write(u.urlopen(sys.argv[1]).read())"


@pytest.fixture(scope="module")
def host(lab: Lab, guest: Guest) -> Guest:
    """With the lab's repository among its sources, 580 pinned and installed; nothing loaded yet."""
    depot = f"http://{lab.network.gateway}:8090"
    keyring = "/usr/share/keyrings/lab.gpg"
    guest.run(f'python3 -c "{FETCH}" {depot}/apt/lab-archive-keyring.gpg {keyring}')
    guest.write("/etc/apt/sources.list.d/nvidia.list", f"deb [signed-by={keyring}] {depot}/apt/ /\n")
    guest.write("/etc/apt/preferences.d/nvidia", PIN)
    guest.run("apt-get -q update", timeout=120)
    guest.run(f"{APT} install --no-install-recommends nvidia-open nvidia-persistenced", timeout=300)
    return guest


def test_an_unsigned_index_is_refused(lab: Lab, host: Guest) -> None:
    """The signature is what apt trusts: with another keyring the same repository is no source."""
    host.run("mkdir -p /tmp/lists/partial")
    other = "/usr/share/keyrings/debian-archive-keyring.gpg"
    host.write("/tmp/other.list", f"deb [signed-by={other}] http://{lab.network.gateway}:8090/apt/ /\n")
    options = "-o Dir::Etc::SourceList=/tmp/other.list -o Dir::Etc::SourceParts=- -o Dir::State::Lists=/tmp/lists"
    said = host.run(f"apt-get -q {options} update 2>&1", check=False)
    assert "NO_PUBKEY" in said.stdout
    assert "is not signed" in said.stdout


def test_dkms_built_the_open_module(host: Guest) -> None:
    assert host.run("dkms status").stdout.startswith("nvidia/580.126.20, ")
    assert host.run("modinfo -F license nvidia").stdout == "Dual MIT/GPL\n"
    assert host.run("modinfo -F version nvidia").stdout == "580.126.20\n"


def test_nothing_is_loaded_until_it_is(host: Guest) -> None:
    assert host.run("nvidia-smi", check=False).returncode == 9
    host.run("modprobe nvidia && modprobe nvidia_uvm")
    assert host.run(LOADED).stdout.split() == ["580.126.20"] * 8
    host.run("systemctl start nvidia-persistenced")
    assert host.run("nvidia-smi --query-gpu=persistence_mode --format=csv,noheader").stdout.split() == ["Enabled"] * 8


def test_it_is_loaded_at_boot(host: Guest) -> None:
    host.reboot()
    assert host.run(LOADED).stdout.split() == ["580.126.20"] * 8
    assert host.run("systemctl is-active nvidia-persistenced").stdout == "active\n"


def test_faults_are_set_by_a_file(host: Guest) -> None:
    host.write("/etc/lab-gpus.json", '{"count": 7}')
    assert len(host.run("nvidia-smi -L").stdout.splitlines()) == 7
    host.write("/etc/lab-gpus.json", '{"hang": true}')
    said = host.run("timeout -k 2 1 nvidia-smi -L; echo $?; rm /etc/lab-gpus.json")
    assert said.stdout == "137\n"  # SIGTERM did not end it


def test_the_toolkit_compiles_and_can_fail(host: Guest) -> None:
    host.run(f"{APT} install --no-install-recommends cuda-toolkit-13-0", timeout=300)
    assert "release 13.0, V13.0.88" in host.run("/usr/local/cuda/bin/nvcc --version").stdout
    host.write("/tmp/flash_bwd_hdim256.cu", 'extern "C" int one(void) { return 1; }\n')
    compile = "cd /tmp && /usr/local/cuda/bin/nvcc -gencode arch=compute_120f,code=sm_120 --threads 4"
    compile += " -c flash_bwd_hdim256.cu -o one.o 2>&1"
    host.run(f"{compile} && nm one.o | grep -q ' T one'")
    for fail, rc, text in (("killed", 137, "Killed"), ("segfault", 139, "'cicc' died due to signal 11")):
        host.write("/etc/lab-flash-attn.json", f'{{"fail": "{fail}"}}')
        said = host.run(compile, check=False)
        assert (said.returncode, text in said.stdout) == (rc, True)
    host.run("rm /etc/lab-flash-attn.json")


def test_a_hold_survives_an_upgrade(host: Guest) -> None:
    host.run("rm /etc/apt/preferences.d/nvidia")
    installed = "dpkg-query -W -f '${Package} ${Version}\\n' | awk '$2 ~ /^580/ {print $1}'"
    host.run(f"apt-mark hold $({installed})")
    assert "595.58.03-1" in host.run("apt-cache policy nvidia-open").stdout
    host.run(f"{APT} dist-upgrade", timeout=120)
    assert host.run("dpkg-query -W -f '${Version}' nvidia-open").stdout == "580.126.20-1"


def test_an_upgrade_without_reboot_is_a_mismatch(host: Guest) -> None:
    host.run("apt-mark unhold $(apt-mark showhold)")
    host.run(f"{APT} dist-upgrade", timeout=300)
    host.run("modprobe nvidia")  # the loaded one stays
    said = host.run("nvidia-smi", check=False)
    assert said.returncode == 18
    assert said.stdout == "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 595.58\n"
    host.reboot()
    assert host.run(LOADED).stdout.split() == ["595.58.03"] * 8


def test_the_proprietary_flavour_replaces_the_open_one(host: Guest) -> None:
    host.run(f"{APT} install --no-install-recommends nvidia-kernel-dkms nvidia-open- nvidia-open-595-", timeout=120)
    assert host.run("modinfo -F license nvidia").stdout == "NVIDIA\n"
    host.reboot()
    assert (host.run("nvidia-smi", check=False).returncode, host.run("nvidia-smi || :").stdout) == (
        6,
        "No devices were found\n",
    )


def test_everything_goes_when_it_is_purged(host: Guest) -> None:
    host.run(f"{APT} purge '*nvidia*' libcuda1", timeout=120)
    left = host.run("find /etc/systemd/system /usr/lib/lab-nvidia /usr/src -name '*nvidia*' 2>/dev/null || :").stdout
    assert left == ""
    assert host.run("dkms status").stdout == ""


def test_pip_installs_from_the_depot_alone(lab: Lab, host: Guest) -> None:
    page = f"http://{lab.network.gateway}:8090/simple/"
    host.run(f"{APT} install --no-install-recommends python3-venv", timeout=120)
    host.run("python3 -m venv /srv/venv", timeout=120)
    only = f"--no-index --find-links {page} --trusted-host {lab.network.gateway}"
    host.run(f"/srv/venv/bin/pip install {only} torch==2.13.0 sglang==0.5.23 ninja wheel setuptools", timeout=120)
    index = f"--index-url {page} --trusted-host {lab.network.gateway}"
    host.run(f"/srv/venv/bin/pip install {index} packaging psutil", timeout=120)
    assert host.run("/srv/venv/bin/python -c 'import torch; print(torch.__version__)'").stdout == "2.13.0+cu130\n"
