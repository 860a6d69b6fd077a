"""From what should be and what was seen to what is done: nothing twice, nothing by surprise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from runbooks.engine.errors import CheckFailed, RunbookError, UsageError
from runbooks.proxmox import rights
from runbooks.proxmox.config import Version, Wanted, config
from runbooks.proxmox.diff import Found, compare, merged
from runbooks.proxmox.plan import Configure, Create, Download, Grow, Map, PowerCycle, Start, plan
from runbooks.proxmox.properties import MapEntry
from runbooks.proxmox.seen import Seen

MakeWanted = Callable[..., Wanted]
CARDS = tuple(MapEntry("pve", f"0000:{bus:02x}:00.0", "10de:2bb5", 20 + bus, "10de:204e") for bus in range(1, 9))
GRANTED = {"/": dict.fromkeys(rights.EVERY[True], 1)}


def as_stored(wanted: Wanted) -> dict[str, str]:
    """As PVE gives it back: volumes named, sizes and a MAC added."""
    return {
        **config(wanted),
        "efidisk0": "local-zfs:vm-129-disk-0,efitype=4m,pre-enrolled-keys=0,size=4M",
        "scsi0": "local-zfs:vm-129-disk-1,backup=0,discard=on,iothread=1,size=1000G,ssd=1",
        "ide2": "local-zfs:vm-129-cloudinit,media=cdrom,size=4M",
        "net0": "virtio=BC:24:11:0A:0B:0C,bridge=vmbr0",
        "meta": "creation-qemu=10.1.2,ctime=1764000000",
        "smbios1": "uuid=1",
        "vmgenid": "2",
    }


def seen(wanted: Wanted, **changes: Any) -> Seen:
    there = Seen(
        version=wanted.version,
        found=Found(as_stored(wanted)),
        name="glm5-a",
        running=True,
        lock="",
        cards=CARDS,
        mapping=tuple(map(str, CARDS)),
        mappings=("rtxpro6000",),
        storages={"local": "iso,import", "local-zfs": "images,rootdir"},
        rights=GRANTED,
    )
    return replace(there, **changes)


def acts(wanted: Wanted, state: Seen, *, is_root: bool = False, has_shell: bool = False) -> list[Any]:
    return plan(wanted, state, is_root=is_root, has_shell=has_shell)


def test_a_converged_vm_wants_nothing(make_wanted: MakeWanted) -> None:
    for changes in ({}, {"hugepages": True}, {"affinity": "0-63"}, {"clique": True}, {"vlan": 7}, {"rombar": False}):
        wanted = make_wanted(**changes)
        stored = as_stored(wanted)
        if "vlan" in changes:
            stored["net0"] += ",tag=7"
        assert acts(wanted, seen(wanted, found=Found(stored))) == [], changes


def test_a_new_vm(make_wanted: MakeWanted) -> None:
    wanted = make_wanted()
    state = seen(wanted, found=None, running=False, mapping=None, mappings=(), has_image=False)
    found = acts(wanted, state)
    assert [type(act) for act in found] == [Map, Download, Create, Grow, Start]
    assert [type(act) for act in acts(wanted, replace(state, has_image=True, mapping=seen(wanted).mapping))] == [
        *(Create, Grow, Start)
    ]


def test_only_what_differs_is_written(make_wanted: MakeWanted) -> None:
    wanted = make_wanted()
    stored = {**as_stored(wanted), "balloon": "2048", "hostpci8": "mapping=rtxpro6000,pcie=1"}
    first, *rest = acts(wanted, seen(wanted, found=Found(stored)))
    assert isinstance(first, Configure)
    assert dict(first.settings) == {"balloon": "0"}
    assert first.delete == ("hostpci8",)
    assert [type(act) for act in rest] == [PowerCycle]
    assert "balloon 2048 -> 0" in first.details


def test_an_option_that_left_the_inventory_leaves_the_vm(make_wanted: MakeWanted) -> None:
    """By `delete`, or as a part of its string; what a person added beside ours stays."""
    full = make_wanted("9.2.11", vlan=7, affinity="0-3", hugepages=True, phys_bits=45, rombar=False)
    stored = {**as_stored(full), "net0": "virtio=BC:24:11:0A:0B:0C,bridge=vmbr0,tag=7", "description": "a person's"}
    less = make_wanted("9.2.11", nameservers=(), search_domain=None, gateway=None)
    first, *_ = acts(less, seen(less, found=Found(stored)), is_root=True)
    assert set(first.delete) == {"affinity", "hugepages", "keephugepages", "nameserver", "searchdomain"}
    settings = dict(first.settings)
    assert settings["net0"] == "virtio,bridge=vmbr0,macaddr=BC:24:11:0A:0B:0C"
    assert settings["cpu"] == "host"
    assert settings["ipconfig0"] == "ip=192.0.2.10/24"
    assert settings["hostpci7"] == "mapping=rtxpro6000,pcie=1"


def test_what_a_running_vm_takes_needs_no_power_cycle(make_wanted: MakeWanted) -> None:
    wanted = make_wanted()
    found = acts(wanted, seen(wanted, found=Found({**as_stored(wanted), "protection": "0", "onboot": "1"})))
    assert [type(act) for act in found] == [Configure]


def test_a_change_that_waits_is_told_and_not_written_again(make_wanted: MakeWanted) -> None:
    wanted = make_wanted()
    stored = {**as_stored(wanted), "memory": "1024"}
    state = seen(wanted, found=Found(stored, pending={"memory": "786432"}))
    found = acts(wanted, state)
    assert [type(act) for act in found] == [PowerCycle]
    assert acts(wanted, replace(state, running=False)) == [Start("start")]


def test_the_disks_options_are_mended_and_the_rest_of_it_kept() -> None:
    found = Found({"scsi0": "local-zfs:vm-129-disk-1,cache=none,size=1000G,ssd=1"})
    difference = compare({}, found)
    assert difference.set == {
        "scsi0": "local-zfs:vm-129-disk-1,cache=none,size=1000G,ssd=1,discard=on,iothread=1,backup=0"
    }


def test_a_nic_keeps_its_address() -> None:
    assert merged("net0", "virtio,bridge=vmbr1", "virtio=BC:24:11:0A:0B:0C,bridge=vmbr0,firewall=1") == (
        "virtio,bridge=vmbr1,macaddr=BC:24:11:0A:0B:0C,firewall=1"
    )


def test_a_renumbered_bus_makes_the_mapping_anew(make_wanted: MakeWanted) -> None:
    """A kernel upgrade moved every card (strongtz/i915-sriov-dkms #328)."""
    wanted = make_wanted()
    moved = tuple(replace(card, path=card.path.replace("0000:0", "0000:4")) for card in CARDS)
    (act,) = acts(wanted, seen(wanted, cards=moved))
    assert isinstance(act, Map)
    assert act.entries == tuple(map(str, moved))
    assert not act.new


def test_another_nodes_entries_of_a_mapping_stay(make_wanted: MakeWanted) -> None:
    wanted = make_wanted()
    foreign = "node=other,path=0000:99:00.0,id=10de:2bb5,iommugroup=3,subsystem-id=10de:204e"
    state = seen(wanted, mapping=(foreign, *map(str, CARDS[:7])))
    (act,) = acts(wanted, state)
    assert act.entries[0] == foreign
    assert len(act.entries) == 9
    assert acts(wanted, replace(state, mapping=(foreign, *map(str, CARDS)))) == []


def test_a_misspelled_mapping_is_suggested(make_wanted: MakeWanted) -> None:
    wanted = make_wanted(mapping="rtxpro600")
    (act, *_) = acts(wanted, seen(wanted, mapping=None, mappings=("rtxpro6000",), found=None, running=False))
    assert "did you mean rtxpro6000?" in act.line


@pytest.mark.parametrize(("is_root", "has_shell"), [(True, False), (True, True), (False, True), (False, False)])
def test_roots_keys_go_by_the_way_that_exists(make_wanted: MakeWanted, is_root: bool, has_shell: bool) -> None:
    wanted = make_wanted(clique=True, hugepages=True)
    state = seen(wanted, found=Found(as_stored(make_wanted())))
    if not is_root and not has_shell:
        with pytest.raises(UsageError, match=r"only root@pam with a password set hugepages, keephugepages, args"):
            acts(wanted, state)
        return
    first, cycle = acts(wanted, state, is_root=is_root, has_shell=has_shell)
    assert first.by_shell is not is_root
    assert {key for key, _ in first.settings} == {"hugepages", "keephugepages", "args"}
    assert isinstance(cycle, PowerCycle)


def test_a_grant_is_taken_back(make_wanted: MakeWanted) -> None:
    granted = Found(as_stored(make_wanted(clique=True)))
    first, _ = acts(make_wanted(), seen(make_wanted(), found=granted), is_root=True)
    assert first.delete == ("args",)
    first, _ = acts(make_wanted(), seen(make_wanted(), found=granted), has_shell=True)
    assert first.by_shell
    assert first.delete == ("args",)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "database"}, "called 'database', not 'glm5-a': it is left alone"),
        ({"in_ha": True}, "high availability"),
        ({"lock": "backup"}, "locked: backup"),
        ({"cards": CARDS[:7]}, "7 cards of 8"),
        ({"elsewhere": "pve2"}, "on the node pve2"),
    ],
)
def test_what_must_not_be_begun(make_wanted: MakeWanted, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckFailed, match=words):
        acts(make_wanted(), seen(make_wanted(), **changes))


def test_storages_are_checked_before_anything_is_made(make_wanted: MakeWanted) -> None:
    new = seen(make_wanted(), found=None, running=False)
    with pytest.raises(CheckFailed, match="does not take import"):
        acts(make_wanted(), replace(new, storages={"local": "iso", "local-zfs": "images"}))
    with pytest.raises(CheckFailed, match=r"no storage 'local-zfs'; did you mean local-zfs2\?"):
        acts(make_wanted(), replace(new, storages={"local": "import", "local-zfs2": "images"}))


def test_privileges_are_checked_before_anything_is_made(make_wanted: MakeWanted) -> None:
    new = seen(make_wanted(), found=None, running=False, rights={"/": {"VM.Audit": 1}, "/vms": {"VM.Allocate": 1}})
    with pytest.raises(CheckFailed) as caught:
        acts(make_wanted(), new)
    said = str(caught.value)
    assert "Mapping.Use on /mapping/pci/rtxpro6000" in said
    assert "VM.Allocate" not in said.partition("next:")[0]
    assert "VM.GuestAgent.Unrestricted" in said
    assert "VM.Monitor" not in said
    assert acts(make_wanted(), new, is_root=True) != []


def test_the_role_is_the_majors() -> None:
    assert "VM.Monitor" in rights.role(Version(8, 4), "a@pve")
    assert "VM.GuestAgent" not in rights.role(Version(8, 4), "a@pve")
    assert "VM.Monitor" not in rights.role(Version(9, 0), "a@pve")
    assert rights.role(Version(9, 0), "a@pve").endswith("; pveum acl modify / --roles Runbooks --users a@pve")
    assert rights.role(Version(9, 0), "a@pve!t").endswith(" --tokens 'a@pve!t'")


def test_a_new_mapping_is_made_on_the_folder_above(make_wanted: MakeWanted) -> None:
    vm = make_wanted(vlan=7).vm
    paths = {right.privilege: right.path for right in rights.needed(vm, "pve", Version(9, 0), mapping_is_new=True)}
    assert paths["Mapping.Modify"] == "/mapping/pci"
    assert paths["Mapping.Use"] == "/mapping/pci/rtxpro6000"
    assert paths["SDN.Use"] == "/sdn/zones/localnetwork/vmbr0/7"


def test_a_privilege_that_is_not_inherited_does_not_count() -> None:
    right = rights.Right("/storage/local-zfs", "Datastore.Audit", "")
    assert rights.missing([right], {"/": {"Datastore.Audit": 0}}) == [right]
    assert rights.missing([right], {"/storage/local-zfs": {"Datastore.Audit": 0}}) == []
    assert rights.missing([right], {"/": {"Datastore.Audit": 1}, "/storage/local-zfs": {}}) == [right]


def test_a_disk_never_shrinks(make_wanted: MakeWanted) -> None:
    with pytest.raises(RunbookError, match="never shrinks"):
        acts(make_wanted(disk_gib=500), seen(make_wanted()))
    (act,) = acts(make_wanted(disk_gib=2000), seen(make_wanted()))
    assert act == Grow("disk scsi0: 2000 GiB", gib=2000)
