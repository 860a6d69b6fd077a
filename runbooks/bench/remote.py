"""`invoke bench --url URL`: the same measurement against any server with an OpenAI-compatible API, from this machine.

Nothing is known of the machine behind it, so there is no ceiling and no verdict; every check of the numbers holds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from runbooks.bench import report
from runbooks.bench.results import FORMAT, BenchResult, as_json, digest_of
from runbooks.bench.sweep import BUSY, Follower, finish
from runbooks.engine.errors import RunbookError, UsageError
from runbooks.engine.printers import printer
from runbooks.engine.report import Reporter
from runbooks.engine.secret import Secret
from runbooks.inventory.shape import Bench

KEY = "RUNBOOKS_API_KEY"  # the environment variable that holds the server's key, where it wants one
INTERRUPTED = 130


def bench_url(
    url: str,
    *,
    concurrency: Sequence[int] = (),
    input_len: int = 0,
    output_len: int = 0,
    window: float = 0.0,
    out: str = "results",
    force: bool = False,
    reporter: Reporter | None = None,
) -> int:
    """Sweep the server at `url`. 0: every point is VALID."""
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise UsageError(f"url: {url!r} is no http(s) address")
    reporter = reporter or Reporter(printer(json_lines=False, plain=False))
    if os.environ.get(KEY):
        reporter.hide(Secret(os.environ[KEY]))
    usual = Bench()
    bench = (input_len or usual.input_len, output_len or usual.output_len, window or usual.window)
    try:
        result = _measure(url, tuple(concurrency) or usual.concurrency, bench, usual.warmup, Path(out), force, reporter)
        report.show(result, reporter)
        reporter.note(f"report: {result.folder / 'report.html'}", level="good")
        return 0 if result.valid else 1
    finally:
        reporter.close()


def _measure(
    url: str,
    sweep: tuple[int, ...],
    lengths: tuple[int, int, float],
    warmup: float,
    out: Path,
    force: bool,
    reporter: Reporter,
) -> BenchResult:
    name = urlsplit(url).hostname or "server"
    folder = out / f"{datetime.now(UTC):%Y-%m-%dT%H%M%SZ}-{name}"
    raw = folder / "raw"
    tokens_in, tokens_out, window = lengths
    words = [sys.executable, "-m", "runbooks.bench.loadgen", "--json", "--self-check", "--url", url, "--out", str(raw)]
    words += ["--concurrency", ",".join(map(str, sweep)), "--warmup", f"{min(warmup, window):g}"]
    words += ["--window", f"{window:g}", "--input-len", str(tokens_in), "--output-len", str(tokens_out)]
    words += ["--key-env", KEY, *(["--force"] if force else [])]
    follower = Follower(reporter, name, sweep)
    home = Path(__file__).parents[2]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(home)}
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                follower.line(line)
        except KeyboardInterrupt:  # Ctrl-C reached the load generator too: it writes down what it has
            for line in process.stdout:
                follower.line(line)
    if process.returncode not in (0, INTERRUPTED) or not (raw / "run.json").exists():
        error = follower.error or {"text": f"the load generator ended with {process.returncode}"}
        busy = process.returncode == BUSY
        raise RunbookError(
            error["text"],
            step="bench",
            next="wait until they are done, or: invoke bench --force" if busy else f"is it there? curl {url}/v1/models",
        )
    loadgen = json.loads((raw / "run.json").read_text())
    (raw / "run.json").unlink()
    run = {
        "format": FORMAT,
        "host": name,
        "release": {},
        "command": f"invoke bench --url {url}",
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
    return finish(folder)
