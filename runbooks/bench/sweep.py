"""The sweep on a host: push the load generator, run it there as a job, bring its logs home, ask the canary, judge."""

from __future__ import annotations

import json
import secrets
import shlex
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from runbooks import paths
from runbooks.bench import between, hardware, measured, provenance, report
from runbooks.bench.results import FORMAT, BenchResult, as_json, assess, digest_of, write_points
from runbooks.bench.words import streams
from runbooks.canary import run_canary
from runbooks.engine.artefact import push_zipapp
from runbooks.engine.errors import RunbookError
from runbooks.engine.jobs import run_job
from runbooks.engine.report import Reporter
from runbooks.engine.secret import Secret
from runbooks.engine.step import quote
from runbooks.engine.transport import Connection
from runbooks.inventory import Loaded
from runbooks.inventory.shape import Server

BUSY = 3  # the load generator's exit code for a server that has other requests
RAMP = 300.0  # seconds that a point may take until all its streams have had a first token, and to end what runs


_STOP = """\
kill -TERM "$(cat pid)"
i=0; while [ ! -e out/run.json ] && [ $i -lt 250 ]; do sleep 0.1; i=$((i+1)); done
"""


@dataclass(frozen=True)
class BenchOptions:
    """None, or an empty tuple: as the inventory says."""

    concurrency: tuple[int, ...] = ()
    input_len: int | None = None
    output_len: int | None = None
    warmup: float | None = None
    window: float | None = None
    force: bool = False
    canary: bool = True
    self_check: bool = True  # the null server, under five seconds
    command: str = "invoke bench"


@dataclass
class Follower:
    """Reads the load generator's JSON lines: progress for people, errors for us."""

    report: Reporter
    host: str
    sweep: tuple[int, ...]
    done: int = 0
    began: float = field(default_factory=time.monotonic)
    error: dict[str, Any] | None = None

    def line(self, line: str) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            self.report.output(line, host=self.host)
            return
        match event.get("event"):
            case "progress":
                self._progress(event)
            case "point":
                self.done += 1
                rate = f"{event['tok_s']:.1f} tok/s"
                failed = event["requests"]["failed"]
                text = f"{streams(event['concurrency'])}: {rate}" + (f", {failed} requests failed" if failed else "")
                self.report.note(text, host=self.host, level="warning" if failed else "info")
            case "error":
                self.error = event
            case "note" | "self_check":
                self.report.note(event["text"], host=self.host)

    def _progress(self, event: dict[str, Any]) -> None:
        share = {"ramp": 0.0, "warm-up": 0.1, "window": 0.2, "drain": 0.9}.get(event["phase"], 0.0)
        if event["phase"] == "window":
            share += 0.7 * event["done"] / max(event["total"], 1e-9)
        done = min(self.done + share, len(self.sweep) - 0.01)
        left = (time.monotonic() - self.began) / max(done, 0.2) * (len(self.sweep) - done)
        rate = f", about {event['rate']:.0f} tok/s" if event.get("rate") else ""
        failed = f", {event['failed']} failed" if event.get("failed") else ""
        detail = f"{streams(event['point'])}, {event['phase']}{rate}{failed}, {_minutes(left)} left"
        self.report.progress(
            "bench", round(done, 1), float(len(self.sweep)), host=self.host, unit="points", detail=detail
        )


def run_bench(
    conn: Connection, loaded: Loaded, host: str, *, options: BenchOptions, report: Reporter, out: Path
) -> BenchResult:
    """Run the sweep of the inventory on a host, and leave a results folder below `out`.

    Raises RunbookError when nothing could be measured: no server, or one that has other requests. Ctrl-C stops the
    load generator and keeps what it measured: the result then says that it was interrupted.
    """
    sweep = options.concurrency or loaded.inventory.bench.concurrency
    key = loaded.secret(loaded.inventory.server.api_key) if loaded.inventory.server.api_key else None
    if key:
        report.hide(key)
    remote = f"{paths.STATE}/bench/{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
    follower = Follower(report, host, sweep)
    try:
        interrupted = _drive(conn, loaded, host, options, sweep, key, remote, follower, report)
        release = _release(conn)
        folder = out / f"{datetime.now(UTC):%Y-%m-%dT%H%M%SZ}-{host}-{release.get('profile', 'no-release')}"
        _bring_home(conn, remote, folder)
    finally:
        conn.ask(f"rm -rf -- {quote(remote)}")
    report.note("asking the host what it is", host=host)
    (folder / "provenance.json").write_text(as_json(provenance.gather(conn)))
    told = between.latest(conn)
    if told:
        (folder / measured.FILE).write_text(as_json(told))
    canary = None
    if options.canary and not interrupted:
        canary = _canary(conn, loaded, host, report, key)
    describe(folder, loaded, host, release=release, command=options.command, canary=canary)
    return finish(folder)


def describe(
    folder: Path,
    loaded: Loaded,
    host: str,
    *,
    release: dict[str, Any],
    command: str,
    canary: dict[str, Any] | None,
) -> None:
    """run.json: the load generator's own record, and all that is needed to judge it later without the inventory."""
    bench, model, gpus = loaded.inventory.bench, loaded.model_for(host), loaded.inventory.gpus
    run = {
        "format": FORMAT,
        "host": host,
        "release": release,
        "command": command,
        "loadgen": json.loads((folder / "run.json").read_text()),
        "canary": canary,
        "model": {"name": model.served_name, "source": model.source, "shape": msgspec.to_builtins(model.shape)},
        "gpus": {"name": gpus.name, "count": gpus.count},
        "reference": {str(b): rate for b, rate in bench.reference.items()},
        "reference_source": bench.reference_source,
        "link": bench.link,
        "raw_sha256": {log.name: digest_of(log) for log in sorted((folder / "raw").glob("*.bin"))},
    }
    (folder / "run.json").write_text(as_json(run))


def _release(conn: Connection) -> dict[str, Any]:
    """What the host says of the release that serves; {} where none was deployed by us."""
    try:
        told = json.loads(conn.ask(f"cat {paths.CURRENT}/release.json 2>/dev/null || true").out)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def finish(folder: Path) -> BenchResult:
    """Judge a folder that has its raw logs and run.json, and write what people read."""
    result = assess(folder)
    write_points(result)
    report.write(result, folder)
    return result


def _drive(
    conn: Connection,
    loaded: Loaded,
    host: str,
    options: BenchOptions,
    sweep: tuple[int, ...],
    key: Secret | None,
    remote: str,
    follower: Follower,
    report: Reporter,
) -> bool:
    """Run the load generator to its end. True when it was interrupted and left a partial result."""
    artefact = push_zipapp(conn, "runbooks.bench.loadgen", "cli:main")
    sampler = push_zipapp(conn, "runbooks.bench.sampler", "cli:main")
    bench, server = loaded.inventory.bench, loaded.inventory.server
    warmup = bench.warmup if options.warmup is None else options.warmup
    window = bench.window if options.window is None else options.window
    words = ["python3", artefact, "--json", "--url", url_of(server)]
    words += ["--model", loaded.model_for(host).served_name, "--out", f"{remote}/out"]
    words += ["--concurrency", ",".join(map(str, sweep)), "--warmup", f"{warmup:g}", "--window", f"{window:g}"]
    words += ["--input-len", str(options.input_len or bench.input_len)]
    words += ["--output-len", str(options.output_len or bench.output_len)]
    words += ["--force"] if options.force else []
    words += ["--self-check"] if options.self_check else []
    script = f"mkdir -p {quote(remote)}; echo $$ >{quote(remote)}/pid\n"
    uploads: dict[str, Secret | bytes] = {}
    if key:
        uploads["key"] = key
        script += 'RUNBOOKS_API_KEY=$(cat "$UPLOADS/key"); export RUNBOOKS_API_KEY\n'
    # Ends with the load generator, whose process this shell becomes; nice: it must not cost a stamp.
    script += f"mkdir -p {quote(remote)}/out\n"
    beside = shlex.join(["nice", "-n", "10", "python3", sampler, "--out", f"{remote}/out/{hardware.FILE}"])
    script += f"{beside} --beside $$ >/dev/null 2>&1 &\n"
    script += f"exec {shlex.join(words)}\n"
    limit = 120.0 + len(sweep) * (warmup + window + RAMP)
    try:
        job = run_job(conn, "bench", script, limit=limit, report=report, uploads=uploads, on_line=follower.line)
    except KeyboardInterrupt:
        report.note("stopping the load generator; what it measured is kept", host=host, level="warning")
        conn.ask(f"cd {quote(remote)} && {{ {_STOP} }}", deadline=40.0)
        return True
    if job.rc and job.rc != 130:
        raise _failure(follower.error, job.rc, job.tail, host)
    return job.rc == 130


def url_of(server: Server) -> str:
    """As seen on the host itself."""
    host = "127.0.0.1" if server.host in ("0.0.0.0", "::") else server.host
    return f"http://{host}:{server.port}"


def _failure(error: dict[str, Any] | None, rc: int, tail: tuple[str, ...], host: str) -> RunbookError:
    if rc == BUSY and error:
        return RunbookError(
            error["text"],
            host=host,
            step="bench",
            next="wait until they are done, or measure all the same: invoke bench --force",
        )
    return RunbookError(
        error["text"] if error else f"the load generator ended with {rc}",
        host=host,
        step="bench",
        details=[] if error else [line for line in tail if not line.startswith("{")][-8:],
        next=f"invoke health --hosts {host}",
        page="server-down",
    )


def _bring_home(conn: Connection, remote: str, folder: Path) -> None:
    names = conn.ask(f"cd {quote(remote)}/out 2>/dev/null && ls -1 || true").out.split()
    if "run.json" not in names:
        raise RunbookError("the load generator left no result", host=conn.name, step="bench")
    (folder / "raw").mkdir(parents=True)
    for name in names:
        target = folder / ("raw" if name.endswith(".bin") else ".") / name
        target.write_bytes(conn.fetch(f"{remote}/out/{name}"))


def _canary(conn: Connection, loaded: Loaded, host: str, report: Reporter, key: Secret | None) -> dict[str, Any]:
    result = run_canary(
        conn, server=loaded.inventory.server, model=loaded.model_for(host), battery="quick", report=report, api_key=key
    )
    found = [f"{finding.prompt}: {finding.evidence}" for finding in result.findings if finding.grade != "note"]
    return {"verdict": result.verdict, "found": found, "requests": result.requests}


def _minutes(seconds: float) -> str:
    return f"{seconds // 60:.0f}:{seconds % 60:02.0f} min"
