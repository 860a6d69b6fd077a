"""The sweep on a host: push the load generator, run it there as a job, bring its logs home, ask the canary, judge."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGTERM
from typing import Any

import msgspec

from runbooks import paths
from runbooks.bench import between, hardware, measured, provenance, report
from runbooks.bench.asked import BenchOptions
from runbooks.bench.follower import Follower
from runbooks.bench.loadgen.options import Options
from runbooks.bench.loadgen.run import STATE
from runbooks.bench.results import FORMAT, BenchResult, as_json, assess, digest_of, write_points
from runbooks.canary import run_canary
from runbooks.engine.artefact import push_zipapp
from runbooks.engine.errors import Bug, CheckFailed, RunbookError, UsageError
from runbooks.engine.jobs import run_job
from runbooks.engine.report import Reporter
from runbooks.engine.secret import Secret
from runbooks.engine.step import quote
from runbooks.engine.transport import Connection
from runbooks.inventory import Loaded
from runbooks.inventory.beside import beside
from runbooks.inventory.shape import Server

INTERRUPTED = 130  # the load generator's exit code for a partial result
RAMP = 300.0  # seconds that a point may take until all its streams have had a first token, and to end what runs


_PREPARE = """\
find {bench} -mindepth 1 -maxdepth 1 -type d -mtime +7 -exec rm -rf {{}} + 2>/dev/null
mkdir -p {work} && cd {work} || exit 1
kill -0 "$(cat pid 2>/dev/null)" 2>/dev/null && echo running
[ ! -e out/state.json ] || echo unfinished
"""
# `$JOB/stop` appears when somebody wants the job to end; $$ is this shell's, and then the load generator's.
_STOP = '( while sleep 0.3 && kill -0 $$; do [ ! -e "$JOB/stop" ] || { kill -TERM $$; break; }; done ) 2>/dev/null &\n'


def run_bench(
    conn: Connection,
    loaded: Loaded,
    host: str,
    *,
    options: BenchOptions,
    report: Reporter,
    out: Path,
    stopping: Callable[[], object] = lambda: False,
) -> BenchResult:
    """Run the sweep of the inventory on a host, and leave a results folder below `out`.

    Raises RunbookError when nothing could be measured: no server, or one that has other requests. When
    `stopping()` becomes true, the load generator stops and keeps what it measured: the result then says so.
    """
    asked = options.checked(loaded.inventory.bench)
    key = loaded.secret(loaded.inventory.server.api_key) if loaded.inventory.server.api_key else None
    if key:
        report.hide(key)
    follower = Follower(report, host, len(asked.loads), asked.settings.warmup + asked.settings.window)
    load = _load(loaded, host, options)
    remote = f"{paths.STATE}/bench/{hashlib.sha256(json.dumps(load).encode()).hexdigest()[:12]}"
    _prepare(conn, remote, options, report)
    interrupted = _drive(conn, load, options, asked, key, remote, follower, report, stopping)
    release = _release(conn)
    folder = out / f"{datetime.now(UTC):%Y-%m-%dT%H%M%SZ}-{host}-{release.get('profile', 'no-release')}"
    _bring_home(conn, remote, folder)
    if interrupted:
        report.note("the rest can be measured later: the same command with --resume", host=host)
    else:
        conn.ask(f"rm -rf -- {quote(remote)}")
    report.note("asking the host what it is", host=host)
    machine = provenance.gather(conn)
    (folder / "provenance.json").write_text(as_json(machine))
    stand_in = machine["server"].get("package_summary", "")
    if "stand-in" in stand_in:
        report.note(f"not hardware: {stand_in}", host=host, level="warning")
    told = between.latest(conn, report)
    if told:
        (folder / measured.FILE).write_text(as_json(told))
    canary = None
    if options.canary and not interrupted:
        canary = _canary(conn, loaded, host, report, key)
    describe(folder, loaded, host, release=release, command=options.command, canary=canary)
    return finish(folder, report, host)


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
        "tool": provenance.tool(),
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


def finish(folder: Path, said: Reporter | None = None, host: str | None = None) -> BenchResult:
    """Judge a folder that has its raw logs and run.json, and write what people read.

    `said`: where it is told that the report could not be drawn, which costs no measured sweep its numbers.
    """
    result = assess(folder)
    write_points(result)
    try:
        report.write(result, folder)
    except Exception as error:  # of any kind: hours of measuring stand behind it
        if said is None:
            raise
        text = "the report could not be drawn; the numbers and the verdict are kept"
        why = error if isinstance(error, RunbookError) else Bug(error)
        details = [f"{why.head}: {error}"[:200], *why.details, f"kept: {folder / 'points.json'}"]
        drawn = RunbookError(text, step="report", details=details, next=f"invoke bench.report {folder}")
        said.note(drawn.told(), host=host, level="error")
    return result


def tell_report(result: BenchResult, said: Reporter, host: str | None = None) -> bool:
    """Name the report to people. False where there is none, which was said."""
    page = result.folder / "report.html"
    if page.exists():
        said.note(f"report: {page}", host=host, level="good")
    return page.exists()


def _load(loaded: Loaded, host: str, options: BenchOptions) -> list[str]:
    """All of the load generator's command line that makes two sweeps of a host the same sweep."""
    words = ["--url", url_of(loaded.inventory.server), "--model", loaded.model_for(host).served_name]
    return [*words, *options.words(loaded.inventory.bench, lengths="lengths.json")]


def _prepare(conn: Connection, work: str, options: BenchOptions, report: Reporter) -> None:
    """The folder of this sweep on the host. A sweep that runs there is attached to; one that broke off is resumed."""
    found = conn.ask(_PREPARE.format(bench=quote(f"{paths.STATE}/bench"), work=quote(work))).out.split()
    if "running" in found:
        return
    if options.resume and "unfinished" not in found:
        raise UsageError(
            "resume: no sweep of these options was broken off on this host",
            host=conn.name,
            next="without --resume it begins anew",
        )
    if "unfinished" in found and not options.resume:
        report.note("a broken-off sweep of these options is put away; --resume would have kept it", host=conn.name)
    conn.ask(f"cd {quote(work)} && rm -f out/run.json && {'touch resume' if options.resume else 'rm -rf out resume'}")


def _drive(
    conn: Connection,
    load: list[str],
    options: BenchOptions,
    asked: Options,
    key: Secret | None,
    remote: str,
    follower: Follower,
    report: Reporter,
    stopping: Callable[[], object],
) -> bool:
    """Run the load generator to its end. True when it was interrupted and left a partial result.

    The job's script depends on the options alone: the same command finds the job that runs, and attaches to it.
    """
    artefact = push_zipapp(conn, "runbooks.bench.loadgen", "cli:main")
    sampler = push_zipapp(conn, "runbooks.bench.sampler", "cli:main")
    script = f"cd {quote(remote)}; echo $$ >pid; mkdir -p out; more=\n[ ! -e resume ] || more=--resume\nrm -f resume\n"
    uploads: dict[str, Secret | bytes] = {}
    if options.lengths:
        uploads["lengths.json"] = options.lengths.read_bytes()
        script += 'cp "$UPLOADS/lengths.json" .\n'
    if key:
        uploads["key"] = key
        script += 'RUNBOOKS_API_KEY=$(cat "$UPLOADS/key"); export RUNBOOKS_API_KEY\n'
    # Ends with the load generator, whose process this shell becomes; nice: it must not cost a stamp.
    beside = shlex.join(["nice", "-n", "10", "python3", sampler, "--out", f"out/{hardware.FILE}"])
    script += f"{beside} --beside $$ >/dev/null 2>&1 &\n"
    script += _STOP
    script += f"exec {shlex.join(['python3', artefact, '--out', 'out', *load])} $more\n"
    limit = 120.0 + len(asked.loads) * (1 + asked.again) * (asked.settings.warmup + asked.settings.window + RAMP)
    job = run_job(
        conn,
        "bench",
        script,
        limit=limit,
        report=report,
        uploads=uploads,
        on_line=follower.line,
        stopping=stopping,
    )
    interrupted = job.rc == INTERRUPTED or (bool(stopping()) and job.rc in (-SIGTERM, 128 + SIGTERM))
    if job.rc and not interrupted:
        raise _failure(follower.error, job.rc, job.tail, conn.name)
    return interrupted


def url_of(server: Server) -> str:
    """As seen on the host itself."""
    return f"http://{beside(server)}"


def _failure(error: dict[str, Any] | None, rc: int, tail: tuple[str, ...], host: str) -> RunbookError:
    if error and error["kind"] == "busy":
        return CheckFailed(
            error["text"],
            host=host,
            step="bench",
            next="wait until they are done, or measure all the same: invoke bench --force",
        )
    if error and error["kind"] == "usage":
        return UsageError(error["text"], host=host, step="bench")
    return RunbookError(
        error["text"] if error else f"the load generator ended with {rc}",
        host=host,
        step="bench",
        details=[] if error else [line for line in tail if not line.startswith("{")][-8:],
        next=f"invoke health --hosts {host}" + ("" if error else "; then the same command with --resume goes on"),
        page="server-down",
    )


def _bring_home(conn: Connection, remote: str, folder: Path) -> None:
    names = conn.ask(f"cd {quote(remote)}/out 2>/dev/null && ls -1 || true").out.split()
    if "run.json" not in names:
        raise RunbookError("stopped before the first point: nothing was measured", host=conn.name, step="bench")
    (folder / "raw").mkdir(parents=True)
    for name in sorted(set(names) - {STATE}):
        target = folder / ("raw" if name.endswith(".bin") else ".") / name
        target.write_bytes(conn.fetch(f"{remote}/out/{name}"))


def _canary(conn: Connection, loaded: Loaded, host: str, report: Reporter, key: Secret | None) -> dict[str, Any]:
    result = run_canary(
        conn, server=loaded.inventory.server, model=loaded.model_for(host), battery="quick", report=report, api_key=key
    )
    found = [f"{finding.prompt}: {finding.evidence}" for finding in result.findings if finding.grade != "note"]
    return {"verdict": result.verdict, "found": found, "requests": result.requests}
