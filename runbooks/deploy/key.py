"""The server's API key, for what changes a server or its gateway: it is there when they begin.

A key is made once, where the inventory has it made. Another controller with the same inventory must not make a second
one: then clients of the servers that run would be shut out by the next deploy. So it is brought from a host first.
"""

from __future__ import annotations

from collections.abc import Callable

from runbooks import paths
from runbooks.engine.report import Level, Reporter
from runbooks.engine.secret import Secret
from runbooks.engine.transport import Connection
from runbooks.inventory.shape import Inventory
from runbooks.session import Session

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def ready_key(session: Session) -> Secret | None:
    """The key, brought from a chosen host or made where it is not here yet; None for a server that is open."""
    inventory = session.loaded.inventory
    tell_open(inventory, session.report)
    ref = inventory.server.api_key
    if ref is None:
        return None
    source = session.loaded.source(ref)
    if source.unmade:
        name, key = _from_a_host(session)
        source.make(key)
        said = f"the API key of {name} is kept, and now here too" if key else "an API key is made"
        session.report.note(f"{said}: {source.path}")
    return session.secret(ref)


def tell_open(inventory: Inventory, report: Reporter) -> None:
    """Say where nobody is asked for a key."""
    server = inventory.server
    if server.api_key is not None:
        return
    who = "whoever is logged in on the host" if server.host in LOOPBACK else "whoever reaches the host"
    level: Level = "info" if server.host in LOOPBACK else "warning"
    text = f"the server is open (server.api_key): {who} may use {server.host}:{server.port}"
    report.note(text, level=level)


def _from_a_host(session: Session) -> tuple[str, Secret | None]:
    """Its name and its key. One that cannot be reached ends this: it may be the one that has it."""
    groups = session.loaded.inventory.groups
    gateways = [name for name, group in groups.items() if group.gateway and set(group.hosts) & set(session.hosts)]
    places: list[tuple[Callable[[str], Connection], str, str]]
    places = [(session.connect, name, paths.CURRENT) for name in session.hosts]
    places += [(session.connect_gateway, name, paths.GATEWAY) for name in gateways]
    for connect, name, folder in places:
        with connect(name) as conn:
            held = conn.ask(f"cat {folder}/api-key 2>/dev/null; :").out.strip()
            if held:
                session.report.hide(Secret(held))
                return conn.name, Secret(held)
    return "", None
