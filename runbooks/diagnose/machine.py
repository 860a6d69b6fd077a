"""Signatures of the machine: the kernel's own words, the driver, and the disks."""

from __future__ import annotations

from runbooks.diagnose.signature import Signature

ONE_PROCESS = "13|31|43|45|63|92"
"""Xids after which the card goes on: faults of one process, and memory that repaired itself."""


def kernel() -> tuple[Signature, ...]:
    return (
        Signature(
            "oom-kill",
            (
                r"out of memory: kill(?:ed)? process \d+ \(([^)]*)\)|oom-kill:|memory cgroup out of memory|oom_reaper: "
                r"reaped|\bkilled process \d+ \(\S+\) total-vm|invoked oom-killer|with result 'oom-kill'"
                r"|systemd-oomd.*killed|killed .*by the OOM killer"
                r"|\boom[_ -]?kill(?:ed)?\b(?! 0|\"?: ?false|[ -]disable)|earlyoom.*sending SIG"
            ),
            "the kernel's OOM killer ended it: the machine (or the unit) ran out of main memory",
            "give the VM more memory, or load with fewer threads; then deploy again",
            "server-down",
            "sglang: 'exit code -9 … a common cause is the OS OOM killer'",
            rank=0,
            where="any",
        ),
        Signature(
            "gpu-lost",
            (
                rf"Xid \([^)]*\): (?!(?:{ONE_PROCESS})\b)\d+.*|\bXid[:=]? ?(?:46|48|62|74|79|95|119|120|140|154)\b.*"
                r"|fallen off the bus|GPU (?:is )?lost\b|GPU_IS_LOST|Unable to determine the device handle"
                r"|GPU requires reset|GPU is probably locked|cudaErrorDevicesUnavailable|cudaErrorECCUncorrectable"
                r"|RC all channels for critical"
                r"|uncorrectable (?:ECC|NVLink) error|GPU crash dump has been created"
                r"|access of peer GPU memory over nvlink or a hardware error"
            ),
            "a GPU is lost or its firmware hangs ({0})",
            "invoke health shows which one; it needs the hypervisor's node, not a restart of the server",
            "gpu-lost",
            "NVIDIA/open-gpu-kernel-modules #1111, #1151, #1353; NVIDIA forum 364958, 371272",
            rank=0,
            where="any",
        ),
        Signature(
            "gpu-firmware",
            r"WPR2 (?:already up|latched)|GSP.*(?:heartbeat|RPC response|timed? ?out|not responding)"
            r"|GSP.*(?:boot|init\w*) failed|RPC response from GPU\d* GSP|\bGSP Timeout\b|GSP-CrashCat"
            r"|failed to wait for GFW_BOOT",
            "a card's firmware (GSP) hangs; a warm reboot keeps it that way",
            "power the node off and on; open kernel modules only",
            "gpu-lost",
            "NVIDIA/open-gpu-kernel-modules #1104, #1111, #1353",
            rank=1,
            where="any",
        ),
        Signature(
            "pcie-link",
            r"AER: .*(?:Uncorrect\w+|Fatal)|PCIe Bus Error: severity=Uncorrect|Surprise (?:Link )?Down|SDES\+"
            r"|DPC: (?:containment event|unmasked uncorrect)|Link Layer Link Active not set"
            r"|pciehp.*(?:Link Down|Card not present)|aer_uncor_status: (?!0x0{8})0x|device is disconnected"
            r"|\(rev ff\)|link training failed",
            "a card's PCIe link went down: power, cable, riser or earth",
            "the node, not the server: power off and on, reseat; pcie_aspm=off pcie_port_pm=off on its command line",
            "gpu-lost",
            "sjug/rtx6kpro gpu-bus-drops; local-inference-lab/rtx6kpro common-issues.md",
            rank=1,
            where="any",
        ),
        Signature(
            "pci-window",
            r"PCI I/O region assigned to your NVIDIA device is invalid|BAR\d is 0M @ 0x0"
            r"|BAR \d+.*(?:no space|failed to assign)",
            "the guest's PCI window is too small for the cards",
            "the firmware and CPU settings of the VM, on the hypervisor's node",
            "gpu-lost",
            "forum.proxmox.com 179366; kubevirt #11093; harvester #8972",
            rank=0,
            where="any",
        ),
        Signature(
            "iommu-fault",
            r"AMD-Vi: .*IO_PAGE_FAULT|DMAR: \[(?:DMA |INTR-)[^\]]*\] .*fault",
            "a device reached for memory that it was not given: peer-to-peer through a translating IOMMU does this",
            "p2p: off for the VM, iommu=pt on the node; the address of the device stands in the line",
            "peer-to-peer",
            "vllm #51513; intel/compute-runtime #942",
            rank=5,
            where="any",
        ),
        Signature(
            "disk-broken",
            r"(?:Buffer )?I/O error,? (?:on )?dev|blk_update_request: I/O|EXT4-fs error|XFS .*(?:corruption|shutdown)"
            r"|Remounting filesystem read-only|(?<!Errno 30\] )Read-only file system"
            r"|critical (?:medium|target) error|nvme.*controller is down|nvme\d+: I/O .*timeout",
            "a disk fails: reads or writes end with an error",
            "look at the disk on the node before anything is written again",
            "disk-full",
            "the kernel's block layer",
            rank=1,
            where="any",
        ),
        Signature(
            "stuck-process",
            r"blocked for more than \d+ seconds|soft lockup|hard LOCKUP|rcu.*self-detected stall",
            "a process, or a core, has been stuck in the kernel for minutes: mostly a card that hangs, or a dead disk",
            "invoke health shows which part does not answer; such a process cannot be killed",
            "gpu-lost",
            "vllm #25127; the kernel's hung task detector",
            rank=3,
            where="any",
        ),
    )


def driver() -> tuple[Signature, ...]:
    return (
        Signature(
            "closed-modules",
            r"requires use of the NVIDIA open kernel modules",
            "the closed kernel modules are installed: Blackwell works with the open ones only",
            "invoke provision --tags driver",
            "driver-mismatch",
            "NVIDIA/open-gpu-kernel-modules #862, #872",
            rank=0,
            where="any",
        ),
        Signature(
            "driver-too-old",
            r"in this system (?:is|are) not supported by|NVRM: NVIDIA [\d.]+ driver release\."
            r"|NVIDIA driver on your system is too old|does not include the required GPU",
            "this driver does not know the card, or is older than the CUDA of the runtime wants",
            "a newer driver.version in the inventory: invoke provision --tags driver",
            "driver-mismatch",
            "NVIDIA/open-gpu-kernel-modules #322, #393; torch.cuda",
            rank=0,
            where="any",
        ),
        Signature(
            "driver-does-not-start",
            r"RmInitAdapter failed|rm_init_adapter failed|NVIDIA probe routine failed|annot initialize GSP"
            r"|firmware/nvidia/\S+ failed with error|Direct firmware load for nvidia/\S+ failed"
            r"|None of the NVIDIA [\w ]+ were initialized",
            "the driver does not start a card: the closed modules, a small PCI window, or a card that hangs",
            "modinfo -F license nvidia (open: Dual MIT/GPL); then invoke health",
            "driver-mismatch",
            "NVIDIA/open-gpu-kernel-modules #862, #872",
            rank=1,
            where="any",
        ),
        Signature(
            "module-rejected",
            r"Key was rejected by service|Required key not available|already bound to NovaCore"
            r"|Lockdown:.*unsigned module|Loading of (?:unsigned module|module with unavailable key) is rejected"
            r"|Unable to load the kernel module 'nvidia",
            "the nvidia module may not be loaded: Secure Boot, or another driver holds the cards",
            "switch Secure Boot off in the VM, keep nouveau and nova off, reboot: invoke provision --tags driver",
            "driver-mismatch",
            "Olares #3963; kernel module signing",
            rank=1,
            where="any",
        ),
        Signature(
            "nouveau",
            r"nouveau.*(?:unknown chipset|failed|error|timeout)|NVIDIA probe routine was not called"
            r"|conflicting driver.*nouveau|nouveau kernel driver is currently in use",
            "nouveau has the cards, and the real driver cannot have them",
            "nouveau off, initramfs anew, reboot: invoke provision --tags driver",
            "driver-mismatch",
            "NVIDIA's README, chapter on nouveau",
            rank=1,
            where="any",
        ),
        Signature(
            "nvidia-smi-hangs",
            r"nvidia-smi: no answer",
            "nvidia-smi hangs: a card, or its firmware, does not answer",
            "do not ask it again: each one hangs as well. It needs the hypervisor's node",
            "gpu-lost",
            "NVIDIA/open-gpu-kernel-modules #1111",
            rank=1,
            where="any",
        ),
        Signature(
            "driver-mismatch",
            r"Driver/library version mismatch|CUDA driver version is insufficient|API mismatch: the client"
            r"|forward compatibility was attempted|unsupported display driver / cuda driver combination"
            r"|NVML library version: \d|kernel module .* version \d.*but this",
            "the loaded kernel module and the driver's libraries have different versions",
            "invoke provision --tags driver (reboots when it has to)",
            "driver-mismatch",
            "unattended upgrades; canonical PR 78, pando85/homelab PR 4110",
            rank=1,
            where="any",
        ),
        Signature(
            "driver-in-use",
            r"NVIDIA (?:kernel )?driver.*\bin use|Module nvidia\w* is in use",
            "something uses the driver, so its module cannot be changed while it runs",
            "invoke provision --tags driver, which reboots; who it is: fuser -v /dev/nvidia*",
            "driver-mismatch",
            "NVIDIA/nvidia-docker #1242",
            rank=2,
            where="any",
        ),
        Signature(
            "driver-not-loaded",
            r"couldn't communicate with the NVIDIA driver|Module nvidia(?:_\w+)? not found|Failed to initialize NVML"
            r"|nvidia-persistenced.*Failed to query NVIDIA devices"
            r"|nvidia.*disagrees about version of symbol|nvidia-smi: (?:command )?not found|libcuda\.so.*cannot open"
            r"|CUDA driver initialization failed|nvidia.*version magic|could not insert 'nvidia\w*': (?:No such|Exec"
            r"|Inval|Unknown|Function not|Oper)",
            "the driver's module is not loaded, or not there for the kernel that runs",
            "invoke provision --tags driver (reboots when it has to)",
            "driver-mismatch",
            "dkms: the new kernel came without the module; pop-os/pop #3811",
            rank=2,
            where="any",
        ),
        Signature(
            "too-few-gpus",
            r"invalid device ordinal|(?:tp|tensor.parallel)\w*.{0,60}(?:greater|larger|more) than .{0,40}GPUs?\b",
            "the profile asks for more GPUs than the server sees",
            "invoke health shows which cards answer; CUDA_VISIBLE_DEVICES in the profile's environment hides some",
            "gpu-lost",
            "torch.cuda, cudaErrorInvalidDevice",
            rank=2,
            where="any",
        ),
        Signature(
            "no-gpus",
            r"No devices were found|torch\.cuda\.is_available\(\) is False"
            r"|No CUDA GPUs are available|no CUDA-capable device|No NVIDIA devices probed"
            r"|CUDA unknown error|Error 802: system not yet initialized",
            "the driver finds no GPU",
            "invoke health, then invoke provision --tags driver",
            "gpu-lost",
            "NVIDIA/open-gpu-kernel-modules #862",
            rank=2,
            where="any",
        ),
    )
