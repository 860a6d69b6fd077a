"""Where the texts come from: a host, a file, a bundle of files, or what somebody pasted."""

from __future__ import annotations

import re
import secrets
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from runbooks import paths
from runbooks.engine.errors import UsageError
from runbooks.paths import expand

if TYPE_CHECKING:
    from runbooks.engine.transport import Connection

LARGEST = 50_000_000  # bytes of a file that are read; of a longer one the end
_KERNEL = re.compile(r"^(?:\[\s*\d+\.\d+\]|<\d>|\S+ +\d+ [\d:.]+ \S+ kernel: |\S+T[\d:.+-]+ \S+ kernel: )|NVRM:")
_SINCE = re.compile(r"(\d+)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

# nvidia-smi that waits in the kernel cannot be killed: it is left in the background, and its silence is an answer.
_GATHER = """\
echo '{mark} unit'; systemctl show -p {fields} {unit}
echo '{mark} journal'; journalctl -u {unit} --since '-{seconds}s' -o short-iso --no-pager -q -n 6000
echo '{mark} kernel'; journalctl -k --since '-{seconds}s' -o short-iso --no-pager -q -n 6000
echo '{mark} gpus'
if command -v nvidia-smi >/dev/null; then
  f=$(mktemp); ( nvidia-smi -L >"$f" 2>&1; echo done >>"$f" ) &
  i=0; while [ "$i" -lt 25 ] && ! grep -q '^done$' "$f"; do sleep 0.2; i=$((i + 1)); done
  if grep -q '^done$' "$f"; then cat "$f"; else echo 'nvidia-smi: no answer for 5 s'; fi; rm -f "$f"
fi
echo '{mark} installs'
find /var/log/apt/term.log /var/lib/dkms {jobs} -name '*log' -mmin -{minutes} 2>/dev/null |
  grep -v -e /canary- -e /bench- -e /collectives- |
  while read -r f; do tail -n 400 "$f"; done
"""
FIELDS = "ActiveState,SubState,Result,ExecMainCode,ExecMainStatus,NRestarts,LoadState"


@dataclass(frozen=True)
class Texts:
    """`installs`: logs of apt, dkms and our own jobs. `unit`: fields of `systemctl show`; empty where nobody asked."""

    journal: str = ""
    kernel: str = ""
    installs: str = ""
    unit: Mapping[str, str] = field(default_factory=dict)


def seconds(since: str) -> int:
    """'90s', '10m', '1h', '2d'. Raises UsageError for anything else."""
    match = _SINCE.fullmatch(since)
    if not match:
        raise UsageError(f"--since {since!r} is no length of time", details=["for example 30m, 1h or 2d"])
    return int(match[1]) * _SECONDS[match[2]]


def from_host(conn: Connection, since: str) -> Texts:
    """One exchange."""
    span = seconds(since)
    mark = f"rb-{secrets.token_hex(6)}"
    script = _GATHER.format(
        mark=mark,
        fields=FIELDS,
        unit=paths.UNIT_NAME,
        seconds=span,
        minutes=max(1, span // 60),
        jobs=paths.JOBS,
    )
    parts: dict[str, str] = {}
    for block in conn.ask(script, deadline=40).out.split(f"{mark} ")[1:]:
        name, _, body = block.partition("\n")
        parts[name] = body
    unit = dict(line.split("=", 1) for line in parts.get("unit", "").splitlines() if "=" in line)
    kernel = f"{parts.get('kernel', '')}\n{parts.get('gpus', '')}"
    return Texts(parts.get("journal", ""), kernel, parts.get("installs", ""), unit)


def from_file(name: str) -> Texts:
    """A log, `-` for what is piped in, a folder of logs, or a tar archive of them."""
    if name == "-":
        return from_text(sys.stdin.buffer.read(LARGEST).decode(errors="replace"))
    path = expand(name)
    try:
        if path.is_dir():
            files = {str(one): one.read_bytes()[-LARGEST:] for one in sorted(path.rglob("*")) if one.is_file()}
        elif tarfile.is_tarfile(path):
            files = _members(path)
        else:
            files = {name: path.read_bytes()[-LARGEST:]}
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror or error}") from None
    found = [from_text(data.decode(errors="replace")) for data in files.values()]
    return Texts("\n".join(one.journal for one in found), "\n".join(one.kernel for one in found))


def _members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        files = [member for member in archive.getmembers() if member.isfile() and member.size <= LARGEST]
        return {member.name: found.read() for member in files if (found := archive.extractfile(member))}


def from_text(text: str) -> Texts:
    """The kernel's lines stand apart: they are not part of any attempt to start."""
    lines = text.splitlines()
    kernel = [line for line in lines if _KERNEL.search(line)]
    return Texts("\n".join(line for line in lines if not _KERNEL.search(line)), "\n".join(kernel))
