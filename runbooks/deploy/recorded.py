"""`invoke deploy --from RUN`: the release that a sweep recorded, brought back as it was, or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from runbooks.deploy.flow import node_of
from runbooks.deploy.hosts import deploy_hosts, glance, rollback_hosts
from runbooks.engine.errors import RunbookError, UsageError
from runbooks.paths import expand
from runbooks.session import Session

FILE = "run.json"


def deploy_from(session: Session, run: str, *, profile: str = "", check: bool = False) -> int:
    """On the host that the run was of, unless others were chosen. A release that is not kept any more is made again
    from its profile, if that still gives the same content to the byte; else nothing is changed."""
    if profile or check:
        raise UsageError("from: it stands alone: what a run recorded needs no profile, and has no preview")
    told = recorded(expand(run))
    release, host = told["release"], told["host"]
    if len(session.hosts) > 1 and host in session.hosts:
        session.hosts = [host]
    if len(session.hosts) != 1:
        raise UsageError(
            f"{run} is of one server: choose one host for it", next=f"invoke deploy --from {run} --hosts NAME"
        )
    with session.connect(session.hosts[0]) as conn:
        found = glance(session, conn)
        kept = [one for one in found.releases if one.content == release["content"] and one.verdict == "promoted"]
        if kept:
            newest = max(kept, key=lambda one: one.number)
            session.report.note(f"release {newest.number} is what {run} recorded", host=conn.name)
            return rollback_hosts(session, newest.number)
        made = node_of(conn, None, session.loaded, release["profile"], None, session.report)
        now = made.new.content
    if now != release["content"]:
        raise RunbookError(
            f"what {run} recorded cannot be made again here",
            host=session.hosts[0],
            step="deploy",
            details=[
                f"its release {release['number']} (content {release['content']}) is not kept on this host",
                f"and profile {release['profile']} gives other content today ({now}): the inventory, the runtime or "
                "this program changed since",
                f"the arguments that ran are in {expand(run) / 'provenance.json'}",
            ],
            next=f"invoke releases --hosts {session.hosts[0]}",
        )
    return deploy_hosts(session, release["profile"])


def recorded(folder: Path) -> dict[str, Any]:
    """Host and release of a results folder. Raises UsageError where it says none."""
    try:
        run: dict[str, Any] = dict(json.loads((folder / FILE).read_text()))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"from: {folder} is no results folder: {error}", next="invoke results") from None
    release = run.get("release")
    if (
        not isinstance(release, dict)
        or not isinstance(run.get("host"), str)
        or not {"number", "content", "profile"} <= set(release)
    ):
        raise UsageError(
            f"from: {folder} recorded no release of ours: nothing of it can be deployed", next="invoke results"
        )
    return {"host": run["host"], "release": release}
