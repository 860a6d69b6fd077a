"""Releases on a host: numbered folders, each a whole definition of a running server, and the one that serves.

    /opt/runbooks/releases/7/{release.json, sglang.service, sglang-devices.service, env, argv.json, launch.py, api-key}
    /opt/runbooks/current -> releases/7
    /etc/systemd/system/sglang.service -> /opt/runbooks/current/sglang.service

A folder is written under another name and renamed when whole; renaming one symlink then switches everything at once. So
whatever is killed at whatever moment, either the old or the new release is there, complete. A folder never changes
afterwards, but for release.json, which is replaced by a rename and says what became of it.
"""

from __future__ import annotations

import io
import json
import tarfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from runbooks import paths
from runbooks.deploy.unit import DEVICES_UNIT
from runbooks.engine.errors import RunbookError
from runbooks.engine.secret import Secret
from runbooks.engine.step import quote
from runbooks.engine.transport import Connection

Verdict = Literal["promoted", "failed"]

PRIVATE = ("env", "api-key")
SYSTEM = "/etc/systemd/system"


@dataclass(frozen=True, kw_only=True)
class Release:
    """What release.json holds. `created` and `judged` are ISO times; `ready_seconds` is how long it took to answer."""

    number: int
    profile: str
    content: str
    sglang: str
    runtime: str
    model_path: str
    served_name: str
    host: str
    port: int
    has_key: bool
    created: str
    by: str
    verdict: Verdict | None = None
    judged: str | None = None
    reason: str | None = None
    ready_seconds: float | None = None
    hosts: tuple[str, ...] = ()  # of a server that spans several: all of them, the one that answers first

    @property
    def folder(self) -> str:
        return f"{paths.RELEASES}/{self.number}"

    @property
    def stamp(self) -> str:
        return f"{self.number}:{self.content}"

    def dump(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"


def parse(text: str) -> Release | None:
    """A release.json, or None where it is none: a folder that somebody made by hand is not ours to judge."""
    try:
        data: dict[str, Any] = json.loads(text)
        known = {key: value for key, value in data.items() if key in Release.__dataclass_fields__}
        return Release(**{**known, "hosts": tuple(known.get("hosts", ()))})
    except (ValueError, TypeError, AttributeError):
        return None


def install(conn: Connection, release: Release, files: Mapping[str, str], key: Secret | None) -> None:
    """Write the folder, whole or not at all; one exchange. The key travels on stdin, as the rest does."""
    staged, folder = f"{paths.RELEASES}/.new-{release.number}", release.folder
    answer = conn.ask(
        f"rm -rf -- {staged} && install -d -m 0755 -- {paths.ROOT} {paths.RELEASES} {staged} && "
        f"tar -xpf - -C {staged} && "
        f"[ ! -e {folder} ] && sync -f {staged} && mv -T -- {staged} {folder} && sync -f {paths.RELEASES} || "
        f"{{ rm -rf -- {staged}; exit 1; }}",
        stdin=_tar({"release.json": release.dump(), **files}, key),
        deadline=60,
    )
    if answer.rc != 0:
        raise RunbookError(
            f"release {release.number} could not be written",
            host=conn.name,
            step="deploy",
            details=answer.err.strip().splitlines()[-3:] or [f"{folder} is already there: another deploy is running?"],
            next=f"df -h {paths.ROOT}; ls {paths.RELEASES}",
        )


def switch(conn: Connection, release: Release) -> None:
    """Make this the release that serves from the next start on: one rename, then the links that point through it."""
    answer = conn.ask(switching(release), deadline=60)
    if answer.rc != 0:
        raise RunbookError(
            f"could not switch to release {release.number}",
            host=conn.name,
            step="deploy",
            details=answer.err.strip().splitlines()[-3:],
        )


def switching(release: Release) -> str:
    """The script of it."""
    link = f"{paths.CURRENT}.new"
    lines = [
        f"ln -sfn -- {quote(release.folder)} {link} && mv -T -- {link} {paths.CURRENT} || exit 1",
        *(_link(unit, f"{paths.CURRENT}/{unit}") for unit in (DEVICES_UNIT, paths.UNIT_NAME)),
        _link(f"multi-user.target.wants/{paths.UNIT_NAME}", f"../{paths.UNIT_NAME}"),
        f"sync -f {paths.ROOT}; systemctl daemon-reload",
    ]
    return "\n".join(lines)


def judge(conn: Connection, release: Release, verdict: Verdict, **facts: Any) -> Release:
    """Write down what became of a release."""
    judged = replace(release, verdict=verdict, **facts)
    conn.put(judged.dump().encode(), f"{release.folder}/release.json", mode=0o644)
    return judged


def key_of(conn: Connection, release: Release) -> Secret | None:
    """The key that a release on the host answers to; it may be another than today's."""
    return Secret(conn.fetch(f"{release.folder}/api-key").decode().strip()) if release.has_key else None


def restart(conn: Connection, *, kill: bool = False) -> None:
    """Ask systemd for a restart and leave it to it: what happens to this connection from now on stops nothing."""
    conn.ask(restarting(kill=kill))


def restarting(*, kill: bool = False) -> str:
    """The script of it. `kill`: what runs is broken, and gets no time to bring its requests to an end.

    SGLang takes new ones while it ends, so under load it goes on until TimeoutStopSec.
    """
    unit = paths.UNIT_NAME
    killing = f"systemctl kill --signal=KILL {unit} 2>/dev/null; " if kill else ""
    return f"{killing}systemctl reset-failed {unit} 2>/dev/null; systemctl restart --no-block {unit}"


def stop(conn: Connection) -> None:
    """Stop the server and keep it down, over a reboot too. Its last state stays to be looked at."""
    wanted = f"{SYSTEM}/multi-user.target.wants/{paths.UNIT_NAME}"
    conn.ask(f"rm -f {wanted}; systemctl daemon-reload; systemctl stop {paths.UNIT_NAME}", deadline=180)


def _link(name: str, target: str) -> str:
    """A link that is right already is left alone; a file in its place is kept beside it. Replaced by a rename."""
    path = f"{SYSTEM}/{name}"
    keep = f"{{ [ -L {path} ] || [ ! -e {path} ] || cp -p {path} {path}.before-runbooks; }}"
    replace = (
        f"{keep} && mkdir -p $(dirname {path}) && ln -sfn -- {target} {path}.rb-new && mv -T -- {path}.rb-new {path}"
    )
    return f'[ "$(readlink {path})" = {target} ] || {{ {replace}; }} || exit 1'


def _tar(files: Mapping[str, str], key: Secret | None) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for name, text in [*files.items(), *([("api-key", key.reveal() + "\n")] if key else [])]:
            entry = tarfile.TarInfo(name)
            entry.mtime = int(time.time())
            entry.mode = 0o600 if name in PRIVATE else 0o644
            entry.size = len(data := text.encode())
            archive.addfile(entry, io.BytesIO(data))
    return whole.getvalue()
