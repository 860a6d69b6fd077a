"""`python -m lab.standins.sglang.run --port P [--version V] [--knobs FILE] -- <arguments of sglang.launch_server>`

Runs the simulated server from the checkout. Without --model-path among its arguments it gets a small model folder
of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from lab.standins import models
from lab.standins.sglang import stage


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.standins.sglang.run", description="Run the simulated SGLang from the checkout."
    )
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--version", default="0.5.23", help="of SGLang (default: %(default)s)")
    parser.add_argument("--knobs", help="a file like /etc/lab-sglang.json; see lab/standins/sglang/src/knobs.py")
    parser.add_argument("rest", nargs="*", help="arguments of sglang.launch_server, after --")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="lab-sglang-") as folder:
        path = stage(options.version, Path(folder))
        rest = list(options.rest)
        if not any(word.startswith(("--model-path", "--model")) for word in rest):
            rest += ["--model-path", str(models.write(Path(folder) / "models"))]
        env = {**os.environ, "PYTHONPATH": str(path)}
        env["LAB_SGLANG_KNOBS"] = options.knobs or "/nonexistent"
        command = [sys.executable, "-m", "sglang.launch_server", "--port", str(options.port), *rest]
        try:
            return subprocess.run(command, env=env, check=False, cwd=folder).returncode
        except KeyboardInterrupt:
            return 130


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
