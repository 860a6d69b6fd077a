"""A system that the later stages can build on: known, quiet, and with the tools that they use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from runbooks import paths
from runbooks.engine.facts import Facts
from runbooks.engine.step import Answers, Change, Diff, Question, Stage, Step, shell
from runbooks.inventory.shape import Inventory, Runtime
from runbooks.provision import interpreter
from runbooks.steps.checks import DiskFree, OperatingSystem
from runbooks.steps.files import Directory, File
from runbooks.steps.kernel import Sysctl
from runbooks.steps.packages import AptMirror, Packages, TimersRun, install
from runbooks.steps.services import User

TOOLS = (
    "ca-certificates", "curl", "kmod", "pciutils", "procps", "python3", "python3-dev", "python3-venv",
    "build-essential", "numactl", "libnuma1",
)  # fmt: skip

ROOM = 200e6  # bytes that a file system needs which only logs and small files are written to; as a deploy does

NO_UPGRADE = ("nvidia", "libnvidia", "cuda", "linux-modules-nvidia")


def stages(facts: Facts, inventory: Inventory, runtime: Runtime) -> list[Stage]:
    """Known system, cloud-init done, unattended upgrades away from the driver, proxy, tools, the service's account."""
    system: list[Step] = [
        OperatingSystem(facts=facts),
        DiskFree(path="/", needed=2e9, what="packages"),
        DiskFree(path=paths.STATE, needed=ROOM, what="jobs and their logs"),
        DiskFree(path=paths.ROOT, needed=ROOM, what="releases and runtimes"),
        DiskFree(path=str(PurePosixPath(paths.AUDIT).parent), needed=ROOM, what="the audit log"),
        CloudInitDone(),
    ]
    mirror = [] if inventory.apt_mirror is None else [AptMirror(url=inventory.apt_mirror)]
    apt: list[Step] = [
        _upgrades_leave_the_driver_alone(),
        *_proxy(inventory.proxy),
        *mirror,
        TimersRun(),
        Packages(names=(*TOOLS, *_of_runtime(facts, runtime))),
    ]
    settings: list[Step] = [
        User(name=inventory.server.user, home=paths.STATE),
        Directory(path=paths.ROOT),
        Directory(path=paths.STATE),
        Directory(path=paths.WHEELS),
        *interpreter.archived(facts, runtime, proxy=inventory.proxy),
        _limits(),
        *_kernel_settings(facts),
    ]
    tags = frozenset({"base"})
    return [Stage("system", tuple(system), tags), Stage("base", (*apt, *settings), tags)]


def _upgrades_leave_the_driver_alone() -> File:
    """A driver library replaced under a loaded module is 'Driver/library version mismatch', and the server is gone."""
    names = "".join(f'  "^{name}";\n' for name in NO_UPGRADE)
    return File(
        path="/etc/apt/apt.conf.d/52runbooks",
        content=(
            "// runbooks: the driver changes by `invoke provision` only, never under a running server.\n"
            f"Unattended-Upgrade::Package-Blacklist {{\n{names}}};\n"
            'Unattended-Upgrade::Automatic-Reboot "false";\n'
        ),
    )


def _proxy(proxy: str | None) -> list[Step]:
    if proxy is None:
        return []
    content = f'Acquire::http::Proxy "{proxy}";\nAcquire::https::Proxy "{proxy}";\n'
    return [File(path="/etc/apt/apt.conf.d/51runbooks-proxy", content=content)]


def _of_runtime(facts: Facts, runtime: Runtime) -> tuple[str, ...]:
    """What building this runtime takes beyond the usual tools."""
    by_hand = (*(["git"] if runtime.sources else []), *(["patch"] if runtime.patches else []))
    return (*interpreter.packages(facts, runtime), *by_hand)


def _limits() -> File:
    """The unit has its own; these are for what people and benchmarks start by hand."""
    return File(
        path="/etc/security/limits.d/60-runbooks.conf",
        content=(
            "# runbooks: NCCL pins memory, and SGLang opens a socket a request.\n"
            "*    - memlock unlimited\nroot - memlock unlimited\n*    - nofile  1048576\nroot - nofile  1048576\n"
        ),
    )


def _kernel_settings(facts: Facts) -> list[Step]:
    """A container has its machine's clock and settings, and may not change them."""
    if facts.is_container:
        return []
    return [
        ClockSynchronised(),
        Sysctl(
            name="runbooks",
            values={"kernel.numa_balancing": "0", "vm.swappiness": "1"},
            why="Pages of a running server are neither moved between NUMA nodes nor swapped out behind its back.",
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class CloudInitDone:
    """cloud-init came to its end: before that it installs, reboots and rewrites apt's sources under our feet."""

    id: str = "cloud-init"

    @property
    def _question(self) -> Question:
        return shell("! command -v cloud-init >/dev/null || cloud-init status 2>/dev/null | head -n 1")

    def questions(self) -> tuple[Question, ...]:
        return (self._question,)

    def plan(self, answers: Answers) -> Change | None:
        """'error' and 'degraded' are ends as well; what they broke shows itself in the steps that need it."""
        status = str(answers[self._question].get("out") or "").removeprefix("status:").strip()
        if status not in ("running", "not started", "not run"):  # before 23.4 it was called 'not run'
            return None
        script = "cloud-init status --wait || true"
        return Change(script=script, diff=(Diff(f"{status}; wait for its end"),), limit=1200)


_CLOCK = shell("""\
timedatectl show -p NTPSynchronized --value 2>/dev/null
for unit in chrony chronyd ntpsec ntp openntpd systemd-timesyncd; do
  if systemctl -q is-active "$unit"; then echo "$unit"; break; fi
done""")


@dataclass(frozen=True, kw_only=True)
class ClockSynchronised:
    """Something keeps the clock: a VM that was paused is hours behind, and apt, TLS and the audit log believe it.

    Whichever service is at work stays; where there is none, systemd's own is taken.
    """

    id: str = "time synchronisation"

    def questions(self) -> tuple[Question, ...]:
        return (_CLOCK,)

    def plan(self, answers: Answers) -> Change | None:
        at_work = [line for line in str(answers[_CLOCK].get("out") or "").splitlines() if line not in ("yes", "no")]
        if at_work:
            return None
        script = f"{install(['systemd-timesyncd'])}\nsystemctl enable --now systemd-timesyncd\ntimedatectl set-ntp true"
        return Change(script=script, diff=(Diff("nothing keeps the clock -> systemd-timesyncd"),))
