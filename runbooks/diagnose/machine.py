"""Signatures of the machine: the kernel's own words, and the builds of drivers and packages."""

from __future__ import annotations

from runbooks.diagnose.signature import Signature


def kernel() -> tuple[Signature, ...]:
    return (
        Signature(
            "oom-kill",
            (
                r"out of memory: killed process \d+ \(([^)]*)\)|oom-kill:|memory cgroup out of memory|oom_reaper: "
                r"reaped|with result 'oom-kill'"
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
                r"Xid.*: (?:79|119|120|154|140|95|94|74|62|48)\b.*|fallen off the bus|GPU is lost|Unable to determine "
                r"the device handle"
            ),
            "a GPU is lost or its firmware hangs ({0})",
            "invoke health shows which one; it needs the hypervisor's node, not a restart of the server",
            "gpu-lost",
            "NVIDIA/open-gpu-kernel-modules #1111, #1151, #1353; NVIDIA forum 364958",
            rank=0,
            where="any",
        ),
        Signature(
            "pci-window",
            r"PCI I/O region assigned to your NVIDIA device is invalid|BAR\d is 0M @ 0x0",
            "the guest's PCI window is too small for the cards",
            "the firmware and CPU settings of the VM, on the hypervisor's node",
            "gpu-lost",
            "forum.proxmox.com 179366",
            rank=0,
            where="any",
        ),
        Signature(
            "closed-modules",
            r"requires use of the NVIDIA open kernel modules|RmInitAdapter failed|rm_init_adapter failed",
            "the driver does not start the cards: Blackwell works with the open kernel modules only",
            "invoke provision --tags driver",
            "driver-mismatch",
            "NVIDIA/open-gpu-kernel-modules #862, #872",
            rank=0,
            where="any",
        ),
        Signature(
            "module-rejected",
            r"Key was rejected by service|Required key not available|already bound to NovaCore",
            "the nvidia module may not be loaded: Secure Boot, or another driver holds the cards",
            "switch Secure Boot off in the VM, keep nouveau and nova off, reboot: invoke provision --tags driver",
            "driver-mismatch",
            "Olares #3963; kernel module signing",
            rank=1,
            where="any",
        ),
    )


def build() -> tuple[Signature, ...]:
    return (
        Signature(
            "dkms-build",
            r"Bad return status for module build|nvidia-dkms.*\(--configure\)|dkms.*returned error exit status 10"
            r"|Consult /var/lib/dkms",
            "the driver's module does not build for this kernel",
            "the headers of the running kernel, or a newer driver: invoke provision --tags driver",
            "driver-mismatch",
            "pop-os/pop #3811; linux-surface #1909",
            rank=1,
        ),
        Signature(
            "apt-held",
            r"you have held broken packages|held packages were changed",
            "packages of two repositories or branches exclude each other",
            "invoke provision --tags driver --check --diff shows the pins",
            "driver-mismatch",
            "NVIDIA/open-gpu-kernel-modules #537",
            rank=2,
        ),
        Signature(
            "apt-lock",
            r"Could not get lock /var/lib/dpkg|Unable to acquire the dpkg frontend lock",
            "another process installs packages",
            "wait until it is done, then the same command again",
            "deploy-failed",
            "Azure/aks-engine PR 1538; xnvme #634",
            rank=1,
        ),
        Signature(
            "flash-attn-isolation",
            r"No module named 'torch'.*|ninja: build stopped",
            "flash-attn's build failed",
            "the page has the usual reasons in order",
            "flash-attn-build",
            "flash-attention #246, #1421, #1920, #1683",
            rank=3,
        ),
        Signature(
            "nvcc-killed",
            r"nvcc.*(?:Segmentation fault|Killed)|cicc.*(?:Killed|died)|fatal error: Killed signal",
            "the CUDA compiler was killed, or crashed: too many jobs for the memory, or a CUDA version with a bug",
            "flash_attn.max_jobs in the inventory",
            "flash-attn-build",
            "flash-attention #1683, #2361",
            rank=1,
        ),
    )
