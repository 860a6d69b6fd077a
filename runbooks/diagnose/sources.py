"""Where the texts come from: a host, a file, a bundle of files, or what somebody pasted."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import secrets
import stat
import sys
import tarfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from runbooks import paths
from runbooks.diagnose.since import seconds
from runbooks.engine.errors import RunbookError, UsageError
from runbooks.engine.step import quote
from runbooks.paths import expand

if TYPE_CHECKING:
    from runbooks.engine.transport import Connection

LARGEST = 50_000_000  # bytes of a file that are read; of a longer one the end
_PACKED: Mapping[bytes, Callable[[Any], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
_PIPED = "invoke diagnose -"
_KERNEL = re.compile(r"^(?:\[\s*\d+\.\d+\]|<\d>|\S+ +\d+ [\d:.]+ \S+ kernel: |\S+T[\d:.+-]+ \S+ kernel: )|NVRM:")

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
echo '{mark} about'; cat {current}/release.json {current}/argv.json 2>/dev/null
echo '{mark} installs'
find /var/log/apt/term.log /var/lib/dkms {jobs} -name '*log' -mmin -{minutes} 2>/dev/null |
  grep -v -e /canary- -e /bench- -e /collectives- |
  while read -r f; do tail -n 400 "$f"; done
"""
BUNDLE = {"journal.txt", "unit.txt"}  # the names by which a folder is known as deploy's; see deploy/evidence.py
FIELDS = "ActiveState,SubState,Result,ExecMainCode,ExecMainStatus,NRestarts,LoadState"


@dataclass(frozen=True)
class Texts:
    """`installs`: logs of apt, dkms and our own jobs. `unit`: fields of `systemctl show`; empty where nobody asked.
    `about`: what names version and settings, and is no log."""

    journal: str = ""
    kernel: str = ""
    installs: str = ""
    unit: Mapping[str, str] = field(default_factory=dict)
    about: str = ""


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
        current=paths.CURRENT,
    )
    parts: dict[str, str] = {}
    for block in conn.ask(script, deadline=40).out.split(f"{mark} ")[1:]:
        name, _, body = block.partition("\n")
        parts[name] = body
    unit = _fields(parts.get("unit", ""))
    kernel = f"{parts.get('kernel', '')}\n{parts.get('gpus', '')}"
    return Texts(parts.get("journal", ""), kernel, parts.get("installs", ""), unit, parts.get("about", ""))


def from_file(name: str, *, bundle: bool = False) -> Texts:
    """A log, packed or not, `-` for what is piped in, a folder of logs, or a tar archive of them; also what a failed
    deploy saved."""
    path, files = expand(name), dict[str, str]()
    try:
        if name != "-" and path.is_dir():
            for one in sorted(path.rglob("*")):
                if one.is_file() and sum(map(len, files.values())) < LARGEST:
                    files |= _logs(str(one), one)
        else:
            files = _logs(name, None if name == "-" else path)
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror or error}") from None
    except (EOFError, zlib.error, lzma.LZMAError, tarfile.TarError) as error:
        raise UsageError(
            f"cannot read {name}: the archive is damaged ({error})", next=f"zcat {name} | {_PIPED}"
        ) from None
    if not files:
        raise UsageError(f"{name} holds no text", details=["a journal's own file: journalctl --file FILE | " + _PIPED])
    texts = {Path(one).name: text for one, text in files.items()}
    if not any(text.strip() for text in texts.values()):
        raise UsageError(f"{'what was piped in' if name == '-' else name} is empty: nothing can be found in it")
    if texts.keys() >= BUNDLE:
        return from_bundle(texts)
    if bundle:
        raise UsageError(f"{name} is no bundle of a failed deploy", details=[f"it lacks {', '.join(sorted(BUNDLE))}"])
    found = [from_text(text) for text in texts.values()]
    return Texts("\n".join(one.journal for one in found), "\n".join(one.kernel for one in found))


def from_bundle(texts: Mapping[str, str]) -> Texts:
    """What deploy keeps of a release that failed, by file name. `why.txt` is our own error, and no evidence; the list
    of processes and the files of the release speak of failures that are none."""
    kernel = f"{texts.get('kernel.txt', '')}\n{texts.get('nvidia-smi.txt', '')}"
    about = f"{texts.get('versions.txt', '')}\n{texts.get('release.txt', '')}"
    return Texts(texts.get("journal.txt", ""), kernel, unit=_fields(texts.get("unit.txt", "")), about=about)


def from_saved(conn: Connection, name: str) -> Texts:
    """A bundle that a failed deploy left on the host: its folder's name, or `latest`. Raises RunbookError where there
    is none."""
    chosen = "$(ls -1 | sort | tail -n 1)" if name == "latest" else quote(Path(name).name)
    said = conn.ask(f"cd {paths.DIAGNOSIS} 2>/dev/null && tar -cf - -- {chosen}", deadline=60)
    if said.rc or not said.raw:
        there = conn.ask(f"ls -1r {paths.DIAGNOSIS} 2>/dev/null | head -n 5").out.split()
        details = [f"there are: {', '.join(there)}" if there else "no deploy has failed on this host"]
        raise RunbookError(f"no bundle {name!r} on this host", host=conn.name, details=details)
    with tarfile.open(fileobj=io.BytesIO(said.raw)) as archive:
        files = {Path(one): data for one, data in _read(archive).items()}
    return from_bundle({one.name: data.decode(errors="replace") for one, data in files.items()})


def _fields(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if re.match(r"\w+=", line))


def _logs(name: str, path: Path | None) -> dict[str, str]:
    """The texts of a file, by name: of an archive its members, unpacked where it is packed. None: what is piped in."""
    with _opened(path) as file:
        begin = file.read(6)
        file.seek(0)
        unpack = next((opened for sign, opened in _PACKED.items() if begin.startswith(sign)), None)
        found = dict[str, bytes]()
        if archive := _archive(file, packed=unpack is not None):
            with archive:
                found = _read(archive)
        if not found:  # no archive; or zero bytes, which are one of nothing
            file.seek(0)
            found = {name: _end(unpack(file) if unpack else file)}
    texts = {one: _text(data) for one, data in found.items()}
    return {one: text for one, text in texts.items() if text is not None}


def _archive(file: BinaryIO, *, packed: bool) -> tarfile.TarFile | None:
    """Only what is packed is unpacked on trial: xz reads a long file of zero bytes to its end."""
    try:
        return tarfile.open(fileobj=file, mode="r:*" if packed else "r:")
    except tarfile.TarError:
        return None


def _opened(path: Path | None) -> BinaryIO:
    """Something to seek in; a pipe is read to its end, or up to what is looked at."""
    if path is None:
        return io.BytesIO(sys.stdin.buffer.read(LARGEST) if sys.stdin else b"")
    if stat.S_ISREG(path.stat().st_mode):
        return path.open("rb")
    with path.open("rb") as pipe:
        return io.BytesIO(pipe.read(LARGEST))


def _end(file: IO[bytes]) -> bytes:
    """The last LARGEST bytes, without holding more than twice as many."""
    if file.seekable() and isinstance(file, io.BufferedReader | io.BytesIO):
        file.seek(max(0, file.seek(0, io.SEEK_END) - LARGEST))
        return file.read(LARGEST)
    data = b""
    while more := file.read(LARGEST):
        data = (data + more)[-LARGEST:]
    return data


def _text(data: bytes) -> str | None:
    """None for what is none. Blocks of zero bytes are what a crash leaves in a log; PowerShell writes UTF-16."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace")
    text = data.replace(b"\0", b"").decode(errors="replace")
    sample = text[:100_000]
    strange = sum(letter == "\ufffd" or (letter < " " and letter not in "\t\n\r\f\b\x1b") for letter in sample)
    return None if strange * 20 > len(sample) else text


def _read(archive: tarfile.TarFile) -> dict[str, bytes]:
    files = [member for member in archive.getmembers() if member.isfile() and member.size <= LARGEST]
    return {member.name: found.read() for member in files if (found := archive.extractfile(member))}


def from_text(text: str) -> Texts:
    """The kernel's lines stand apart: they are not part of any attempt to start."""
    lines = text.splitlines()
    kernel = [line for line in lines if _KERNEL.search(line)]
    return Texts("\n".join(line for line in lines if not _KERNEL.search(line)), "\n".join(kernel))
