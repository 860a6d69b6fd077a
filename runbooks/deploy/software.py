"""What software a release was proven with, and whether it is still that: interpreter and every package's version.

A runtime is never changed after it was built, but a disk can be restored, and a hand can run pip. So a release records
what its runtime held when it was written (software.json), a rollback compares before it stops anything, and after every
start the running process is asked which interpreter it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from runbooks import paths
from runbooks.deploy.releases import Release
from runbooks.engine.errors import CheckFailed, RunbookError
from runbooks.engine.step import quote
from runbooks.engine.transport import Connection

FILE = "software.json"

_LIST = """\
import importlib.metadata, json, sys
held = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions() if d.metadata["Name"]}
about = {"interpreter": sys.executable, "python": sys.version.split()[0], "packages": dict(sorted(held.items()))}
print(json.dumps(about, indent=1))
"""


def held(conn: Connection, runtime: str) -> str:
    """software.json of a runtime as it is now. Raises CheckFailed where it cannot be had."""
    answer = conn.ask(f"cd / && {runtime}/venv/bin/python -I -c {quote(_LIST)}", deadline=60)
    if answer.rc != 0:
        raise CheckFailed(
            "the runtime's interpreter does not run",
            host=conn.name,
            step="deploy",
            details=answer.err.strip().splitlines()[-2:],
            next=f"invoke provision --hosts {conn.name} --tags runtime",
        )
    return answer.out


def compare(recorded: str, now: str) -> list[str]:
    """Pure: every difference, in words; none for a release that recorded nothing."""
    try:
        was, is_ = json.loads(recorded), json.loads(now)
    except ValueError:
        return []
    lines = [
        f"{key}: {was.get(key)}, now {is_.get(key)}"
        for key in ("interpreter", "python")
        if was.get(key) != is_.get(key)
    ]
    before: Mapping[str, str] = was.get("packages", {})
    after: Mapping[str, str] = is_.get("packages", {})
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            lines.append(f"{name}: {before.get(name, 'not there')}, now {after.get(name, 'not there')}")
    return lines


def differences(conn: Connection, release: Release) -> list[str]:
    """What a release would start with now, against what it was written with; none where it recorded nothing."""
    recorded = conn.ask(f"cat {release.folder}/{FILE} 2>/dev/null").out
    if not recorded:
        return []
    try:
        return compare(recorded, held(conn, release.runtime))
    except CheckFailed as error:
        return [error.message, *error.details]


def unchanged(conn: Connection, release: Release) -> None:
    """Raise CheckFailed, before anything is stopped, where a release would start with other software than its own."""
    if lines := differences(conn, release):
        raise CheckFailed(
            f"the runtime of release {release.number} is not what it was: {len(lines)} differences",
            host=conn.name,
            step="rollback",
            details=lines[:8],
            next=f"remove {release.runtime} on the host and build it again: invoke provision --tags runtime",
        )


def runs_from(conn: Connection, release: Release) -> None:
    """Raise RunbookError where the process that serves is not the release's interpreter.

    A process may give itself a title, which stands where its command line was: then the libraries that it has mapped
    tell whose it is.
    """
    script = (
        f"p=/proc/$(systemctl show -p MainPID --value {paths.UNIT_NAME}); "
        f"tr '\\0' '\\n' <$p/cmdline | head -n 1; grep -cF ' {release.runtime}/' $p/maps"
    )
    lines = conn.ask(f"{{ {script}; }} 2>/dev/null; :").out.splitlines()
    if len(lines) != 2:
        return  # it is gone again: that is the gate's and the canary's to tell
    word, mapped = lines[0].strip(), lines[1].strip()
    wanted = f"{release.runtime}/venv/bin/python"
    if word != wanted and (word.startswith("/") or mapped == "0"):
        raise RunbookError(
            "the process that serves is not the release's interpreter",
            host=conn.name,
            step="deploy",
            details=[f"it is {word}", f"release {release.number} says {wanted}"],
        )
