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
import sys
from pathlib import Path
from typing import Any

MASK = "***"


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


def main(key: str, module: str) -> None:
    words = json.loads((Path(__file__).parent / "argv.json").read_text())
    sys.argv = [module.rpartition(".")[2] + ".py", *words, *([f"--api-key={key}"] if key else [])]
    # Not as sys.modules["__main__"]: that must stay this file, for the workers to import it.
    runpy.run_module(module, run_name="__main__", alter_sys=False)


_key = read_key()
if _key:
    hide(_key)
if __name__ == "__main__":
    main(_key, (sys.argv[1:] or ["sglang.launch_server"])[0])
