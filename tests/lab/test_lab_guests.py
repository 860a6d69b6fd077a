"""Lab guests are real hosts: they boot, reboot, lose their link; and a lab leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import base, sweep
from lab.guest import Guest, letters
from lab.lab import Lab
from lab.machine import cache
from runbooks.engine.errors import RunbookError, UsageError
from runbooks.inventory import load


def sh(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def traces(*words: str) -> list[str]:
    """What this machine holds that names one of `words`: links, rules, mounts, processes, control groups, notes."""
    seen = [
        *sh("ip", "-o", "link").splitlines(),
        *sh("iptables-save").splitlines(),
        *Path("/proc/self/mountinfo").read_text().splitlines(),
        *(str(path) for path in Path("/sys/fs/cgroup").glob("**/rb*")),
        *(str(path) for path in Path("/run/systemd/nspawn").rglob("*")),
    ]
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = command.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if int(command.parent.name) != os.getpid():
            seen.append(line)
    return [line for line in seen if any(word in line for word in words)]


@pytest.mark.parametrize(("index", "name"), [(0, "a"), (25, "z"), (26, "aa"), (51, "az"), (52, "ba")])
def test_letters(index: int, name: str) -> None:
    assert letters(index) == name


@pytest.mark.parametrize("name", ["", "Dev", "a/b", "-x", "x" * 40])
def test_a_lab_name_is_checked(name: str) -> None:
    with pytest.raises(UsageError, match="no name for a lab"):
        Lab.open(name)


@pytest.mark.lab
def test_a_guest_is_a_real_debian_host(guest: Guest) -> None:
    assert guest.run("systemctl is-system-running").stdout.strip() == "running"
    assert guest.run("cat /proc/1/comm").stdout.strip() == "systemd"
    assert "ID=debian" in guest.run("cat /etc/os-release").stdout
    assert guest.run("hostname").stdout.strip() == guest.name
    assert guest.run("sudo -n id -u", user="ops").stdout.strip() == "0"


@pytest.mark.lab
def test_a_guest_reaches_the_package_registries(guest: Guest) -> None:
    guest.run("apt-get -q update")
    guest.run("apt-get -q install -y --no-install-recommends python3-venv && python3 -m venv /tmp/venv", timeout=120)
    guest.run("/tmp/venv/bin/pip download -q --no-deps -d /tmp/wheels invoke==2.2.1")


@pytest.mark.lab
def test_each_guest_has_control_groups_of_its_own(lab: Lab, guest: Guest) -> None:
    """Two guests in the same group would see each other's services as their own processes."""
    other = lab.add()
    try:
        guest.run("systemd-run --unit=only-here sleep 60")
        here = "cat /sys/fs/cgroup/unified/system.slice/only-here.service/cgroup.procs 2>/dev/null"
        assert "only-here" in guest.run("systemctl status only-here --no-pager").stdout
        assert other.run(here, check=False).stdout == ""
    finally:
        lab.remove(other)


@pytest.mark.lab
def test_the_host_key_is_pinned_and_strict(lab: Lab, guest: Guest) -> None:
    pinned = lab.folder / "known_hosts"
    found = sh("ssh-keygen", "-F", guest.address, "-f", str(pinned))
    assert guest.run("cat /etc/ssh/ssh_host_ed25519_key.pub").stdout.split()[1] in found
    kept = pinned.read_text()
    pinned.write_text("")
    try:
        refused = guest.run("true", check=False)
        assert refused.returncode == 255
        assert "Host key verification failed" in refused.stderr
    finally:
        pinned.write_text(kept)


@pytest.mark.lab
def test_reboot_gives_a_new_boot_id_and_keeps_the_disk(guest: Guest) -> None:
    before = guest.boot_id()
    guest.write("/root/kept", "yes")
    guest.reboot()
    assert guest.boot_id() != before
    assert guest.run("cat /root/kept").stdout == "yes"


@pytest.mark.lab
def test_link_cut_and_mended(guest: Guest) -> None:
    guest.cut_link()
    try:
        with pytest.raises((subprocess.TimeoutExpired, RunbookError)):
            guest.run("true", timeout=2)
    finally:
        guest.mend_link()
    guest.run("true")


@pytest.mark.lab
def test_power_loss_and_back(lab: Lab, guest: Guest) -> None:
    guest.write("/root/before", "yes")
    lab.kill(guest)
    assert not lab.alive(guest)
    assert traces(guest.machine + " ") == []
    lab.boot(guest)
    assert guest.run("cat /root/before").stdout == "yes"


@pytest.mark.lab
def test_binds_are_read_only(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "given").write_text("from the machine")
    guest = lab.add(binds=[(tmp_path, "/opt/given")])
    try:
        assert guest.run("cat /opt/given/given").stdout == "from the machine"
        assert "Read-only" in guest.run("touch /opt/given/new", check=False).stderr
    finally:
        lab.remove(guest)


@pytest.mark.lab
def test_the_lab_s_inventory_names_its_guests(lab: Lab, guest: Guest) -> None:
    inventory = load(lab.inventory).inventory
    assert {host.address for host in inventory.hosts.values()} == {each.address for each in lab.guests}
    assert str(lab.folder) in str(inventory.hosts[guest.name].key)
    assert lab.network.gateway in inventory.driver.repository.url


@pytest.fixture
def pair() -> Iterator[tuple[Lab, Lab]]:
    labs = (sweep.own("left"), sweep.own("right"))
    try:
        yield labs
    finally:
        for lab in labs:
            lab.down()


@pytest.mark.lab
def test_two_labs_side_by_side_and_nothing_left(pair: tuple[Lab, Lab]) -> None:
    left, right = pair
    left.up(2)
    right.up(1)
    assert left.network != right.network
    assert len({guest.boot_id() for guest in (*left.guests, *right.guests)}) == 3
    left.guests[0].run(f"ping -c 1 -W 2 {left.guests[1].address} || true")  # they share a bridge

    names = (f"{left.network.bridge}-", f"{left.network.bridge}:", f"runbooks-lab-{left.network.bridge} ", left.name)
    assert traces(*names)
    left.down()
    assert traces(*names) == []
    assert not (cache() / "labs" / left.name).exists()
    assert right.guests[0].run("true").returncode == 0


@pytest.mark.lab
def test_a_lab_whose_processes_died_is_told_and_cleaned(pair: tuple[Lab, Lab]) -> None:
    lab = pair[0]
    lab.up(1)
    lab.kill(lab.guests[0])
    lab.end_depot()
    assert lab.dead
    bridge = lab.network.bridge
    lab.down()
    assert traces(f"{bridge}-", f"runbooks-lab-{bridge} ", lab.name) == []


@pytest.mark.lab
def test_a_guest_that_does_not_come_up_shows_its_console(lab: Lab) -> None:
    guest = lab.add()
    try:
        lab.kill(guest)
        (guest.place / "upper/etc/systemd/system").mkdir(parents=True, exist_ok=True)
        for unit in ("ssh.service", "ssh.socket"):
            (guest.place / "upper/etc/systemd/system" / unit).symlink_to("/dev/null")
        with pytest.raises(RunbookError, match="does not answer ssh") as failure:
            lab.boot(guest, patience=4)
        assert any("systemd" in line or "Debian" in line for line in failure.value.details)
    finally:
        lab.remove(guest)


ON_A_SYSTEMD_MACHINE = """
import subprocess
from lab.lab import Lab

def told(shell):
    return subprocess.run(shell, shell=True, capture_output=True, text=True).stdout.strip()

lab = Lab.open("inner")
lab._start_depot = lambda progress: None
lab.up(2)
print(told("systemctl list-units --plain --no-legend 'runbooks-lab-*.scope' | wc -l"))
print(*(guest.run("systemctl is-system-running").stdout.strip() for guest in lab.guests))
before = lab.guests[0].boot_id()
lab.guests[0].reboot()
print(lab.guests[0].boot_id() != before)
lab.down()
print(told("systemctl list-units --plain --no-legend 'runbooks-lab-*'; ip -o link | grep rb; iptables-save | grep rb"))
"""


@pytest.mark.lab
@pytest.mark.slow
def test_a_lab_on_a_machine_that_runs_systemd(lab: Lab) -> None:
    """As on people's own machines: there each guest gets a scope of its own. The machine is itself a guest here."""
    tree, repository = base.ensure(print), Path(__file__).parents[2]
    machine = lab.add(binds=[(repository, "/opt/repo"), (tree, "/opt/base")])
    try:
        packages = "systemd-container iptables debootstrap"
        machine.run(f"apt-get -q update && apt-get -q install -y --no-install-recommends {packages}", timeout=180)
        machine.run(f"mkdir -p /tmp/cache/{tree.name} && mount --bind /opt/base /tmp/cache/{tree.name}")
        settings = "RUNBOOKS_LAB_CACHE=/tmp/cache PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/opt/repo"
        told = machine.run(f"{settings} python3 -", stdin=ON_A_SYSTEMD_MACHINE, timeout=120).stdout
        assert told.split("\n") == ["2", "running running", "True", "", ""]
    finally:
        lab.remove(machine)
