"""`invoke bench --url URL`: the same measurement against any server with an OpenAI-compatible API, from this machine.

Nothing is known of the machine behind it, so there is no ceiling and no verdict; every check of the numbers holds.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from runbooks.bench import provenance, report
from runbooks.bench.asked import BenchOptions
from runbooks.bench.beneath import Interruptible
from runbooks.bench.follower import Follower
from runbooks.bench.loadgen.options import Options
from runbooks.bench.loadgen.run import STATE
from runbooks.bench.loadgen.stopping import NUMBERS
from runbooks.bench.results import FORMAT, BenchResult, as_json, digest_of, writable
from runbooks.bench.sweep import INTERRUPTED, finish, tell_report
from runbooks.engine.errors import RunbookError, UsageError
from runbooks.engine.printers import printer
from runbooks.engine.report import Reporter
from runbooks.engine.secret import Secret
from runbooks.inventory.shape import Bench
from runbooks.paths import expand

KEY = "RUNBOOKS_API_KEY"  # the environment variable that holds the server's key, where it wants one


def bench_url(url: str, options: BenchOptions, *, out: str = "results", reporter: Reporter | None = None) -> int:
    """Sweep the server at `url`. 0: every point is VALID; 130: interrupted, and what was measured is kept."""
    asked = options.checked(Bench(), url)
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"url: {url[:80]!r} is no http(s) address")
    writable(expand(out))
    reporter = reporter or Reporter(printer(json_lines=False, plain=False))
    if os.environ.get(KEY):
        reporter.hide(Secret(os.environ[KEY]))
    interruptible = Interruptible()
    try:
        with interruptible.listening():
            result = _measure(url, options, asked, expand(out), reporter, interruptible)
            report.show(result, reporter)
            drawn = tell_report(result, reporter)
        if interruptible.asked:
            return INTERRUPTED
        return 0 if result.valid and drawn else 1
    finally:
        reporter.close()


def _measure(
    url: str,
    options: BenchOptions,
    asked: Options,
    out: Path,
    reporter: Reporter,
    interruptible: Interruptible,
) -> BenchResult:
    name = urlsplit(url).hostname or "server"
    folder = _unfinished(out, name) if options.resume else out / f"{datetime.now(UTC):%Y-%m-%dT%H%M%SZ}-{name}"
    raw = folder / "raw"
    words = [sys.executable, "-m", "runbooks.bench.loadgen", "--url", url, "--out", str(raw), "--key-env", KEY]
    words += [*options.words(Bench()), *(["--resume"] if options.resume else [])]
    follower = Follower(reporter, name, len(asked.loads), asked.settings.warmup + asked.settings.window)
    home = Path(__file__).parents[2]
    rc = interruptible.run(words, os.environ | {"PYTHONPATH": str(home)}, follower.line)
    if rc in (INTERRUPTED, *(-number for number in NUMBERS)) and not (raw / "run.json").exists():
        raise interruptible.gone or _nothing_measured(folder, raw)
    if rc not in (0, INTERRUPTED) or not (raw / "run.json").exists():
        raise _failure(follower.error, rc, url)
    result = _judged(folder, raw, name, options, reporter)
    if interruptible.gone:
        raise interruptible.gone
    if rc == INTERRUPTED:
        rest = "what was measured is kept, and the same command with --resume measures the rest"
        reporter.note(f"interrupted; {rest}", level="warning")
    elif interruptible.asked:
        reporter.note("interrupted when all was measured", level="warning")
    return result


def _nothing_measured(folder: Path, raw: Path) -> RunbookError:
    if any(raw.glob("*.bin")):
        text = "interrupted before anything more was measured; what there was is kept for --resume"
    else:
        text = "interrupted before anything was measured; nothing goes on"
        shutil.rmtree(folder, ignore_errors=True)
    error = RunbookError(text, step="bench")
    error.exit_code = INTERRUPTED
    return error


def _judged(folder: Path, raw: Path, name: str, options: BenchOptions, reporter: Reporter) -> BenchResult:
    loadgen = json.loads((raw / "run.json").read_text())
    (raw / "run.json").unlink()
    run = {
        "format": FORMAT,
        "host": name,
        "release": {},
        "command": options.command,
        "tool": provenance.tool(),
        "loadgen": loadgen,
        "canary": None,
        "model": {"name": loadgen["model"], "source": loadgen["model"], "shape": None},
        "gpus": {"name": "unknown cards", "count": 0},
        "reference": {},
        "reference_source": "",
        "link": "",
        "raw_sha256": {log.name: digest_of(log) for log in sorted(raw.glob("*.bin"))},
    }
    (folder / "run.json").write_text(as_json(run))
    return finish(folder, reporter)


def _unfinished(out: Path, name: str) -> Path:
    """The newest run of this server that was broken off."""
    found = sorted(out.glob(f"*-{name}/raw/{STATE}"))
    if not found:
        raise UsageError(f"resume: no run of {name} below {out} was broken off", next="without --resume it begins anew")
    return found[-1].parents[1]


def _failure(error: dict[str, Any] | None, rc: int, url: str) -> RunbookError:
    if error is None:
        return RunbookError(f"the load generator ended with {rc}", step="bench")
    if error["kind"] == "usage":
        return UsageError(error["text"], step="bench")
    ways = {
        "busy": "wait until they are done, or: invoke bench --force",
        "server": f"curl {'-H @- ' if os.environ.get(KEY) else ''}{url.rstrip('/').removesuffix('/v1')}/v1/models",
    }
    return RunbookError(error["text"], step="bench", next=ways.get(error["kind"]))
