"""`invoke bench.collectives`: what moves between the serving GPUs of a host, measured by its runtime's own torch."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runbooks import paths
from runbooks.bench import measured
from runbooks.bench.ceiling import gpu_named, message_bytes
from runbooks.bench.follower import event_of
from runbooks.bench.measured import Unusable, fit, fitted_text, sound
from runbooks.engine.artefact import push_zipapp
from runbooks.engine.errors import RunbookError, worst
from runbooks.engine.jobs import run_job
from runbooks.engine.report import Reporter
from runbooks.engine.step import quote
from runbooks.engine.transport import Connection
from runbooks.inventory import Loaded
from runbooks.inventory.runtimes import runtime_paths
from runbooks.paths import expand

if TYPE_CHECKING:
    from runbooks.session import Session

KEPT = f"{paths.STATE}/bench/{measured.FILE}"  # the latest of this host; a later sweep takes it along
HELD = 3
PART_LIMIT = 120.0  # seconds for each part; a collective that takes longer hangs


@dataclass
class _Follower:
    report: Reporter
    host: str
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None

    def line(self, line: str) -> None:
        event = event_of(line, self.report, self.host)
        match event.get("event"):
            case "note":
                self.report.note(event["text"], host=self.host)
            case "result":
                self.result = event["result"]
            case "error":
                self.error = event


def collectives_hosts(session: Session, *, out: str = "results", force: bool = False) -> int:
    """Measure on every host of the session. 0: everything was measured, and every result was right."""

    def one(connection: Connection) -> dict[str, Any]:
        return measure(connection, session.loaded, report=session.report, out=expand(out), force=force)

    outcomes = session.each(one)
    for outcome in outcomes:
        if outcome.value is not None:
            show(outcome.value, session.report, outcome.host)
    failed = session.tell_errors(outcomes)
    documents = [outcome.value for outcome in outcomes if outcome.value is not None]
    right = all(told["ladder"]["word"] == "healthy" and not told["errors"] for told in documents)
    return worst(failed, int(not right))


def measure(conn: Connection, loaded: Loaded, *, report: Reporter, out: Path, force: bool = False) -> dict[str, Any]:
    """The document that was measured; it stays on the host for the next sweep, and in a folder below `out`.

    Raises RunbookError where a server holds the GPUs (unless `force`), or where no runtime is built.
    """
    inventory, model = loaded.inventory, loaded.model_for(conn.name)
    places = runtime_paths(loaded.runtime_for(conn.name), inventory.flash_attn)
    python = _python(conn, places)
    artefact = push_zipapp(conn, "runbooks.bench.collectives", "cli:main")
    words = [python, artefact, "--limit", f"{PART_LIMIT:g}", "--environment", f"{paths.CURRENT}/env"]
    words += ["--verdict", paths.PEERS]
    words += ["--batches", ",".join(map(str, inventory.bench.concurrency))]
    words += ["--token-bytes", f"{message_bytes(model.shape, 1):.0f}", "--sent-to", str(model.shape.experts_per_token)]
    words += ["--force"] if force else []
    # One of another boot may be of other links: it says of which it is, and stays until there is a better one.
    script = f"mkdir -p {paths.STATE}/bench\nOMP_NUM_THREADS=1 exec {shlex.join(words)}\n"
    follower = _Follower(report, conn.name)
    job = run_job(conn, "collectives", script, limit=60.0 + 5 * PART_LIMIT, report=report, on_line=follower.line)
    if job.rc == HELD and follower.error:
        raise RunbookError(
            follower.error["text"],
            host=conn.name,
            step="collectives",
            details=["memory is taken, and both would disturb each other"],
            next=f"on {conn.name}: systemctl stop {paths.UNIT_NAME}, and start it afterwards; "
            f"or measure beside it: invoke bench.collectives --force --hosts {conn.name}",
        )
    if follower.result is None:
        raise RunbookError(
            f"the measurement ended with {job.rc} and left no result",
            host=conn.name,
            step="collectives",
            details=list(job.tail)[-6:],
            next="invoke doctor" if job.rc == 124 else None,
        )
    whole = sound(follower.result)
    if isinstance(whole, Unusable):
        raise _nothing(follower.result, whole, conn.name)
    result = whole | {"measured_on": conn.name, "boot_id": _boot(conn)}
    text = json.dumps(result, sort_keys=True) + "\n"
    conn.put(text.encode(), KEPT)
    folder = out / f"{datetime.now(UTC):%Y-%m-%dT%H%M%SZ}-{conn.name}-collectives"
    folder.mkdir(parents=True)
    (folder / measured.FILE).write_text(text)
    report.note(f"kept: {folder / measured.FILE}; the next sweep of this host uses it", host=conn.name)
    return result


def _nothing(told: dict[str, Any], why: Unusable, host: str) -> RunbookError:
    """A measurement that ended and has nothing. What is known of it, each thing once."""
    errors = told.get("errors") or [{"part": "collectives", "text": why.reason}]
    texts = list(dict.fromkeys(f"{error['part']}: {error['text']}" for error in errors))
    return RunbookError(
        f"nothing was measured: {texts[0]}",
        host=host,
        step="collectives",
        details=[*texts[1:], "nothing of it is kept; what was measured before, if anything, still counts"],
        next=f"invoke doctor --hosts {host}, then the same command",
    )


def latest(conn: Connection, report: Reporter) -> dict[str, Any] | None:
    """What was measured on this host since it booted; None where nothing was. Says what cannot be used."""
    text = conn.ask(f"cat {KEPT} 2>/dev/null || true").out
    if not text.strip():
        return None
    try:
        whole = sound(json.loads(text))
    except (ValueError, RecursionError):
        whole = Unusable(f"{KEPT} cannot be read: the collectives count as not measured")
    if isinstance(whole, Unusable):
        report.note(f"{whole.reason}; again: invoke bench.collectives --hosts {conn.name}", host=conn.name)
        return None
    return whole if whole.get("boot_id") == _boot(conn) else None


def show(told: dict[str, Any], report: Reporter, host: str) -> None:
    ladder = told["ladder"]
    shown = measured.rows(told)
    no_gpu = "no GPU: gloo over loopback, which proves the path and no link" if shown else "no GPU"
    what = ", ".join(sorted(set(told["cards"]))) or no_gpu
    good = ladder["word"] == "healthy"
    report.heading(f"{ladder['word']}: {told['ranks']} ranks, {what}")
    if shown:
        report.table("collectives, every result checked", measured.COLUMNS, shown, host=host)
    else:
        report.note("no collective came to its end: there are no times of them", host=host, level="warning")
    copies = measured.copy_rows(told)
    if copies:
        report.table("copies", measured.COPY_COLUMNS, copies, host=host)
    said = {error["text"] for error in told["errors"]}
    for text in ladder["why"]:
        if text not in said:
            report.note(f"ladder: {text}", host=host, level="info" if good else "error")
    for error in told["errors"]:
        report.note(f"{error['part']}: {error['state']}, {error['text']}", host=host, level="error")
    reduce = {
        row["bytes"]: row["us"] * 1e-6
        for row in sorted(told["collectives"], key=lambda row: row["graph"])
        if row["op"] == "all_reduce" and row["right"]
    }
    line = fit(reduce)
    if line:
        report.note(fitted_text(list(reduce), line), host=host)
    if not good and gpu_named(" ".join(told["cards"])):
        report.note("serve without peer-to-peer until that is mended: NCCL_P2P_DISABLE=1", host=host, level="warning")


def _python(conn: Connection, places: tuple[str, ...]) -> str:
    look = "; ".join(f"[ -e {quote(place)}/built ] && echo {quote(place)}/venv/bin/python" for place in places)
    found = conn.ask(f"{look}; true").out.split()
    if not found:
        raise RunbookError(
            "no runtime is built on this host, and its torch is what measures",
            host=conn.name,
            step="collectives",
            next=f"invoke provision --hosts {conn.name} --tags runtime",
        )
    return found[0]


def _boot(conn: Connection) -> str:
    return conn.ask("cat /proc/sys/kernel/random/boot_id").out.strip()
