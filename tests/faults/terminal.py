"""A command on a terminal of its own, as a person has it."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
INVOKE = [str(Path(sys.executable).with_name("invoke"))]


def on_a_terminal(argv: list[str], *, waits_for: str = "", types: str = "", seconds: float = 60.0) -> tuple[str, int]:
    """What it said, and its exit code. Once `waits_for` is on the screen, `types` is typed."""
    master, slave = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "160"}
    with subprocess.Popen(
        argv, stdin=slave, stdout=slave, stderr=slave, cwd=ROOT, env=env, start_new_session=True
    ) as process:
        os.close(slave)
        said, deadline = b"", time.monotonic() + seconds
        while time.monotonic() < deadline:
            if select.select([master], [], [], 0.2)[0]:
                try:
                    said += os.read(master, 65536)
                except OSError:  # its end of the terminal is closed
                    break
            if types and waits_for.encode() in said:
                os.write(master, types.encode())
                types = ""
        else:
            process.kill()
    os.close(master)
    return said.decode("utf-8", "replace"), process.returncode
