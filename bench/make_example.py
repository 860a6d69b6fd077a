"""`python -m bench.make_example [--out FOLDER]`: a results folder of the simulated server, without a host.

A real run of the load generator against the lab's simulated SGLang, whose speed is fitted to the published sweep that
the inventory names. It shows what a report looks like; it says nothing about hardware, and the report says so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from runbooks.bench.results import as_json
from runbooks.bench.sweep import describe, finish
from runbooks.inventory import load

ROOT = Path(__file__).parents[1]
SERVER = "--enable-metrics --enable-cache-report --max-running-requests 64 --cuda-graph-max-bs-decode 64 --tp-size 8"
SWEEP = "--self-check --input-len 512 --output-len 128 --warmup 2 --window 12 --drain 20"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "simulated")
    parser.add_argument("--port", type=int, default=18451)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / options.out.name
        (out / "raw").mkdir(parents=True)
        line = make(out, options.port)
        shutil.rmtree(options.out, ignore_errors=True)  # the old one goes when the new one is whole
        shutil.copytree(out, options.out)
    print(line)
    return 0


def make(out: Path, port: int) -> str:
    """Measure into `out`, and return the verdict."""
    url = f"http://127.0.0.1:{port}"
    launch = f"-m lab.standins.sglang.run --port {port} -- {SERVER} --served-model-name glm-5".split()
    server = subprocess.Popen([sys.executable, *launch], cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        wait_for(f"{url}/health", server)
        sweep = ["-m", "runbooks.bench.loadgen", "--url", url, "--out", str(out / "raw"), *SWEEP.split()]
        subprocess.run([sys.executable, *sweep], cwd=ROOT, check=True)
        canary = ask_canary(url)
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
        server.wait()
    (out / "raw" / "run.json").rename(out / "run.json")
    note = "lab stand-in for SGLang: simulated, its speed fitted to the reference sweep"
    system = {"kernel": platform.platform(), "python": platform.python_version()}
    provenance = {"system": system, "server": {"package_summary": note, "argv": f"sglang.launch_server {SERVER}"}}
    (out / "provenance.json").write_text(as_json(provenance))
    loaded = load(ROOT / "lab" / "inventory.yaml")
    command = "python -m bench.make_example"
    describe(
        out, loaded, next(iter(loaded.inventory.hosts)), release={"profile": "example"}, command=command, canary=canary
    )
    return finish(out).verdict.line


def ask_canary(url: str) -> dict[str, Any]:
    """The quick battery, as run_canary asks it on a host."""
    call = "from runbooks.canary.probe.cli import main; raise SystemExit(main())"
    words = ["-c", call, "--url", url, "--model", "glm-5"]
    told = subprocess.run([sys.executable, *words], cwd=ROOT, check=False, capture_output=True, text=True)
    verdict: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    found = [f"{one['prompt']}: {one['evidence']}" for one in verdict["findings"] if one["grade"] != "note"]
    return {"verdict": verdict["verdict"], "found": found, "requests": verdict["requests"]}


def wait_for(url: str, server: subprocess.Popen[bytes], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and server.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            time.sleep(0.3)
        else:
            return
    raise SystemExit(f"{url} did not answer within {seconds:g} s, or its server ended")


if __name__ == "__main__":
    raise SystemExit(main())
