"""The signature table: what a line looks like, what it means, which page, and where that was seen in public.

`rank` says how near a line stands to the beginning of the crash chain: 0 is a root (the kernel killed it), 9 is an echo
(systemd saw status 9/KILL, which NaN, an OOM kill and a clean stop of SGLang 0.5.10 all end in). The lowest rank wins.
Patterns are for the kind of line, not for the instance: no addresses, versions or names of one machine.
"""

from __future__ import annotations

from runbooks.diagnose import build, clients, hypervisor, machine, running, start
from runbooks.diagnose.signature import Signature

SIGNATURES: tuple[Signature, ...] = (
    *machine.kernel(),
    *machine.driver(),
    *start.runtime(),
    *start.kernels(),
    *build.pip(),
    *start.arguments(),
    *start.model(),
    *start.memory(),
    *running.numbers(),
    *clients.requests(),
    *running.together(),
    *hypervisor.node(),
    *build.apt(),
    *build.network(),
    *running.echoes(),
    *clients.between(),
)

HARMLESS = (
    r"Ignore import error when loading",  # optional model classes
    # every open module that nobody signed says so
    r"module verification failed: signature and/or required key missing - tainting kernel",
    r"Config file not found at .*\.json",  # a slower default, not a failure
    r"UserWarning|DeprecationWarning|FutureWarning|SyntaxWarning|RuntimeWarning: coroutine",
    r"server_args=",  # repeats every setting, names of failures among them
    r"\b(?:Receive|Finish): obj=(?!.*!{15})",  # log_requests: what users ask about is no failure of the server's
    r"Command line:|BOOT_IMAGE=",  # kernel options name what they switch off
    r"errors=remount-ro|panic=\d|AER: enabled with IRQ|AER: Corrected|severity=Correct",
    r"PCIe link .*(?:limited by|capable of)|available PCIe bandwidth",  # inside a VM the link's speed is cosmetic
    r"\b0 errors?\b|\bno errors?\b|errors?: 0\b|failed: 0\b|(?<![<>=] )\b0 failed\b|without errors?",
    r"\bras/\w+\.cc:\d+ NCCL WARN|NCCL INFO RAS ",  # its status port is taken; the collectives do not need it
    r"Selecting previously unselected|^Get:\d|^Unpacking |^Setting up |^Preparing to unpack|^Collecting "
    r"|^Requirement already|^Downloading (?!.*\bfail)",  # package names such as liberror-perl
    r"HTTP/\d\.\d\"? (?:[1-4]\d\d|503)\b.*$(?<!\})",  # an access line: a client's mistake, or a probe while it starts
    r"nvcc warning|ptxas info|: warning:|^warning: |warning #\d+-D",
    r"\bsshd(?:-session)?\[\d+\]: ",  # what strangers try at the door
    # services that complain every day, and have nothing to do with a model's server
    r"\b(?:fwupd|snapd|logrotate|packagekitd|multipathd|udisksd|ModemManager|ubuntu-\w+|apport\w*)\[\d+\]: ",
    r"\bACPI\b.*(?:rror|ailed to evaluate|AE_\w+)",
    r"Setup Custom allreduce failed .*To silence this warning",  # it goes on with NCCL
    r"destroy_process_group\(\) was not called",
    r"^\s*(?:--|\[-|usage:)",  # argparse prints every option
    r"Loading kernel module configfs|Xid:? none|Failed units: 0|Scheduled restart job.*counter is at 0",
    r"Failed to set fd limit|system\" message bus",  # dbus in a container, or none there
    r"^WARNING: (?:Connection timed out while|Retrying|Attempting to resume)",  # pip, which goes on
)
"""Lines that speak of failures and are none."""
