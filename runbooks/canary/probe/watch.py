"""What an installed canary leaves behind after each run: Prometheus text for node_exporter, and a state that outlives
restarts."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .drift import kept

VERDICTS = ("healthy", "degraded", "nan", "dead")

_HELP = {
    "verdict": ("gauge", "1 for the verdict of the last run"),
    "last_run_timestamp_seconds": ("gauge", "when the last run ended"),
    "last_healthy_timestamp_seconds": ("gauge", "when a run was last healthy; 0: never"),
    "unhealthy_runs": ("gauge", "runs in a row that were not healthy"),
    "duration_seconds": ("gauge", "how long the last run took"),
    "fault": ("gauge", "1 for each fault of the last run"),
    "runs_total": ("counter", "runs by verdict"),
    "requests_total": ("counter", "requests that the canary itself cost"),
    "tokens_total": ("counter", "tokens that the canary itself cost, prompts included"),
}


def remember(path: Path, verdict: Mapping[str, Any], now: float | None = None) -> dict[str, Any]:
    """Add a run to the state file, and return the new state. A state that cannot be read begins anew."""
    now = time.time() if now is None else now
    state = dict(kept(path))
    said = str(verdict["verdict"])
    runs = dict(state.get("runs") or {})
    runs[said] = runs.get(said, 0) + 1
    new = {
        "verdict": said,
        "since": state.get("since", now) if state.get("verdict") == said else now,
        "last_run": now,
        "last_healthy": now if said == "healthy" else state.get("last_healthy", 0),
        "unhealthy_runs": 0 if said == "healthy" else state.get("unhealthy_runs", 0) + 1,
        "runs": runs,
        "requests": state.get("requests", 0) + verdict["requests"],
        "tokens": state.get("tokens", 0) + verdict["tokens"],
        "seconds": verdict["seconds"],
        "findings": [finding for finding in verdict["findings"] if finding["grade"] != "note"],
    }
    write(path, json.dumps(new))
    return new


def metrics(state: Mapping[str, Any]) -> str:
    """The state in Prometheus' text format. Counters survive a restart of the host, as the state does."""
    faults = sorted({(one["prompt"], one["kind"]) for one in state["findings"]})
    values: dict[str, list[tuple[str, float]]] = {
        "verdict": [(_labels(verdict=name), float(state["verdict"] == name)) for name in VERDICTS],
        "last_run_timestamp_seconds": [("", state["last_run"])],
        "last_healthy_timestamp_seconds": [("", state["last_healthy"])],
        "unhealthy_runs": [("", state["unhealthy_runs"])],
        "duration_seconds": [("", state["seconds"])],
        "fault": [(_labels(prompt=prompt, kind=kind), 1.0) for prompt, kind in faults],
        "runs_total": [(_labels(verdict=name), state["runs"].get(name, 0)) for name in VERDICTS],
        "requests_total": [("", state["requests"])],
        "tokens_total": [("", state["tokens"])],
    }
    return "\n".join(_family(name, values[name]) for name in _HELP) + "\n"


def write(path: Path, text: str) -> None:
    """Whole or not at all: node_exporter may read at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.chmod(0o644)
    draft.replace(path)


def _family(name: str, samples: Sequence[tuple[str, float]]) -> str:
    kind, text = _HELP[name]
    full = f"runbooks_canary_{name}"
    lines = [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
    return "\n".join([*lines, *(f"{full}{labels} {value:.15g}" for labels, value in samples)])


def _labels(**labels: str) -> str:
    return "{" + ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items()) + "}"
