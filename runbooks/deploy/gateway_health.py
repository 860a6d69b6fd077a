"""The gateway's part of `invoke health`: does it run, does it answer, and to which servers does it send requests.

Its own /health and /v1/models say 200 for ever, also with no server left (seen with sglang-router 0.3.2), so its list
of workers is read instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runbooks.deploy.gateway import UNIT, worker
from runbooks.deploy.traffic import ask
from runbooks.engine.errors import RunbookError
from runbooks.engine.transport import Connection
from runbooks.session import Session


def check_gateways(session: Session) -> int:
    """Of each group with a gateway that holds a chosen host. Exit code 0 where every server gets requests, else 1."""
    inventory, failed = session.loaded.inventory, False
    key = session.api_key()
    for name, group in inventory.groups.items():
        gateway = group.gateway
        if gateway is None or not set(group.hosts) & set(session.hosts):
            continue
        with session.connect_gateway(name) as conn:
            try:
                workers = ask(conn, gateway, key, "workers")
                state = _unit(conn)
            except RunbookError as error:
                session.report.failed(error, host=conn.name)
                failed = True
                continue
        found = {one["url"]: bool(one["healthy"]) for one in workers}
        urls = {host: worker(inventory, host) for host in group.hosts}
        rows = [[host, url, _word(found, url)] for host, url in urls.items()]
        rows += [["not in the inventory", url, _word(found, url)] for url in sorted(found.keys() - set(urls.values()))]
        session.report.table("gateway", ["host", "server", ""], rows, host=conn.name)
        out = [host for host, url in urls.items() if not found.get(url)]
        failed = failed or bool(out)
        session.report.emit(
            "result",
            _said(len(urls), out, state),
            host=conn.name,
            level="error" if out else "good",
            state="failed" if out else "ok",
            workers=found,
        )
    return int(failed)


def _unit(conn: Connection) -> str:
    """Its state, and how often systemd had to start it again."""
    shown = conn.ask(f"systemctl show -p ActiveState,NRestarts --value {UNIT}").out.split()
    return f"{UNIT} is {shown[0]}, {shown[1]} restarts" if len(shown) == 2 else f"{UNIT} is not known"


def _word(found: Mapping[str, bool], url: str) -> str:
    return "gets requests" if found.get(url) else "unhealthy: gets none" if url in found else "taken out: gets none"


def _said(count: int, out: Sequence[str], state: str) -> str:
    if not out:
        return f"all {count} servers get requests   ({state})"
    names = " ".join(f"--hosts {host}" for host in out)
    served = f"{count - len(out)} of {count} servers get requests   ({state})"
    return f"{served}\n  next: invoke health {names}; invoke gateway"
