"""What a host is, asked first and once: steps are built from facts, so that no shell `if` hides a decision."""

from __future__ import annotations

from dataclasses import dataclass

from runbooks.engine.errors import CheckFailed
from runbooks.engine.transport import Connection

# Read by the shell itself where it can: each process that is started costs a millisecond or more.
_SCRIPT = """\
. /etc/os-release 2>/dev/null
say() { printf '%s=%s\\n' "$1" "$2"; }
get() { value=; [ ! -r "$2" ] || read -r value <"$2"; say "$1" "$value"; }
say os_id "$ID"; say os_version "$VERSION_ID"; say codename "$VERSION_CODENAME"
say arch "$(uname -m)"; say deb_arch "$(dpkg --print-architecture 2>/dev/null)"; say cores "$(nproc)"
get kernel /proc/sys/kernel/osrelease; get boot_id /proc/sys/kernel/random/boot_id; get fqdn /proc/sys/kernel/hostname
get memory /proc/meminfo
python=$(readlink -f "$(command -v python3)")
case $python in
  *python3.[0-9]|*python3.[0-9][0-9]) python=${python##*python} ;;
  *) python=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ;;
esac
say python "$python"
[ ! -d /run/systemd/system ] || { set -- $(systemctl --version); say systemd "${2%%[!0-9]*}"; }
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
    kibibytes = said.get("memory", "").removeprefix("MemTotal:").removesuffix("kB").strip()
    return Facts(
        **{name: said.get(name, "") for name in _TEXTS},
        cores=int(said.get("cores") or 1),
        memory_bytes=1024 * int(kibibytes or 0),
        systemd=int(said["systemd"]) if said.get("systemd") else None,
    )
