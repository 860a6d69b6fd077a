"""What a host is, asked first and once: steps are built from facts, so that no shell `if` hides a decision."""

from __future__ import annotations

from dataclasses import dataclass

from runbooks.engine.errors import CheckFailed
from runbooks.engine.transport import Connection

_SCRIPT = """\
. /etc/os-release 2>/dev/null
say() { printf '%s=%s\\n' "$1" "$2"; }
say os_id "$ID"; say os_version "$VERSION_ID"; say codename "$VERSION_CODENAME"
say arch "$(uname -m)"; say deb_arch "$(dpkg --print-architecture 2>/dev/null)"; say kernel "$(uname -r)"
say boot_id "$(cat /proc/sys/kernel/random/boot_id)"; say cores "$(nproc)"; say fqdn "$(hostname)"
say memory_kib "$(sed -n 's/^MemTotal: *\\([0-9]*\\).*/\\1/p' /proc/meminfo)"
say python "$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)"
[ ! -d /run/systemd/system ] || say systemd "$(systemctl --version | sed -n '1s/^systemd \\([0-9]*\\).*/\\1/p')"
say virt "$(systemd-detect-virt 2>/dev/null)"
if [ -e /etc/kernel/proxmox-boot-uuids ] && [ -d /sys/firmware/efi ]; then say boot_loader proxmox-boot-tool
elif [ -d /boot/grub ]; then say boot_loader grub
elif command -v bootctl >/dev/null && bootctl is-installed >/dev/null 2>&1; then say boot_loader systemd-boot
fi
"""

_TEXTS = (
    *("os_id", "os_version", "codename", "arch", "deb_arch"),
    *("kernel", "boot_id", "python", "virt", "boot_loader", "fqdn"),
)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """`memory_bytes` in bytes; `systemd` its version, None where PID 1 is something else; "" for what is not there."""

    os_id: str
    os_version: str
    codename: str
    arch: str
    deb_arch: str
    kernel: str
    boot_id: str
    cores: int
    memory_bytes: int
    python: str
    systemd: int | None
    virt: str
    boot_loader: str
    fqdn: str

    @property
    def is_container(self) -> bool:
        """Shares the kernel of the machine below it: no modules, boot loader or kernel headers of its own."""
        return self.virt in ("systemd-nspawn", "lxc", "lxc-libvirt", "docker", "podman", "openvz", "container-other")


def ask_facts(connection: Connection) -> Facts:
    """One exchange. Raises CheckFailed for a host that cannot say what it is."""
    answer = connection.ask(_SCRIPT, deadline=15)
    said = dict(line.split("=", 1) for line in answer.out.splitlines() if "=" in line)
    if not said.get("os_id") or not said.get("boot_id"):
        raise CheckFailed(
            "this host does not say which system it runs (no /etc/os-release, or no /proc)",
            host=connection.name,
            details=answer.err.splitlines()[-3:],
        )
    text = {
        name: said.get(name, "")
        for name in (
            *["os_id", "os_version", "codename", "arch", "deb_arch", "kernel", "boot_id"],
            "python",
            "virt",
            "fqdn",
        )
    }
    return Facts(
        **text,
        boot_loader=said.get("boot_loader", ""),
        cores=int(said.get("cores") or 1),
        memory_bytes=1024 * int(said.get("memory_kib") or 0),
        systemd=int(said["systemd"]) if said.get("systemd") else None,
    )
