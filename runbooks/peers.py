"""`p2p: auto` to its end: granted by provisioning, tried by the ladder, kept or taken back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runbooks.engine.errors import RunbookError
from runbooks.engine.transport import Connection
from runbooks.paths import home
from runbooks.provision import provision, vm
from runbooks.provision.granted import ASK, HEALTHY, UNTESTED, is_vetoed
from runbooks.session import Session


def prove(session: Session, tags: Sequence[str] = (), skip_tags: Sequence[str] = ()) -> int:
    """After a run of provisioning that went well: the exit code of what had to follow, 0 where nothing had to."""
    wanted, unwanted = (",".join(words).split(",") for words in (tags, skip_tags))
    if vm.TAG in unwanted or (tags and vm.TAG not in wanted):
        return 0
    hosts = session.loaded.inventory.hosts
    auto = [name for name in session.hosts if (machine := hosts[name].vm) is not None and machine.p2p == "auto"]
    vetoed = [name for name in auto if _is_vetoed_now(session, name)]
    if not vetoed:
        return 0
    everyone, session.hosts = session.hosts, vetoed
    try:
        return provision(session, tags=(vm.TAG,))
    finally:
        session.hosts = everyone


def _is_vetoed_now(session: Session, name: str) -> bool:
    """Try what is untested. A server that holds the cards, or no runtime yet: another time."""
    from runbooks.bench.between import measure

    with session.connect(name) as connection:
        if _verdict(connection) != UNTESTED:
            return False
        session.report.note("peer-to-peer is granted: every pair of cards is tried before it is believed", host=name)
        try:
            told = measure(connection, session.loaded, report=session.report, out=Path(home("results")))
        except RunbookError as error:
            text = f"peer-to-peer is granted, and could not be tried: {error.message}"
            session.report.note(f"{text}. Later: invoke bench.collectives", host=name, level="warning")
        else:
            for line in told["ladder"]["why"]:
                session.report.note(f"ladder: {line}", host=name)
        verdict = _verdict(connection)
    if verdict == HEALTHY:
        session.report.note("peer-to-peer is proven, and stays", host=name, level="good")
    return is_vetoed(verdict)


def _verdict(connection: Connection) -> str:
    return connection.ask(ASK, deadline=15).out.strip()
