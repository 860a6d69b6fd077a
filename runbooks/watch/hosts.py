"""A look at each host every few seconds, side by side: a host that does not answer holds up no other."""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runbooks import paths
from runbooks.canary.install import STATE
from runbooks.engine.artefact import push_zipapp
from runbooks.engine.errors import RunbookError, UsageError
from runbooks.engine.printers import console as terminal
from runbooks.engine.step import quote
from runbooks.inventory.beside import beside
from runbooks.watch.screen import Row, changed, draw, plain_lines

if TYPE_CHECKING:
    from runbooks.engine.transport import Connection
    from runbooks.inventory.shape import Server
    from runbooks.session import Session

DEADLINE = 15.0  # seconds for one look
FASTEST = 1.0  # seconds between two


@dataclass
class Watched:
    """What is known of one host. `error`: why the last look brought nothing."""

    name: str
    seen: dict[str, Any] | None = None
    before: dict[str, Any] | None = None
    error: str = ""
    why: dict[str, Any] = field(default_factory=dict)  # the error's parts
    looks: int = 0
    new: threading.Event = field(default_factory=threading.Event)

    def row(self) -> Row:
        return Row(self.name, self.seen, self.before, self.error)


def watch_hosts(session: Session, *, every: float, times: int, live: bool) -> int:
    """Until Ctrl-C, or for so many looks. Exit code 1 where a host could not be looked at the last time."""
    if not FASTEST <= every <= 3600:
        raise UsageError(f"--every {every:g}: from {FASTEST:g} to 3600 seconds")
    hosts = [Watched(name) for name in session.hosts]
    stop = threading.Event()
    for host in hosts:  # daemons: a host that hangs does not hold up the end
        threading.Thread(target=_follow, args=(session, host, every, times, stop), daemon=True).start()
    try:
        if live and not times and sys.stdout.isatty():
            _screen(hosts, every)
        else:
            _lines(session, hosts, times)
    except KeyboardInterrupt:
        session.report.close()
    finally:
        stop.set()
    return int(any(host.error for host in hosts))


def look(conn: Connection, tool: str, server: Server) -> dict[str, Any]:
    """One exchange, a line each way."""
    command = f"python3 {quote(tool)} {beside(server)} {paths.UNIT_NAME} {STATE}"
    answer = conn.ask(command, deadline=DEADLINE)
    try:
        return dict(json.loads(answer.out))
    except ValueError:
        said = (answer.err or answer.out).strip().splitlines()
        raise RunbookError("a look brought nonsense", host=conn.name, details=said[-2:]) from None


def _follow(session: Session, host: Watched, every: float, times: int, stop: threading.Event) -> None:
    while not stop.is_set() and not (times and host.looks >= times):
        try:
            with session.connect(host.name) as conn:
                tool = push_zipapp(conn, "runbooks.watch.glance", "cli:main")
                while not stop.is_set() and not (times and host.looks >= times):
                    seen = look(conn, tool, session.loaded.inventory.server)
                    host.before, host.seen, host.error = host.seen, seen, ""
                    _told(host)
                    stop.wait(every)
        except RunbookError as error:
            host.error, host.why = error.head, error.fields
            _told(host)
            stop.wait(every)  # and connect anew


def _told(host: Watched) -> None:
    host.looks += 1
    host.new.set()


def _done(hosts: list[Watched], times: int) -> bool:
    return bool(times) and all(host.looks >= times for host in hosts)


def _screen(hosts: list[Watched], every: float) -> None:
    """On the terminal's other screen, which is left as it was. Only what is new is written, without padding: it may
    stay open over a slow link."""
    console, shown = terminal(), list[str]()
    size = console.size
    with console.screen(hide_cursor=True):
        while True:
            for host in hosts:
                host.new.clear()
            with console.capture() as drawn:
                console.print(draw([host.row() for host in hosts], every))
            now = drawn.get().splitlines()[: console.height - 1]
            shown = shown if console.size == size else []
            console.file.write(changed(shown, now))
            console.file.flush()
            shown, size = now, console.size
            until = time.monotonic() + 1  # the screen moves when something is new, and its clock every second
            while time.monotonic() < until and not any(host.new.is_set() for host in hosts):
                time.sleep(0.1)


def _lines(session: Session, hosts: list[Watched], times: int) -> None:
    """A line for each new look; with --json its values as well."""
    told = dict.fromkeys((host.name for host in hosts), 0)
    while True:
        done = _done(hosts, times)
        for host in hosts:
            if host.looks > told[host.name]:
                told[host.name] = host.looks
                row = host.row()
                first, *below = plain_lines(row)
                level, why = ("error", host.why) if row.error else ("info", {})
                session.report.emit(
                    "note", "\n".join([first, *below]), host=host.name, level=level, seen=host.seen, **why
                )
        if done:
            return
        time.sleep(0.1)
