"""`invoke health`: one screen a host."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from runbooks.engine.artefact import push_zipapp
from runbooks.engine.errors import worst
from runbooks.engine.report import Reporter
from runbooks.health.look import look
from runbooks.health.rules import Check, checks, lead
from runbooks.inventory.beside import beside

if TYPE_CHECKING:
    from runbooks.engine.secret import Secret
    from runbooks.engine.transport import Connection
    from runbooks.inventory import Loaded
    from runbooks.session import Session

MARKS = {"ok": "ok", "warn": "warn", "fail": "FAIL"}


@dataclass(frozen=True)
class HealthResult:
    host: str
    checks: tuple[Check, ...]
    seconds: float

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.state == "fail")

    @property
    def exit_code(self) -> int:
        return int(bool(self.failed))


def check(conn: Connection, loaded: Loaded, host: str, report: Reporter, key: Secret | None = None) -> HealthResult:
    """Look at one host and judge; two exchanges, at most about ten seconds. Raises only where the host itself does
    not answer."""
    began = time.monotonic()
    server, model = loaded.inventory.server, loaded.model_for(host)
    probe = push_zipapp(conn, "runbooks.canary.probe", "cli:main")
    seen = look(
        conn,
        probe=probe,
        url=f"http://{beside(server)}",
        model_name=model.served_name,
        model_path=model.path,
        port=server.port,
        key=key,
    )
    found = tuple(checks(seen, host=host, gpus=loaded.inventory.gpus, port=server.port))
    return HealthResult(host, found, time.monotonic() - began)


def check_hosts(session: Session) -> int:
    """Exit code 0 where nothing failed (warnings are no failure), else 1."""
    key = session.api_key()
    outcomes = session.each(lambda conn: check(conn, session.loaded, conn.name, session.report, key))
    failed = session.tell_errors(outcomes)
    results = [outcome.value for outcome in outcomes if outcome.value is not None]
    for result in results:
        tell(result, session.report)
    return worst(failed, int(any(result.exit_code for result in results)))


def tell(result: HealthResult, report: Reporter) -> None:
    first = lead(result.checks)
    rows = [[one.name, MARKS[one.state], one.detail, _further(one, page=one is first)] for one in result.checks]
    report.table("health", ["", "", "seen", "next"], rows, host=result.host)
    warned = sum(check.state == "warn" for check in result.checks)
    said = f"{len(result.failed)} failed, {warned} to look at" if result.failed or warned else "all well"
    report.emit(
        "result",
        f"{said}   ({len(result.checks)} checks, {result.seconds:.1f} s)",
        host=result.host,
        level="error" if result.failed else "warning" if warned else "good",
        page=first.page if first else None,
        checks=[asdict(check) for check in result.checks],
    )


def _further(check: Check, *, page: bool) -> str:
    """What to type next. Only one row of a screen names its page."""
    pointers = [check.next] if check.next else []
    pointers += [f"invoke runbook {check.page}"] if page else []
    return "; ".join(pointers)
