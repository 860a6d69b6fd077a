"""`invoke releases`: what there is on each host, one of them in full, and the removal of what nothing needs."""

from __future__ import annotations

import json
import secrets

from runbooks.deploy import prune
from runbooks.deploy.evidence import masked
from runbooks.deploy.hosts import glance
from runbooks.deploy.look import Host
from runbooks.deploy.releases import Release
from runbooks.deploy.software import FILE
from runbooks.deploy.unit import paired
from runbooks.engine import lock
from runbooks.engine.errors import UsageError
from runbooks.engine.report import Reporter, moment_text
from runbooks.engine.transport import Connection
from runbooks.inventory.runtimes import runtime_paths
from runbooks.session import Session


def list_releases(session: Session, *, show: int = 0, remove: bool = False) -> int:
    """Every release on each host, newest first, with the one that serves marked; with `show`, that one in full."""

    def one(conn: Connection) -> Host | None:
        host = glance(session, conn)
        if show:
            _show(conn, host, show, session.report)
        elif remove:
            _list(conn.name, host, session.report)
            _remove(session, conn, host)
        else:
            return host
        return None

    outcomes = session.each(one, parallel=not remove and not show)
    for outcome in outcomes:
        if outcome.value is not None:
            _list(outcome.host, outcome.value, session.report)
    return session.tell_errors(outcomes)


def _list(name: str, host: Host, report: Reporter) -> None:
    rows = [
        [
            f"{'>' if release.number == host.current else ' '} {release.number}",
            release.profile,
            release.sglang,
            release.verdict or "unproven",
            moment_text(release.created),
            release.by,
            release.reason or (f"ready after {release.ready_seconds:.0f} s" if release.ready_seconds else ""),
        ]
        for release in sorted(host.releases, key=lambda release: -release.number)
    ]
    report.table("releases", ["release", "profile", "SGLang", "verdict", "when", "who", ""], rows, host=name)


def _show(conn: Connection, host: Host, number: int, report: Reporter) -> None:
    """One release: what it is, how it was started, with which software, and how it differs from what serves."""
    release = host.release(number)
    if release is None:
        kept = ", ".join(str(one.number) for one in host.releases) or "none"
        raise UsageError(f"there is no release {number}; there are: {kept}", host=conn.name)
    told = json.loads(release.dump()).items()
    rows = [[key.replace("_", " "), _said(value)] for key, value in told if value is not None and value != []]
    report.table(f"release {number}", ["", ""], rows, host=conn.name)
    for title, name in (("command line", "argv.json"), ("environment", "env")):
        text = conn.ask(f"cat {release.folder}/{name} 2>/dev/null").out
        lines = json.loads(text or "[]") if name.endswith(".json") else text.splitlines()
        report.table(title, [""], [[masked(line, report)] for line in paired(lines)], host=conn.name)
    text = conn.ask(f"cat {release.folder}/{FILE} 2>/dev/null").out
    if text:
        packages = json.loads(text)["packages"].items()
        report.table(
            "software", ["package", "version"], [[name, version] for name, version in packages], host=conn.name
        )


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _remove(session: Session, conn: Connection, host: Host) -> None:
    """Releases that nothing needs, and runtimes that no kept release and no entry of the inventory names."""
    inventory = session.loaded.inventory
    wanted = [path for spec in inventory.runtimes.values() for path in runtime_paths(spec, inventory.flash_attn)]
    run = secrets.token_hex(8)
    with lock.held(conn, run, "releases --prune"):
        going = prune.spare(host.releases, serving=_serving(host))
        runtimes = prune.spare_runtimes(prune.runtimes(conn), host.releases, going, wanted=wanted)
        folders = [release.folder for release in going] + runtimes
        if not folders:
            session.report.note("nothing to remove: everything there is needed", host=conn.name)
            return
        question = f"{conn.name}: remove {_counted(going, runtimes)}. Go on?"
        if not session.consent(question):
            raise UsageError("not agreed to: nothing was removed", host=conn.name)
        prune.remove(conn, folders)
        conn.ask(lock.audit_script(run, "releases", tuple(f"removed {folder}" for folder in folders)))
    session.report.note(f"removed: {', '.join(folders)}", host=conn.name, level="good")


def _serving(host: Host) -> set[int]:
    """The current release, and the one that the running unit says it is."""
    running = (host.running or "").partition(":")[0]
    return {number for number in (host.current, int(running) if running.isdigit() else None) if number is not None}


def _counted(going: list[Release], runtimes: list[str]) -> str:
    numbers = ", ".join(str(release.number) for release in going)
    parts = [f"releases {numbers}"] if going else []
    parts += [f"{len(runtimes)} runtimes ({', '.join(runtimes)})"] if runtimes else []
    return " and ".join(parts)
