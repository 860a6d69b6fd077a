"""From a node to a VM that answers: the whole of it, with a node's shell, through the commands that people type."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import sweep
from lab.guest import Guest
from lab.lab import Lab
from lab.proxmox.inventory import write_inventory
from runbooks.inventory import load
from runbooks.inventory.runtimes import runtime_paths
from runbooks.paths import PEERS
from runbooks.provision.vm import client
from runbooks.proxmox.config import clique_args
from runbooks.session import Session

pytestmark = pytest.mark.lab

INVOKE = Path(sys.executable).with_name("invoke")
NODE = Path(__file__).with_name("node")
ROOT = Path(__file__).parents[2]


class World:
    """A lab with the API's stand-in, and a second guest as the node's shell."""

    def __init__(self, lab: Lab, shell: Guest) -> None:
        self.lab, self.shell = lab, shell
        self.inventory = write_inventory(lab, lab.inventory)
        text = self.inventory.read_text()
        login = f"{{address: {shell.address}, user: root, key: {lab.folder}/id_ed25519}}"
        text = text.replace("    user: root@pam!lab\n", f"    user: root@pam!lab\n    ssh: {login}\n")
        text = text.replace("      cores: 128\n      memory_gib: 768", "      cores: 2\n      memory_gib: 2")
        self.inventory.write_text(text.replace("numa_nodes: [0, 1]", "numa_nodes: [0]"))

    def edit(self, old: str, new: str) -> None:
        text = self.inventory.read_text()
        assert old in text
        self.inventory.write_text(text.replace(old, new))

    def invoke(self, *words: str, code: int | None = 0) -> str:
        plain = [] if words[0] == "vm.console" else ["--plain"]
        argv = [str(INVOKE), *words, "--inventory", str(self.inventory), *plain]
        env = {**os.environ, "COLUMNS": "200"}
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT, env=env)
        said = done.stdout + done.stderr
        assert code is None or done.returncode == code, said
        assert "Traceback" not in said
        return said

    def calls(self) -> list[tuple[str, str]]:
        lines = (self.lab.folder / "pve-calls.jsonl").read_text().splitlines()
        return [(method, path) for method, path, *_ in map(json.loads, lines)]

    def since(self, count: int) -> tuple[int, int]:
        """Reads and writes since so many calls."""
        new = self.calls()[count:]
        writes = sum(method != "GET" for method, _ in new)
        return len(new) - writes, writes

    def trouble(self, *faults: tuple[str, str, str, bool]) -> None:
        """What befalls the API next: (method, path, what, done all the same?); see lab.proxmox.server.Fault."""
        names = ("method", "path", "what", "after")
        lines = [json.dumps(dict(zip(names, fault, strict=True))) for fault in faults]
        (self.lab.folder / "pve-faults.jsonl").write_text("\n".join(lines))

    def tasks(self) -> list[str]:
        """The kinds of all tasks that the node ever began for the VM."""
        session = Session.open(inventory=str(self.inventory), plain=True)
        node = session.loaded.inventory.nodes["pve"]
        with session, client(session, "glm5-a", node) as api:
            return [row["type"] for row in api.get("/nodes/pve/tasks", vmid=100, limit=500)]

    def args(self) -> str:
        """QEMU's own words in the VM's configuration, as the API tells it."""
        session = Session.open(inventory=str(self.inventory), plain=True)
        node = session.loaded.inventory.nodes["pve"]
        with session, client(session, "glm5-a", node) as api:
            return str(api.get("/nodes/pve/qemu/100/config").get("args", ""))

    @property
    def vm(self) -> Guest:
        return self.lab.guest_at(0)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    lab = sweep.own("vm")
    try:
        lab.up(0)
        lab.start_proxmox()
        shell = lab.guest_at(7)  # out of the way of the VMs, which are the first ones
        lab.boot(shell)
        shell.run("sh -s grub", stdin=(NODE / "dress.sh").read_text())
        shell.run("sh -s", stdin=(NODE / "machine.sh").read_text())
        yield World(lab, shell)
    finally:
        lab.down()


def test_the_preview_shows_the_whole_plan_and_touches_nothing(world: World) -> None:
    said = world.invoke("provision", "--check", "--diff", code=3)
    for words in (
        "kernel command line",
        "decided once it is prepared",
        "PCI mapping rtxpro6000: new",
        "image debian-12-lab.qcow2",
        "VM 100 glm5-a: new",
        "hostpci7: mapping=rtxpro6000,pcie=1",
        "disk scsi0: 1000 GiB",
    ):
        assert words in said, said
    assert not [call for call in world.calls() if call[0] != "GET"]
    assert "iommu=pt" not in world.shell.run("cat /etc/default/grub").stdout


def test_node_and_vm_are_made_and_met(world: World) -> None:
    said = world.invoke("provision", "--tags", "node", "--tags", "vm", "--yes", code=None)
    assert "host key pinned, as the hypervisor told it" in said, said
    assert "iommu=pt" in world.shell.run("cat /proc/cmdline").stdout
    pinned = (world.lab.folder / "known_hosts").read_text()
    assert world.vm.address in pinned
    assert world.vm.run("cat /proc/1/comm").stdout.strip() == "systemd"
    assert world.vm.run("dpkg-query -W -f '${Status}' qemu-guest-agent").stdout == "install ok installed"


def test_a_second_run_reads_six_times_and_writes_nothing(world: World) -> None:
    before = len(world.calls())
    said = world.invoke("provision", "--tags", "node", "--tags", "vm")
    reads, writes = world.since(before)
    assert (reads, writes) == (6, 0), said
    assert "0 changed" in said


def test_the_doctor_and_the_status(world: World) -> None:
    said = world.invoke("doctor", "--node", code=None)
    names = (
        "API",
        "privileges",
        "PCI mapping rtxpro6000",
        "IOMMU groups",
        "cards alive",
        "Resizable BAR",
        "link width",
    )
    for name in names:
        assert any(name in line and " ok " in line for line in said.splitlines()), (name, said)
    assert "running" in world.invoke("vm.status")
    assert "-t qm terminal 100" in world.invoke("vm.console")
    assert "nothing was recorded" in world.invoke("vm.console", "--log", code=1)


def test_roots_keys_go_over_ssh(world: World) -> None:
    """p2p with a token: `qm set` on the node, and said in the plan; the power cycle is asked for."""
    world.edit("      numa_nodes: [0]", "      numa_nodes: [0]\n      p2p: clique")
    said = world.invoke("provision", "--tags", "vm", "--check", "--diff", code=3)
    assert "by `qm set` over SSH (only root@pam may)" in said
    assert "args absent -> -set device.hostpci0.x-nv-gpudirect-clique=0" in said
    assert "power cycle" in said
    world.invoke("provision", "--tags", "vm", code=None)
    (line,) = [line for line in world.shell.run("cat /var/lib/dressed/calls").stdout.splitlines() if "qm set" in line]
    assert line.startswith("qm set 100 --args -set device.hostpci0.x-nv-gpudirect-clique=0")
    world.vm.run("echo 'wrong data' >/var/lib/runbooks/p2p-verdict")
    said = world.invoke("provision", "--tags", "vm", "--check", "--diff", code=None)
    assert "vm   as it should be" in said, "tried in vain: not asked for again"
    world.vm.run("rm /var/lib/runbooks/p2p-verdict")
    world.edit("\n      p2p: clique", "")


@pytest.mark.slow
def test_auto_is_tried_and_kept_or_taken_back(world: World) -> None:
    """p2p: auto with root's password: QEMU's property is set, the ladder climbed; kept, or undone in the same run."""
    kept = set((ROOT / "results").glob("*-collectives"))
    loaded = load(world.inventory)
    (place, *_) = runtime_paths(loaded.runtime_for("glm5-a"), loaded.inventory.flash_attn)
    world.vm.run(f"mkdir -p {place}/venv/bin /var/lib/runbooks/bench; touch {place}/built")
    world.vm.run(f"cat >{place}/venv/bin/python", stdin=(NODE / "ladder.py").read_text())
    world.vm.run(f"chmod +x {place}/venv/bin/python; echo healthy >/etc/lab-ladder; rm -f {PEERS}")
    world.edit("    user: root@pam!lab\n", "    user: root@pam\n")
    world.edit("    token: {file:", "    password: {file:")
    world.edit("      numa_nodes: [0]", "      numa_nodes: [0]\n      p2p: auto")

    said = world.invoke("provision", "--tags", "vm", "--yes")
    assert "granted by QEMU -> untested" in said
    assert "peer-to-peer is proven, and stays" in said
    assert world.args() == clique_args(8)
    assert world.vm.run(f"cat {PEERS}").stdout == "healthy\n"
    before = len(world.calls())
    said = world.invoke("provision", "--tags", "vm")
    assert "0 changed" in said
    assert world.since(before) == (6, 0)

    boot_id = world.vm.boot_id()
    world.vm.run(f"echo untested >{PEERS}; echo 'wrong data' >/etc/lab-ladder")
    said = world.invoke("provision", "--tags", "vm", "--yes")
    assert "is not proven (wrong data): the grant is taken back" in said
    assert world.args() == ""
    assert world.vm.boot_id() != boot_id
    assert "0 changed" in world.invoke("provision", "--tags", "vm"), "tried once, and left at that"
    assert "tried, and not proven: wrong data" in world.invoke("doctor", code=None)

    for folder in set((ROOT / "results").glob("*-glm5-a-collectives")) - kept:
        shutil.rmtree(folder)

    world.edit("\n      p2p: auto", "")
    assert "forgets 'wrong data'" in world.invoke("provision", "--tags", "vm", "--check", code=3)
    world.invoke("provision", "--tags", "vm")
    world.edit("    user: root@pam\n", "    user: root@pam!lab\n")
    world.edit("    password: {file:", "    token: {file:")


def test_nccl_is_told_the_nodes_topology(world: World) -> None:
    """The node's QEMU says which card is which; the guest's own bus is flat."""
    buses = ("01", "21", "41", "61", "81", "a1", "c1", "e1")
    words = " ".join(f"vfio-pci,host=0000:{bus}:00.0,id=hostpci{n},bus=x" for n, bus in enumerate(buses))
    qemu = f"setsid sh -c 'echo $$ >/run/qemu-server/100.pid; exec python3 /tmp/idle.py {words}' >/dev/null 2>&1"
    idle = "import time\ntime.sleep(600)\n"
    world.shell.run(f"mkdir -p /run/qemu-server; cat >/tmp/idle.py; ({qemu} &)", stdin=idle)
    world.invoke("provision", "--tags", "vm")
    text = world.vm.run("cat /opt/runbooks/nccl-topology.xml /etc/nccl.conf").stdout
    assert text.count("<pci ") == 8
    assert 'busid="0000:05:00.0"' in text
    assert "NCCL_TOPO_FILE=/opt/runbooks/nccl-topology.xml" in text
    assert "0 changed" in world.invoke("provision", "--tags", "vm")
    world.shell.run("kill $(cat /run/qemu-server/100.pid); rm /run/qemu-server/100.pid")


def test_what_is_hot_plugged_needs_no_power_cycle(world: World) -> None:
    boot_id = world.vm.boot_id()
    for old, new in (("[0]", "[0]\n      vlan: 7"), ("[0]\n      vlan: 7", "[0]")):
        world.edit(f"      numa_nodes: {old}", f"      numa_nodes: {new}")
        said = world.invoke("provision", "--tags", "vm")
        assert "PVE took it at once: no power cycle is needed" in said
    assert world.vm.boot_id() == boot_id


def test_a_changed_size_waits_for_consent(world: World) -> None:
    boot_id = world.vm.boot_id()
    world.edit("memory_gib: 2", "memory_gib: 1")
    said = world.invoke("provision", "--tags", "vm")
    assert "waits for the next power cycle" in said
    assert world.vm.boot_id() == boot_id
    before = len(world.calls())
    world.invoke("provision", "--tags", "vm")
    assert world.since(before)[1] == 0, "what waits is not written again"
    said = world.invoke("provision", "--tags", "vm", "--yes")
    assert "power cycle" in said
    assert world.vm.boot_id() != boot_id
    assert not [call for call in world.calls() if call[1].endswith("/status/stop")]


def test_destroy_is_refused_while_it_is_protected_or_runs(world: World) -> None:
    assert "is protected" in world.invoke("vm.destroy", "--confirm", "glm5-a", code=1)
    world.edit("      numa_nodes: [0]", "      numa_nodes: [0]\n      protection: false")
    world.invoke("provision", "--tags", "vm")
    assert "VM 100 runs" in world.invoke("vm.destroy", "--confirm", "glm5-a", code=1)
    world.invoke("vm.shutdown", "--yes")
    assert "not its name" in world.invoke("vm.destroy", "--confirm", "glm5-b", code=2)
    world.invoke("vm.status", code=1)
    world.invoke("vm.destroy", "--confirm", "glm5-a")
    assert "not there" in world.invoke("vm.status", code=1)


def test_a_rebuilt_vm_is_made_once_and_met_again_while_the_api_comes_and_goes(world: World) -> None:
    """Answers lost, connections dropped, the API restarted in the middle of tasks: nothing lost, nothing made twice."""
    old = (world.lab.folder / "known_hosts").read_text()
    assert world.vm.address in old
    before, calls = Counter(world.tasks()), len(world.calls())
    world.trouble(
        ("POST", "/nodes/pve/qemu$", "596", True),
        ("GET", "/tasks/.*qmcreate.*/status", "restart", False),
        ("PUT", "/resize", "drop", False),
        ("GET", "/tasks/.*resize.*/status", "599", False),
        ("POST", "/status/start", "drop", True),
        ("GET", "/tasks/.*qmstart.*/status", "restart", False),
        ("GET", "/agent/file-read", "drop", True),
    )
    said = world.invoke("provision", "--tags", "vm", "--yes")
    assert Counter(world.tasks()) - before == Counter(qmcreate=1, resize=1, qmstart=1)
    writes = [path for method, path in world.calls()[calls:] if method != "GET"]
    assert [path.rpartition("/")[2] for path in writes] == ["qemu", "resize", "start"]
    assert "host key pinned" in said
    new = (world.lab.folder / "known_hosts").read_text()
    assert new != old
    assert new.count(f"{world.vm.address} ") == 1
    assert world.vm.run("hostname").stdout.strip() == "glm5-a"


def test_the_console_is_listened_to_from_before_the_start(world: World) -> None:
    """A VM without agent: cloud-init's keys on the serial line."""
    from runbooks.provision.contact import Console, from_console
    from tests.provision.test_provision_contact import KEY, PRINTED

    loaded = load(world.inventory)
    vm = loaded.inventory.hosts["glm5-a"].vm
    assert vm is not None
    session = Session.open(inventory=str(world.inventory), plain=True)
    with session, session.connect_node("pve") as connection:
        console = Console(connection, vm)
        console.listen()
        speak = (
            "import socket,time\ns=socket.socket(socket.AF_UNIX)\ns.bind('/run/qemu-server/100.serial0')\ns.listen()\n"
            f"c,_=s.accept()\nc.sendall({PRINTED!r}.encode())\ntime.sleep(20)\n"
        )
        world.shell.run(
            "mkdir -p /run/qemu-server; cat >/tmp/speak.py; (setsid python3 /tmp/speak.py >/dev/null 2>&1 &)",
            stdin=speak,
        )
        deadline = time.monotonic() + 15
        while from_console(console.said()) is None and time.monotonic() < deadline:
            time.sleep(0.3)
        assert from_console(console.said()) == KEY
        assert "glm5-a login:" in world.invoke("vm.console", "--log")
        console.hang_up()
        assert world.shell.run("pgrep -f '[s]ocat -u' || true").stdout.strip() == ""
