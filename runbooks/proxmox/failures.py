"""Public failures of Proxmox, passthrough and big PCI windows: what is said, what causes it, what helps.

Each row names where it was reported. The first row that matches wins, so the particular stand above the general.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """`pattern` is searched in what PVE, a kernel or a guest said; `what` and `cure` are for whoever has to act."""

    pattern: str
    what: str
    cure: str
    page: str
    source: str


_START, _API, _CARDS, _WINDOW = "vm-start", "proxmox-api", "gpu-reset", "guest-window"
_P2P = "peer-to-peer"

FAILURES = (
    # --- the call itself
    Failure(
        r"vfio_dma_map\(.*\) = -22|VFIO_MAP_DMA.*Invalid argument|vfio_container_dma_map\(.*= -22",
        "a card's memory lies above what the IOMMU can address: the VM runs, peer-to-peer between cards cannot work",
        "p2p: off, and phys_bits for the VM below the IOMMU's width (PVE 9.2)",
        _P2P,
        "bpg/terraform-provider-proxmox #1353",
    ),
    Failure(
        r"KVM_SET_USER_MEMORY_REGION failed",
        "memory hot-plug and the cards want the same addresses",
        "hotplug without memory and cpu; `invoke provision` sets disk,network,usb",
        _START,
        "fabriziosalmi/proxmox-vm-autoscale #6",
    ),
    Failure(
        r"can't lock file '[^']*' - got timeout|configuration to become unlocked|VM is locked \(",
        "another task holds the VM's lock",
        "wait for it: it is in the node's task list (a start with cards may take most of an hour)",
        _API,
        "bpg/terraform-provider-proxmox #935",
    ),
    Failure(
        r"hostpci\d+\.host: value does not match the regex pattern",
        "a mapping's name stands where a PCI address belongs",
        "mapping=NAME in hostpciN; `invoke provision` writes it so",
        _API,
        "Telmate/terraform-provider-proxmox #1029",
    ),
    Failure(
        r"PCI device mapping not found for|mapping '[^']*' (does not exist|not found)|no (such )?PCI mapping",
        "there is no PCI mapping of this name in the cluster",
        "the name must be exactly the mapping's id: Datacenter, Resource Mappings",
        _API,
        "Telmate/terraform-provider-proxmox #1499",
    ),
    Failure(
        r"filename: invalid filename or wrong extension|invalid filename or wrong extension",
        "the node does not take a file of this name as an image: content `import` exists from PVE 8.4 on, for "
        ".qcow2, .raw, .vmdk and .ova",
        "upgrade the node to 8.4 or newer; call the file .qcow2 in `image.file` (Ubuntu's .img is a qcow2)",
        _API,
        "bpg/terraform-provider-proxmox #2076, community.proxmox #53",
    ),
    Failure(
        r"has wrong type '\w+' - needs to be 'images' or 'import'",
        "the image lies on the storage as something that cannot be imported",
        "let provisioning download it again: content `import`, an uncompressed .qcow2 or .raw",
        _API,
        "bpg/terraform-provider-proxmox #2445",
    ),
    Failure(
        r"invalid privilege 'VM\.Monitor'",
        "VM.Monitor does not exist any more on PVE 9",
        "VM.GuestAgent.Audit and VM.GuestAgent.Unrestricted in the role instead",
        _API,
        "Telmate/terraform-provider-proxmox #1365",
    ),
    Failure(
        r"only root can set '(\w+)' config",
        "PVE lets only root@pam with a password set this; an API token of root is not root@pam",
        "a `password` for root@pam in the inventory, or `ssh` for the node, or do without the setting",
        _API,
        "proxmox/qemu-server API2/Qemu.pm",
    ),
    Failure(
        r"Permission check failed",
        "the account may not do this",
        "give its role the privilege that is named; `invoke doctor --node` lists all that are needed",
        _API,
        "bpg/terraform-provider-proxmox #2091",
    ),
    Failure(
        r"(?<![\w.,:])401 (authentication failure|No ticket|permission denied)|invalid PVE ticket|no such (user|token)",
        "the API refuses the login",
        "the token's id and value in the inventory, or the password; the clock of the node, for tickets",
        _API,
        "PVE::AccessControl",
    ),
    Failure(
        r"cluster not ready - no quorum|no quorum\?",
        "the cluster has no quorum: its configuration is read-only, and no VM can be started or changed",
        "`pvecm status` on a node: bring the other nodes back first",
        _API,
        "PVE::Cluster",
    ),
    Failure(
        r"storage '[^']+' (is not available on node|does not exist)",
        "a storage is not on this node, or is called otherwise",
        "`storage` of the VM or its image in the inventory: `pvesm status` on the node lists them",
        _API,
        "PVE::Storage",
    ),
    Failure(
        r"hostname lookup.* failed",
        "there is no node of this name in the cluster",
        "`name` of the node in the inventory, as the tree of the web interface shows it",
        _API,
        "PVE::HTTPServer",
    ),
    Failure(
        r"[Oo]ut of space|[Nn]o space left on device|not enough (free )?space|insufficient free space",
        "a storage of the node is full",
        "`pvesm status` on the node; room on it, or another `storage` for the VM or its image",
        _API,
        "PVE::Storage",
    ),
    Failure(
        r"unable to create VM \d+ - VM \d+ already exists|VM \d+ already exists",
        "the VM's number is taken",
        "another `id` for this VM in the inventory",
        _API,
        "PVE::API2::Qemu",
    ),
    # --- the start
    Failure(
        r"start failed: .*got timeout",
        "the start took longer than PVE waits: it pins all memory and maps every card's, which takes minutes",
        "`invoke provision` gives it the time; by hand: qm start ID --timeout 3600. 1 GiB pages make it quick",
        _START,
        "bpg/terraform-provider-proxmox #935; PVE::QemuServer::Helpers, config_aware_timeout",
    ),
    Failure(
        r"qmp command '[^']*' failed - got timeout|unable to connect to VM \d+ qmp socket",
        "QEMU does not answer its monitor: it maps the cards' memory, which takes minutes, or it hangs with a card",
        "wait ten minutes; then `ps` on the node: a kvm process in state D ends with a cold boot of the node only",
        _START,
        "PVE::QMPClient; tianocore/edk2 #10856",
    ),
    Failure(
        r"timeout waiting on systemd",
        "the VM's scope of its last run is still there: a process of it has not ended, mostly one that a card holds",
        "systemctl stop ID.scope on the node; a kvm process in state D ends with a cold boot of the node only",
        _START,
        "PVE::Systemd, wait_for_unit_removed",
    ),
    Failure(
        r"[Cc]annot bind \S+ to vfio|failed to open /dev/vfio/\d+: No such file",
        "vfio-pci did not get the card: another driver of the node holds it",
        "`invoke provision --tags node` keeps nvidia and nouveau off; `invoke doctor --node` names the driver",
        _START,
        "PVE::QemuServer::PCI, prepare_pci_device",
    ),
    Failure(
        r"No interrupt remapping support|failed to setup container for group|Failed to set iommu for container",
        "the node's IOMMU does not remap interrupts, so vfio refuses its devices",
        "interrupt remapping (x2APIC) on in the firmware; unsafe interrupts only where every guest is trusted",
        "node-prepare",
        "pve-docs, PCI passthrough",
    ),
    Failure(
        r"KVM virtualisation configured, but not available",
        "the node's processor does not offer virtualisation: it is off in the firmware, or the node is a VM itself",
        "VT-x or SVM on in the firmware; nested virtualisation for a node that is a VM",
        "node-prepare",
        "PVE::QemuServer",
    ),
    Failure(
        r"volume '[^']+' does not exist",
        "a disk of the VM is not on the storage where its configuration says",
        "`qm config ID` and `pvesm list STORAGE` on the node; `qm rescan` finds what was moved",
        _START,
        "PVE::Storage",
    ),
    Failure(
        r"error getting device from group \d+: Permission denied|Verify all devices in group \d+ are bound to vfio",
        "the node's kernel does not hand the IOMMU group over: known of 6.8.12-12-pve and 6.14.8-1-pve",
        "pin the kernel that worked: proxmox-boot-tool kernel pin VERSION, then reboot the node",
        _START,
        "strongtz/i915-sriov-dkms #312, #322",
    ),
    Failure(
        r"hardware probably changed|no pci device info for device",
        "the cards have other PCI addresses than the mapping says: a kernel, a firmware or a slot has changed",
        "`invoke provision --tags vm` writes the mapping from what the node has now; then compare serial numbers",
        _START,
        "strongtz/i915-sriov-dkms #328; PVE::Mapping::PCI",
    ),
    Failure(
        r"IOMMU not (present|enabled)|no iommu_group found|doesn't support passthrough of host PCI devices",
        "the IOMMU is off on the node: no card can be given to a VM",
        "VT-d or AMD-Vi on in the firmware, then `invoke provision --tags node` and its reboot",
        "node-prepare",
        "pve-docs, PCI passthrough; BigAnteater/KVM-GPU-Passthrough #19",
    ),
    Failure(
        r"/dev/vfio/\d+: Device or resource busy|Attempting to remove device .* with non-zero usage count",
        "something else holds a card on the node: another VM, or a driver that is in use",
        "shut the other VM down; `invoke doctor --node` names the driver of each card",
        _START,
        "QEMU hw/vfio; QaidVoid/Complete-Single-GPU-Passthrough #44",
    ),
    Failure(
        r"group \d+ is not viable|ensure all devices within the iommu_group are bound",
        "a device in the card's IOMMU group still has another driver: mostly the card's own audio function",
        "`invoke provision --tags node` binds both to vfio-pci; `invoke doctor --node` names the sibling",
        _START,
        "NVIDIA/kubevirt-gpu-device-plugin #50",
    ),
    Failure(
        r"PCI device '[^']*' already in use by VMID '\d+'|device .* already in use by",
        "another VM has one of the cards",
        "shut that VM down, or take the card out of it",
        _START,
        "PVE::QemuServer::PCI",
    ),
    Failure(
        r"pci_irq_handler: Assertion|Unable to change power state from D3\w+ to D0|stuck in D3",
        "a card fell asleep (D3cold) and does not wake up",
        "`invoke provision --tags node` forbids that sleep; the card itself needs a cold boot of the node",
        _CARDS,
        "kata-containers #11708",
    ),
    Failure(
        r"not ready \d+ms after [\w ]+(; giving up)?|kvm run failed Bad address|failed to read device config space"
        r"|reset recovery - restoring BARs|VFIO_MAP_DMA failed: Bad address",
        "a card did not come back from its reset",
        "only a cold boot of the node (power off, wait, on) brings it back; do not start the VM over and over",
        _CARDS,
        "NVIDIA/open-gpu-kernel-modules #853, #949; ROCm #3414",
    ),
    Failure(
        r"timed out waiting for pending transaction|Unable to determine the device handle for GPU|\(rev ff\)|Width x0",
        "a card fell off the bus: its link went down (power, cable or riser)",
        "cold boot of the node; a second time: reseat or take out of service. lspci on the node may still name it",
        _CARDS,
        "a public 8 x RTX 3080 guide",
    ),
    Failure(
        r"failed to reset PCI device|no available reset mechanism",
        "a card could not be reset before the start; PVE went on, as not every card needs it",
        "look at the cards in the guest: if one is missing, cold boot of the node",
        _CARDS,
        "PVE::QemuServer::PCI, prepare_pci_device",
    ),
    Failure(
        r"hugepage allocation failed|hugepages? .*not enough|not enough .*hugepages",
        "not enough free 1 GiB pages on one of the NUMA nodes",
        "`hugepages_gib` for the node, then reboot it: on a running node none of this size can be found",
        _START,
        "PVE::QemuServer::Memory",
    ),
    Failure(
        r"total memory for NUMA nodes must be equal to vm static memory",
        "the NUMA nodes' memory does not add up to the VM's",
        "`invoke provision` writes sums that fit; somebody changed numaN or memory by hand",
        _START,
        "PVE::QemuServer::Memory",
    ),
    Failure(
        r"Cannot allocate memory|cannot set up guest memory",
        "the node has not enough free memory: all of the VM's is pinned from the start",
        "less `memory_gib`, or fewer other VMs (ZFS's ARC counts as well)",
        _START,
        "PVE",
    ),
    Failure(
        r"systemd-modules-load\.service",
        "the node's boot waits for modules that should not be listed: nvidia, or vfio_virqfd (gone since 6.2)",
        "take them out of /etc/modules and /etc/modules-load.d; `invoke provision --tags node` takes vfio_virqfd out",
        "node-prepare",
        "cloudmigration.blog",
    ),
    Failure(
        r"BAR \d+: can't reserve|vfio_region_write\(.*failed: Device or resource busy",
        "the node's own console sits on a card",
        "the BMC's VGA as primary in the firmware's set-up, or initcall_blacklist=sysfb_init in kernel_options",
        "node-prepare",
        "pve-docs, PCI passthrough",
    ),
    # --- the guest
    Failure(
        r"NVRM: BAR\d+ is 0M|PCI I/O region assigned to your NVIDIA device is invalid|can't assign; no space",
        "the guest's PCI window is too small for a card's memory",
        "cpu: host (kvm64's 40 address bits leave no room), no -pdpe1gb; OVMF as PVE ships it",
        _WINDOW,
        "kubevirt #11093, harvester #8972, tianocore/edk2 #12997",
    ),
    Failure(
        r"PlatformDynamicMmioWindow|window exhausted",
        "the firmware sized its PCI window by a rule that is too small for these cards",
        "cpu: host with 43 address bits or more: 1 TiB is what eight cards need",
        _WINDOW,
        "tianocore/edk2 #12997, #10856",
    ),
    Failure(
        r"\bXid\b.*: (119|154)\b|GSP heartbeat|WPR2 latched",
        "a card's firmware (GSP) hangs; a warm reboot keeps it that way",
        "open kernel modules only, then a cold boot of the node",
        "gpu-lost",
        "NVIDIA/open-gpu-kernel-modules #1353",
    ),
    Failure(
        r"(?<![\w.,:])(?-i:59[569] (?:[A-Z]\w+ [a-z]|tls_))|\bHTTP 59[569]\b|got timeout"
        r"|Reached timeout while waiting for|[Tt]oo many redirections",
        "the API's proxy gave up waiting; the work itself may go on",
        "the same command again: it looks at what has become of it",
        _API,
        "bpg #1353, Telmate #1115, #467",
    ),
)


def explain(text: str) -> Failure | None:
    """The public failure that this is, or None."""
    return next((failure for failure in FAILURES if re.search(failure.pattern, text)), None)
