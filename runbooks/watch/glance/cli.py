"""`python3 glance.pyz HOST:PORT UNIT STATE`: one line of JSON, at most LONGEST bytes, within PATIENCE seconds.

    {"unit": ["active", "0"], "t": 812.5, "tokens": 91234, "run": 3, "queue": 0, "kv": 0.12, "ready": true,
     "gpus": [[98, 301, 61], ...], "canary": ["healthy", 312], "lines": [[14, "Decode out of memory"]]}

What is not known is null. `gpus`: percent, watts and degrees of each card; null: nvidia-smi does not answer.
`canary`: its last verdict and that one's age; "not run yet" where its timer is installed and has not come round.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

PATIENCE = 3.0  # seconds for each question
TIMER = "runbooks-canary.timer"
LINES, WIDTH = 3, 120  # of the journal; characters of a line
LOOK_BACK = 600  # seconds
LONGEST = 1400  # bytes of the whole line, for eight cards

_TELLING = re.compile(
    r"\b(?:error|exception|traceback|killed|abort\w*|fatal|oom|out of memory|watchdog|retract\w*|sigquit|timed? ?out)\b"
    r"|\bNaN\b|\bnan\b.*detected|Xid|fallen off|crash|Failed with result|Main process exited",
    re.IGNORECASE,
)
_HARMLESS = re.compile(r"Ignore import error|server_args=|Warning:|HTTP/1\.\d\"? (?:[1-4]\d\d|503)")

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy of /etc/environment is not asked


def main() -> int:
    server, unit, state = sys.argv[1:4]
    print(json.dumps(glance(server, unit, Path(state)), separators=(",", ":")))
    return 0


def glance(server: str, unit: str, state: Path) -> dict[str, Any]:
    said = dict(line.split("=", 1) for line in _ask("systemctl", "show", unit, "-pActiveState,NRestarts").splitlines())
    return {
        "unit": [said.get("ActiveState", ""), said.get("NRestarts", "")],
        "t": round(time.monotonic(), 2),
        **_metrics(server),
        "gpus": _gpus(),
        "canary": _canary(state),
        "lines": _lines(unit),
    }


def _metrics(server: str) -> dict[str, Any]:
    try:
        with _DIRECT.open(f"http://{server}/metrics", timeout=PATIENCE) as answer:
            text = answer.read().decode("utf-8", "replace")
    except urllib.error.HTTPError:
        return {"ready": True, "tokens": None, "run": None, "queue": None, "kv": None}  # it serves, without metrics
    except (OSError, ValueError):
        return {"ready": False, "tokens": None, "run": None, "queue": None, "kv": None}
    tokens = _samples(text, r'sglang:realtime_tokens_total\{[^}]*mode="decode"[^}]*\}')
    tokens = tokens or _samples(text, r"sglang:generation_tokens_total(?:\{[^}]*\})?")
    found = {
        "run": _samples(text, r"sglang:num_running_reqs(?:\{[^}]*\})?"),
        "queue": _samples(text, r"sglang:num_queue_reqs(?:\{[^}]*\})?"),
        "kv": _samples(text, r"sglang:token_usage(?:\{[^}]*\})?"),
    }
    most = {name: max(values) if values else None for name, values in found.items()}
    return {"ready": True, "tokens": sum(tokens) if tokens else None, **most}


def _samples(text: str, series: str) -> list[float]:
    return [float(value) for value in re.findall(rf"^{series} ([0-9.eE+-]+)$", text, re.MULTILINE)]


def _gpus() -> list[list[int | None]] | None:
    if _stuck():  # one that waits in the kernel cannot be killed, and each further one makes it worse
        return None
    said = _ask("nvidia-smi", "--query-gpu=utilization.gpu,power.draw,temperature.gpu", "--format=csv,noheader,nounits")
    cards = [line.split(",") for line in said.splitlines() if line.count(",") == 2]
    return [[_whole(cell) for cell in card] for card in cards] or None


def _stuck() -> bool:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if stat.read_text().partition("(")[2].startswith("nvidia-smi) D"):
                return True
        except OSError:
            continue
    return False


def _whole(cell: str) -> int | None:
    try:
        return round(float(cell))
    except ValueError:
        return None


def _canary(state: Path) -> list[Any] | None:
    """Its last verdict, and its age in seconds."""
    try:
        said = json.loads(state.read_text(encoding="utf-8"))
        return [said["verdict"], round(time.time() - said["last_run"])]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        waits = _ask("systemctl", "is-active", TIMER) == "active"
        return ["not run yet", 0] if waits else None


def _lines(unit: str) -> list[list[Any]]:
    """The last lines that matter, of the server and of the kernel, each with its age in seconds; a line that repeats
    counts once."""
    since = f"--since=-{LOOK_BACK}s"
    shape = ("-o", "json", "--output-fields=MESSAGE", "-q", "--no-pager", "-n", "2000")
    found: dict[str, float] = {}
    for which in (("-u", unit), ("-k",)):
        for entry in _ask("journalctl", *which, since, *shape).splitlines():
            try:
                said = json.loads(entry)
                text, when = str(said["MESSAGE"]), int(said["__REALTIME_TIMESTAMP"]) / 1e6
            except (ValueError, KeyError):
                continue
            if _TELLING.search(text) and not _HARMLESS.search(text):
                found[text.strip()[:WIDTH]] = when
    last = sorted(found.items(), key=lambda item: item[1])[-LINES:]
    return [[round(time.time() - when), text] for text, when in last]


def _ask(*words: str) -> str:
    """What a program prints; nothing where it is missing or hangs."""
    try:
        child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return ""
    try:
        return child.communicate(timeout=PATIENCE)[0].decode("utf-8", "replace").strip()
    except subprocess.TimeoutExpired:
        child.kill()  # and not waited for: it may never end
        return ""
