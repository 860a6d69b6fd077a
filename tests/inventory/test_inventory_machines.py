"""VMs and nodes of an inventory: what does not fit together is said with its line, before anything is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from runbooks.engine.errors import UsageError
from runbooks.inventory import load

EXAMPLE = (Path(__file__).parents[2] / "inventory.yaml").read_text()
GOOD = """\
    vm:
      node: pve
      id: 129
      cores: 128
      memory_gib: 768
      storage: local-zfs
      disk_gib: 1000
      image: {url: "https://example.org/x.img", sha256: SHA, file: x.qcow2}
      address: 192.0.2.10/24
      gateway: 192.0.2.1
      ssh_keys: [k.pub]
      numa_nodes: [0, 1]
nodes:
  pve:
    api: https://192.0.2.2:8006
    user: root@pam!x
    token: {env: PVE_TOKEN}
""".replace("SHA", "ab" * 32)
HOST = "    user: ops\n"


def text(vm: str = GOOD) -> str:
    assert EXAMPLE.count(HOST) >= 1
    return EXAMPLE.replace(HOST, HOST + vm.partition("nodes:\n")[0], 1) + "\nnodes:\n" + vm.partition("nodes:\n")[2]


def test_a_host_may_be_a_vm(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(text())
    vm = load(tmp_path / "my.yaml").inventory.hosts["glm5-a"].vm
    assert vm is not None
    assert (vm.p2p, vm.protection, vm.onboot, vm.mapping) == ("off", True, False, "rtxpro6000")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("node: pve\n", "node: pvee\n", "there is no node named 'pvee'; did you mean pve?"),
        ("id: 129", "id: 99", "between 100 and 999999999"),
        ("cores: 128", "cores: 127", "127 cannot be shared out evenly among 2 NUMA nodes"),
        ("memory_gib: 768", "memory_gib: 767", "cannot be shared out evenly"),
        ("numa_nodes: [0, 1]", "numa_nodes: []", "at least one"),
        ("numa_nodes: [0, 1]", "numa_nodes: [0, 0]", "each NUMA node once"),
        ("ab" * 32, "xyz", "64 hex digits"),
        ("file: x.qcow2", "file: x.img", "should end in .qcow2"),
        ("address: 192.0.2.10/24", "address: 192.0.2.10", "should be like 192.0.2.10/24"),
        ("gateway: 192.0.2.1\n", "gateway: 198.51.100.1\n", "198.51.100.1 is not in 192.0.2.0/24"),
        ("numa_nodes", "phys_bits: 99\n      numa_nodes", "between 32 and 64"),
        ("numa_nodes", "affinity: 0..3\n      numa_nodes", "0-63,128-191"),
        ("numa_nodes", "machine: pc-i440fx-9.0\n      numa_nodes", "q35"),
        ("numa_nodes", "p2p: maybe\n      numa_nodes", "off or clique or auto"),
        ("https://192.0.2.2:8006", "192.0.2.2", "https://ADDRESS:8006"),
        ("user: root@pam!x", "user: root@pam", "USER@REALM!NAME"),
        ("token: {env: PVE_TOKEN}", "name: pve", "exactly one of token and password"),
        ("token: {env: PVE_TOKEN}", "token: {env: X}\n    password: {env: Y}", "exactly one of token and password"),
        ("token: {env", "fingerprint: AA:BB\n    token: {env", "32 pairs of hex digits"),
        ("token: {env", "gpu_ids: [10DE:2BB5]\n    token: {env", "in lower case"),
        (
            "numa_nodes", "hugepages: true\n      numa_nodes", "",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    (tmp_path / "my.yaml").write_text(text(GOOD.replace(old, new, 1)))
    if not said:
        load(tmp_path / "my.yaml")
        return
    with pytest.raises(UsageError) as caught:
        load(tmp_path / "my.yaml")
    assert said in str(caught.value)
    assert "my.yaml:" in str(caught.value)


def test_pages_are_counted_where_the_node_reserves_them(tmp_path: Path) -> None:
    pages = GOOD.replace("numa_nodes", "hugepages: true\n      numa_nodes")
    pages += "    ssh: {address: 192.0.2.2}\n    hugepages_gib: 512\n"
    (tmp_path / "my.yaml").write_text(text(pages))
    with pytest.raises(UsageError, match="needs 768 pages of 1 GiB, and the node reserves 512"):
        load(tmp_path / "my.yaml")
