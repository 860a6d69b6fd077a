"""Starts SGLang inside a release: the words of argv.json, and the API key without showing it.

SGLang takes its key only as an argument, and logs its arguments. So the key comes from systemd's credentials, is added
to sys.argv inside the process, and every log record is cleaned of it. Worker processes are spawned, which imports this
file again in each of them: the cleaning is in place there too, before SGLang logs anything.

Runs with the runtime's own Python; standard library only. A word names another module to start: SGLang's gateway takes
its key in the same way.
"""

from __future__ import annotations

import json
import logging
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

MASK = "***"
PATIENCE = float(os.environ.get("RUNBOOKS_WORKER_PATIENCE", "60"))  # seconds that SGLang gets to end by itself


def read_key() -> str:
    """The key, or "" where the release has none."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    path = Path(folder, "api-key") if folder else None
    return path.read_text().strip() if path and path.exists() else ""


def hide(key: str) -> None:
    """Clean the text of every log record of this process, whatever logger and handler it takes."""
    make = logging.getLogRecordFactory()

    def cleaned(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        try:
            text = record.getMessage()
        except Exception:  # a broken format string: logging would report it together with its arguments
            text = f"{record.msg!r} could not be formatted with {record.args!r}"
            record.msg, record.args = text.replace(key, MASK), None
        if key in text:
            record.msg, record.args = text.replace(key, MASK), None
        return record

    logging.setLogRecordFactory(cleaned)


def workers() -> set[int]:
    """SGLang's own child processes that live: they give themselves titles."""
    found: set[int] = set()
    for listed in Path("/proc/self/task").glob("*/children"):
        try:
            found |= {int(pid) for pid in listed.read_text().split()}
        except OSError:
            continue
    return {pid for pid in found if _title(pid).startswith(b"sglang::")}


def _title(pid: int) -> bytes:
    """Empty for one that is gone, and for a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def watch(patience: float = PATIENCE) -> None:
    """End this process where a worker was killed and SGLang goes on without it: 0.5.9 does, and answers nobody again.

    A newer one takes itself down sooner than this. systemd starts it again.
    """
    known: set[int] = set()
    lost = 0.0
    while True:
        alive = workers()
        known |= alive
        lost = (lost or time.monotonic()) if known - alive else 0.0
        if lost and time.monotonic() - lost > patience:
            print(f"a worker of SGLang is gone, and it did not end within {patience:.0f} s: ending it", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(min(5.0, patience / 4))


def main(key: str, module: str) -> None:
    threading.Thread(target=watch, daemon=True).start()
    words = json.loads((Path(__file__).parent / "argv.json").read_text())
    sys.argv = [module.rpartition(".")[2] + ".py", *words, *([f"--api-key={key}"] if key else [])]
    # Not as sys.modules["__main__"]: that must stay this file, for the workers to import it.
    runpy.run_module(module, run_name="__main__", alter_sys=False)


_key = read_key()
if _key:
    hide(_key)
if __name__ == "__main__":
    main(_key, (sys.argv[1:] or ["sglang.launch_server"])[0])
