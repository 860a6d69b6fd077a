"""What a failed release leaves to be read: saved on the host before the release before takes its place.

    /var/lib/runbooks/diagnosis/20261129T181500Z-release-7/{why,unit,journal,kernel,nvidia-smi,machine,versions,release}.txt

Everything is gathered at once and bounded as a whole, since a GPU that is gone makes nvidia-smi hang for ever; what did
not answer in time is left out, and says so. Secrets are masked here, before a byte of it is written.
"""

from __future__ import annotations

import io
import re
import secrets
import tarfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from runbooks import paths
from runbooks.deploy.releases import Release
from runbooks.engine.errors import RunbookError
from runbooks.engine.report import Reporter
from runbooks.engine.secret import MASK
from runbooks.engine.step import quote
from runbooks.engine.transport import Connection

FOLDER = paths.DIAGNOSIS
PATIENCE = 10  # seconds: the old server is still down meanwhile
LONGEST = 1_000_000  # bytes of one part; its end is kept
KEPT = 10  # folders

_PARTS: Mapping[str, str] = {
    "unit": f"systemctl status --no-pager --full -n 0 {paths.UNIT_NAME}; systemctl show {paths.UNIT_NAME}",
    "journal": f"journalctl -u {paths.UNIT_NAME} --since=-6h -o short-precise --no-pager -n 8000",
    "kernel": "journalctl -k --since=-6h -o short-precise --no-pager -n 2000",
    "nvidia-smi": "nvidia-smi; nvidia-smi -q",
    "machine": (
        "uptime; free -m; df -h; ss -Hltnp; "
        "ps -eo pid,ppid,user,stat,etimes,rss,args --sort=-rss | cut -c1-240 | head -n 60"
    ),
    "versions": (
        "uname -a; cat /etc/os-release /proc/driver/nvidia/version; cat {runtime}/why.txt; "
        "cat {folder}/software.json || {runtime}/venv/bin/python -V"
    ),
    "release": "cd {folder} && for f in $(ls | grep -vx -e api-key -e launch.py); do echo == $f; cat $f; done",
}
_SECRET = re.compile(
    r"(?im)^(\s*(?:export )?[\"']?\w*(?:token|secret|passw|api_?key|credential)\w*[\"']?\s*[=:]\s*).+$"
)


def save(conn: Connection, release: Release, error: RunbookError, report: Reporter) -> str | None:
    """Gather and write; the folder's path, or None where it could not be written. Raises only what the link raises."""
    found = gather(conn, release)
    when = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    folder = f"{FOLDER}/{when}-release-{release.number}"
    texts = {"why": str(error) + "\n", **found}
    answer = conn.ask(
        f"umask 077; mkdir -p -- {folder} && tar -xf - -C {folder} && cd {FOLDER} && "
        f"ls -1d [0-9]*-release-* | sort -r | tail -n +{KEPT + 1} | xargs -r rm -rf --",
        stdin=_tar({f"{name}.txt": masked(text, report) for name, text in texts.items()}),
        deadline=60,
    )
    return folder if answer.rc == 0 else None


def gather(conn: Connection, release: Release) -> dict[str, str]:
    """Every part by its name."""
    mark = f"-- {secrets.token_hex(8)} "
    names = {"folder": quote(release.folder), "runtime": quote(release.runtime)}
    lines = ["d=$(mktemp -d /run/rb-diagnosis.XXXXXX) || exit 1"]
    for name, command in _PARTS.items():
        text = command
        for key, value in names.items():
            text = text.replace(f"{{{key}}}", value)
        lines.append(f"( {{ {text}; }} >$d/{name} 2>&1; : >$d/{name}.whole ) </dev/null &")
    wanted = len(_PARTS)
    lines += [
        f"for i in $(seq {PATIENCE * 5}); do [ $(ls $d/*.whole 2>/dev/null | wc -l) -ge {wanted} ] && break; "
        "sleep 0.2; done",
        f"for name in {' '.join(_PARTS)}; do echo '{mark}'$name; tail -c {LONGEST} $d/$name; echo",
        f'  [ -e $d/$name.whole ] || echo "(it did not come to its end within {PATIENCE} s)"',
        "done; rm -rf -- $d",
    ]
    said = conn.ask("\n".join(lines), deadline=PATIENCE + 50).out
    return {name: text for part in said.split(mark)[1:] for name, _, text in [part.partition("\n")]}


def masked(text: str, report: Reporter) -> str:
    """Without the secrets that this run knows, and without the values of what is named like one."""
    return str(report.redact(_SECRET.sub(rf"\1{MASK}", text)))


def _tar(files: Mapping[str, str]) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.mode, entry.mtime, entry.size = 0o600, int(time.time()), len(data := text.encode())
            archive.addfile(entry, io.BytesIO(data))
    return whole.getvalue()
