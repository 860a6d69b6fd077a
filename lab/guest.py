"""One guest: a real Debian host with systemd as PID 1, its own address and its own SSH host key."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.machine import create_key, lend_settings, sh, write
from lab.network import Network
from lab.process import Process
from runbooks.engine.errors import RunbookError

GOODBYE = 60.0  # seconds that a busy machine may take to end a guest's processes
BOOT_PATIENCE = 60.0  # seconds until ssh must answer; two are usual, thirty when forty guests boot at once
Bind = tuple[Path, str]  # a folder of this machine, and where guests see it, read-only


@dataclass(frozen=True)
class Guest:
    """`name` is the host's own and the inventory's; `machine` tells guests of several labs apart on this machine."""

    name: str
    index: int
    network: Network
    place: Path  # its folder: upper (what differs from the base), console.log
    keys: Path  # the lab's folder with id_ed25519 and known_hosts

    @property
    def address(self) -> str:
        return f"{self.network.prefix}{11 + self.index}"

    @property
    def machine(self) -> str:
        return f"{self.network.bridge}-{letters(self.index)}"

    @property
    def link(self) -> str:
        """This machine's end of the guest's cable, as systemd-nspawn names it."""
        return f"vb-{self.machine}"

    @property
    def console(self) -> Path:
        return self.place / "console.log"

    # -- looking at it, over plain ssh -------------------------------------------------------------------------------

    def ssh(self, *options: str, user: str = "root") -> list[str]:
        """The ssh command line of this guest: strict about the pinned key, no settings of whoever runs it."""
        settings = [
            "IdentitiesOnly=yes",
            "StrictHostKeyChecking=yes",
            f"UserKnownHostsFile={self.keys / 'known_hosts'}",
        ]
        chosen = [word for setting in settings for word in ("-o", setting)]
        return [
            "ssh",
            "-F",
            "/dev/null",
            "-i",
            str(self.keys / "id_ed25519"),
            *chosen,
            *options,
            f"{user}@{self.address}",
        ]

    def run(
        self, shell: str, *, user: str = "root", check: bool = True, timeout: float = 60.0, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run shell text over plain ssh, independent of the product. `check`: other than exit 0 is an error."""
        argv = [*self.ssh("-o", "BatchMode=yes", "-o", "ConnectTimeout=5", user=user), shell]
        done = subprocess.run(
            argv, capture_output=True, encoding="utf-8", errors="replace", input=stdin, timeout=timeout, check=False
        )
        if check and done.returncode != 0:
            last = (done.stderr or done.stdout).strip().splitlines()[-8:]
            raise RunbookError(f"ended with {done.returncode}: {shell}", host=self.name, details=last)
        return done

    def write(self, path: str, text: str) -> None:
        """Put a file on the running guest, e.g. the knobs of a stand-in."""
        self.run(f"cat >{path}", stdin=text)

    def boot_id(self) -> str:
        return self.run("cat /proc/sys/kernel/random/boot_id").stdout.strip()

    # -- its life ----------------------------------------------------------------------------------------------------

    def create(self, *, pin: bool = True) -> None:
        """What makes it a host of its own: names, address, keys. The rest is the base tree.

        `pin`: its host key is known at once. False for a VM, whose key has to be found out.
        """
        upper = self.place / "upper"
        for folder in ("upper", "work", "root"):
            (self.place / folder).mkdir(parents=True)
        write(upper / "etc/hostname", f"{self.name}\n")
        write(upper / "etc/hosts", f"127.0.0.1 localhost\n{self.address} {self.name}\n")
        write(upper / "etc/machine-id", f"{uuid.uuid4().hex}\n")
        write(
            upper / "etc/systemd/network/10-host0.network",
            f"[Match]\nName=host0\n\n[Link]\nMTUBytes={self.network.mtu}\n\n"
            f"[Network]\nAddress={self.address}/24\nGateway={self.network.gateway}\n",
        )
        lend_settings(upper)
        self._create_host_key(upper / "etc/ssh/ssh_host_ed25519_key", pin=pin)
        client = (self.keys / "id_ed25519.pub").read_text()
        write(upper / "root/.ssh/authorized_keys", client, 0o600)
        (upper / "root").chmod(0o700)
        (upper / "root/.ssh").chmod(0o700)
        write(upper / "etc/ssh/ops_keys", client)
        own_keys = "Match User ops\n  AuthorizedKeysFile /etc/ssh/ops_keys\n"
        write(upper / "etc/ssh/sshd_config.d/lab.conf", own_keys)

    def _create_host_key(self, path: Path, *, pin: bool) -> None:
        """Made here, so its public half is known before the first connection: nothing is trusted on first sight."""
        create_key(path, comment=self.name)
        if not pin:
            return
        kind, key, _comment = path.with_suffix(".pub").read_text().split()
        with (self.keys / "known_hosts").open("a") as pinned:
            pinned.write(f"{self.address} {kind} {key}\n")

    def start(self, base: Path, binds: Sequence[Bind] = ()) -> Process:
        """Start booting; `wait` returns when it answers."""
        options = [
            "--quiet",
            "--boot",
            "--register=no",
            "--keep-unit",
            f"--hostname={self.name}",
            f"--network-bridge={self.network.bridge}",
            "--resolv-conf=off",
            "--timezone=off",
            "--link-journal=no",
            "--console=read-only",
            *(f"--bind-ro={source}:{target}" for source, target in binds),
        ]
        # The supervisor is the first process of its own process namespace: when it goes, the kernel ends all in there.
        apart = ["unshare", "--fork", "--pid", "--kill-child", "--mount", "--mount-proc", "--propagation", "slave"]
        if Path("/run/systemd/system").exists():  # this machine's systemd gives it control groups of its own
            scope = ["systemd-run", "--scope", "--quiet", "--collect", "--property=Delegate=yes"]
            apart = [*scope, f"--unit=runbooks-lab-{self.machine}", *apart]
        supervise = ["sh", str(Path(__file__).with_name("supervise.sh")), self.machine, str(base), str(self.place)]
        return Process.start([*apart, *supervise, *options], log=self.console)

    def wait(self, process: Process | None = None, *, patience: float = BOOT_PATIENCE) -> None:
        """Return when ssh answers and the guest's systemd has come to rest; else show the console's last lines."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and (process is None or process.alive()):
            if self.answers():
                left = max(1.0, deadline - time.monotonic())
                try:
                    self.run("systemctl is-system-running --wait", check=False, timeout=left)
                except subprocess.TimeoutExpired:
                    break
                return
            time.sleep(0.1)
        tail = self.console.read_text(errors="replace").splitlines()[-15:]
        raise RunbookError(
            f"does not answer ssh at {self.address} within {patience:.0f} s of its boot; its console says",
            host=self.name,
            details=tail,
            next=f"less {self.console}",
        )

    def answers(self) -> bool:
        """Its sshd greets, so its boot is nearly over."""
        try:
            with socket.create_connection((self.address, 22), timeout=1.0) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def wait_gone(self) -> None:
        """Return when its last process is gone: its end of the cable goes with it, and so does ours."""
        deadline = time.monotonic() + GOODBYE
        while Path(f"/sys/class/net/{self.link}").exists() or not self._control_groups_removed():
            if time.monotonic() > deadline:
                raise RunbookError(
                    f"was ended {GOODBYE:.0f} s ago, and this is still there", host=self.name, details=self._remains()
                )
            time.sleep(0.02)

    def _remains(self) -> list[str]:
        groups = Path("/sys/fs/cgroup").glob(f"**/{self.machine}/**/cgroup.procs")
        held = [f"{group.parent}: processes {group.read_text().split()}" for group in groups]
        return [*held, *(["its end of the cable"] if Path(f"/sys/class/net/{self.link}").exists() else [])]

    def _control_groups_removed(self) -> bool:
        """The kernel lets an empty control group go, and no other."""
        try:
            for tree in Path("/sys/fs/cgroup").glob(f"**/{self.machine}"):
                for folder in sorted((path for path in tree.rglob("*") if path.is_dir()), reverse=True):
                    folder.rmdir()
                tree.rmdir()
        except OSError:
            return False
        return True

    def reboot(self) -> None:
        """Reboot from inside, and return when it answers with a new boot_id."""
        before = self.boot_id()
        self.run("systemctl reboot", check=False)
        deadline = time.monotonic() + BOOT_PATIENCE
        while time.monotonic() < deadline:
            if self.answers():
                now = self.run("cat /proc/sys/kernel/random/boot_id", check=False)
                if now.returncode == 0 and now.stdout.strip() != before:
                    self.wait()
                    return
            time.sleep(0.1)
        raise RunbookError("was told to reboot and did not come back with a new boot_id", host=self.name)

    def power_button(self) -> None:
        """Ask for a clean shutdown from outside: systemd-nspawn passes SIGTERM on as one."""
        for command in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = command.read_bytes().split(b"\0")
                if words[0].endswith(b"systemd-nspawn") and self.machine.encode() in words:
                    os.kill(int(command.parent.name), signal.SIGTERM)

    def cut_link(self) -> None:
        """Pull the cable: packets stop, no connection is closed."""
        sh("ip", "link", "set", self.link, "down")

    def mend_link(self) -> None:
        sh("ip", "link", "set", self.link, "up")


def letters(index: int) -> str:
    """a, b … z, aa, ab …: as people number hosts."""
    text = ""
    index += 1
    while index:
        index, digit = divmod(index - 1, 26)
        text = chr(ord("a") + digit) + text
    return text
