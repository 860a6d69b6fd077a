"""The VM as PVE's configuration: exact strings, held against PVE's documentation and against the lab's own table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlencode

import pytest

from lab.proxmox import formats
from runbooks.engine.errors import UsageError
from runbooks.proxmox import properties
from runbooks.proxmox.config import Version, Wanted, config, creation, encode_keys, start_seconds
from tests.proxmox.apidoc import ApiDoc, apidoc, needs_apidoc

__all__ = ["apidoc"]

MakeWanted = Callable[..., Wanted]
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one NUMA node": {"numa_nodes": (0,)},
    "four NUMA nodes": {"numa_nodes": (0, 1, 2, 3)},
    "huge pages and affinity": {"hugepages": True, "affinity": "0-63,128-191"},
    "clique": {"clique": True},
    "IPv6": {"address": "2001:db8::10/64", "gateway": "2001:db8::1"},
    "VLAN, no option ROM": {"vlan": 42, "rombar": False},
    "pinned machine": {"machine": "pc-q35-10.1", "onboot": True, "protection": False},
    "two cores": {"cores": 2},
}


def test_the_whole_configuration(make_wanted: MakeWanted) -> None:
    assert creation(make_wanted()) == {
        "vmid": "129",
        "efidisk0": "local-zfs:1,efitype=4m,pre-enrolled-keys=0",
        "scsi0": "local-zfs:0,import-from=local:import/x.qcow2,discard=on,iothread=1,ssd=1,backup=0",
        "ide2": "local-zfs:cloudinit",
        "name": "glm5-a",
        "machine": "q35",
        "bios": "ovmf",
        "cpu": "host",
        "sockets": "2",
        "cores": "64",
        "ostype": "l26",
        "scsihw": "virtio-scsi-single",
        "vga": "none",
        "serial0": "socket",
        "agent": "enabled=1",
        "hotplug": "disk,network,usb",
        "boot": "order=scsi0",
        "memory": "786432",
        "balloon": "0",
        "numa": "1",
        "numa0": "cpus=0-63,hostnodes=0,memory=393216,policy=bind",
        "numa1": "cpus=64-127,hostnodes=1,memory=393216,policy=bind",
        **{f"hostpci{number}": "mapping=rtxpro6000,pcie=1" for number in range(8)},
        "net0": "virtio,bridge=vmbr0",
        "ciuser": "ops",
        "sshkeys": "ssh-ed25519%20AAAAC3NzaC1lZDI1NTE5AAAAIKtest%2Bslash%2Fand%2Bplus%20ops%40desk",
        "ipconfig0": "ip=192.0.2.10/24,gw=192.0.2.1",
        "nameserver": "192.0.2.1 192.0.2.2",
        "searchdomain": "example.org",
        "onboot": "0",
        "protection": "1",
    }


@pytest.mark.parametrize("version", ["8.4.5", "9.0.3", "9.2.11"])
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_taken_by_the_lab(make_wanted: MakeWanted, version: str, name: str) -> None:
    settings = creation(make_wanted(version, **VARIANTS[name]))
    assert formats.faults(settings, int(version[0])) == {}


@needs_apidoc
@pytest.mark.parametrize("version", ["8.4.5", "9.2.11"])
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_taken_by_pves_own_documentation(
    make_wanted: MakeWanted, apidoc: ApiDoc, version: str, name: str
) -> None:
    wanted = make_wanted(version, **VARIANTS[name])
    assert apidoc.faults("POST", "/nodes/pve/qemu", creation(wanted)) == []
    assert apidoc.faults("POST", "/nodes/pve/qemu/129/config", {**config(wanted), "digest": "a" * 40}) == []


@needs_apidoc
def test_the_documentation_refuses_what_pve_refuses(apidoc: ApiDoc) -> None:
    def wrong(**parameters: str) -> list[str]:
        return apidoc.faults("POST", "/nodes/pve/qemu/129/config", parameters)

    assert wrong(hostpci0="mapping=x,pcie=2") == ["hostpci0.pcie: 2 is no boolean"]
    assert wrong(cpu="host,host-phys-bits=1") == ["cpu.host-phys-bits: unknown"]
    assert wrong(bios="uefi") != []
    assert wrong(sshkeys="ssh-ed25519 AAAA x") != []
    assert wrong(hostpci0="host=rtxpro6000") != []
    assert wrong(nonsense="1") == ["nonsense: unknown"]


def test_phys_bits_only_where_they_exist(make_wanted: MakeWanted) -> None:
    """guest-phys-bits is 9.2's; an older node would refuse the whole call."""
    assert config(make_wanted("9.2.11", phys_bits=45))["cpu"] == "host,guest-phys-bits=45"
    for old in ("8.4.5", "9.0.3", "9.1.2"):
        with pytest.raises(UsageError, match=r"phys_bits needs PVE 9\.2"):
            config(make_wanted(old, phys_bits=45))


def test_nothing_hides_the_hypervisor(make_wanted: MakeWanted) -> None:
    text = str(creation(make_wanted(clique=True)))
    assert all(word not in text for word in ("hidden", "x-vga", "kvm=off", "viommu", "vmstate"))


def test_the_clique_is_one_for_all_cards(make_wanted: MakeWanted) -> None:
    args = config(make_wanted(clique=True))["args"]
    assert args.split(" -set ")[7] == "device.hostpci7.x-nv-gpudirect-clique=0"
    assert args.startswith("-set device.hostpci0.x-nv-gpudirect-clique=0 -set device.hostpci1.")
    assert args.count("-set ") == 8


def test_numa_sums_fit(make_wanted: MakeWanted) -> None:
    for nodes in ((0,), (0, 1), (0, 1, 2, 3)):
        settings = config(make_wanted(numa_nodes=nodes))
        shares = [properties.read(f"numa{n}", settings[f"numa{n}"]) for n in range(len(nodes))]
        assert sum(int(share["memory"]) for share in shares) == int(settings["memory"])
        assert all(int(share["memory"]) % 1024 == 0 for share in shares)
        assert int(settings["sockets"]) * int(settings["cores"]) == 128
        assert shares[-1]["cpus"].endswith("127")


def test_keys_are_encoded_twice_on_the_wire() -> None:
    """PVE's form decoding takes one layer off, and its format check wants the other."""
    keys = ("ssh-ed25519 AA+/= a@b", "ssh-rsa BB c")
    inner = encode_keys(keys)
    assert " " not in inner
    assert "+" not in inner
    assert unquote(inner) == "ssh-ed25519 AA+/= a@b\nssh-rsa BB c"
    assert "%2520" in urlencode({"sshkeys": inner})


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({}, 30),
        ({"memory": "2048"}, 30),
        ({"memory": "30720"}, 30),
        ({"memory": "32768"}, 32),
        ({"memory": "2048", "hugepages": "1024"}, 150),
        ({"memory": "786432", "hostpci0": "x", "net0": "y"}, 3077),
        ({"memory": "786432", "hostpci0": "x", "hugepages": "1024", "net0": "y", "net1": "z"}, 3082),
        ({"memory": "2048", "hostpci0": "x"}, 120),
    ],
)
def test_pves_own_start_rule(settings: dict[str, str], seconds: int) -> None:
    assert start_seconds(settings) == seconds


@pytest.mark.parametrize(("text", "good"), [("8.3.4", False), ("8.4.0", True), ("9.0", True), ("9.2.11", True)])
def test_versions(text: str, good: bool) -> None:
    assert Version.parse(text).supported is good


@pytest.mark.parametrize(
    ("key", "value", "parts"),
    [
        ("net0", "virtio=BC:24:11:00:00:01,tag=7", {"model": "virtio", "macaddr": "BC:24:11:00:00:01", "tag": "7"}),
        ("scsi0", "zfs:vm-1-disk-0,ssd=on,size=32G", {"file": "zfs:vm-1-disk-0", "ssd": "1", "size": "32G"}),
        ("hostpci0", "0000:01:00.0,pcie=yes", {"host": "0000:01:00.0", "pcie": "1"}),
        ("agent", "1", {"enabled": "1"}),
        ("cpu", "host", {"cputype": "host"}),
    ],
)  # fmt: skip
def test_property_strings_are_read(key: str, value: str, parts: dict[str, str]) -> None:
    assert properties.has_parts(key)
    assert properties.read(key, value) == parts
