"""`invoke bench.compare A B` and `invoke results`: like with like, the noise beside each difference, what changed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runbooks.bench.charts import number
from runbooks.bench.results import FORMAT, BenchResult, assess, named, reading
from runbooks.bench.words import NOISY, load, plus_minus
from runbooks.engine.errors import UsageError
from runbooks.engine.printers import printer
from runbooks.engine.report import Reporter
from runbooks.paths import expand

COLUMNS = ("load", "before", "now", "change", "noise", "")
# Of /server_info: what a run is told apart by, and not what moves by itself.
MOVING = ("internal_states", "pid", "uptime", "version_", "random_seed", "host", "port", "launch", "time", "nccl_port")

ONE_PASS = 0.01  # of the rate: by so much may two sweeps of one machine differ, which no interval of one of them tells


@dataclass(frozen=True)
class Point:
    """One load of both runs. `change` is relative; `noise` is the half width of its 95 % interval, or None."""

    load: str  # `64 streams`, `4 requests/s`
    streams: int  # of the second run: in an open loop, those in flight
    before: float
    now: float
    change: float
    noise: float | None

    @property
    def word(self) -> str:
        if self.noise is None:
            return "noise not known"
        if abs(self.change) > self.noise:
            return "faster" if self.change > 0 else "slower"
        if abs(self.change) + self.noise > NOISY:  # what the interval holds would matter if it were so
            return "cannot tell: the noise is larger"
        return "no difference"


@dataclass(frozen=True)
class Comparison:
    points: tuple[Point, ...]
    left_out: tuple[str, ...]  # why a load is not compared
    settings: tuple[tuple[str, str, str], ...]


def compare(before: BenchResult, now: BenchResult) -> Comparison:
    """Raises UsageError for runs of which a difference would mean nothing."""
    unlike = [f"{name}: {one} and {other}" for name, (one, other) in _likeness(before, now).items() if one != other]
    if unlike:
        raise UsageError("these runs cannot be compared: they measured different things", details=unlike)
    points, left_out = [], []
    by_load = {load(point): point for point in now.points}
    for one in before.points:
        asked = load(one)
        other = by_load.pop(asked, None)
        if other is None:
            left_out.append(f"{asked}: only in the first run")
        elif not (one["valid"] and other["valid"]):
            which = " and ".join(n for n, p in (("the first", one), ("the second", other)) if not p["valid"])
            left_out.append(f"{asked}: INVALID in {which}")
        else:
            points.append(_point(one, other))
    left_out += [f"{asked}: only in the second run" for asked in by_load]
    return Comparison(tuple(points), tuple(left_out), tuple(_settings(before, now)))


def _point(one: Mapping[str, Any], other: Mapping[str, Any]) -> Point:
    """Independent intervals of both rates make that of their ratio, as relative errors add in squares."""
    before, now = one["tok_s"], other["tok_s"]
    halves, noise = (_half(one), _half(other)), None
    if halves[0] is not None and halves[1] is not None:
        noise = now / before * math.hypot(halves[0] / before, halves[1] / now)
    return Point(load(one), other["concurrency"], before, now, now / before - 1.0, noise)


def _half(point: Mapping[str, Any]) -> float | None:
    """Half of what a rate is known to: no less than what lies between its passes, and of one pass nobody knows that."""
    if point["tok_s_ci"] is None:
        return None
    rates = [one["tok_s"] for one in point.get("repeats") or ()]
    apart = (max(rates) - min(rates)) / 2 if len(rates) > 1 else ONE_PASS * point["tok_s"]
    return float(max(point["tok_s_ci"], apart))


def _likeness(before: BenchResult, now: BenchResult) -> dict[str, tuple[Any, Any]]:
    def of(run: Mapping[str, Any]) -> dict[str, Any]:
        loadgen = run["loadgen"]
        shown = {"model": run["model"]["source"], "cards": f"{run['gpus']['count']} x {run['gpus']['name']}"}
        shown |= {"tokens in": loadgen["input_len"], "tokens out": loadgen["output_len"], "API": loadgen["api"]}
        told = {name: f"{loadgen[name]:g}" for name in ("temperature", "top_p") if name in loadgen}
        shown |= {"sampling": ", ".join(f"{name} {value}" for name, value in told.items()) or "not told"}
        shown |= {"workload": loadgen.get("workload") or "none named", "lengths": _lengths(loadgen)}
        return shown | {
            "shared prefix": loadgen.get("shared_len", 0),
            "loop": "open" if loadgen.get("open") else "closed",
        }

    first, second = of(before.run), of(now.run)
    return {name: (first[name], second[name]) for name in first}


def _lengths(loadgen: Mapping[str, Any]) -> str:
    return loadgen.get("lengths") or f"{loadgen['input_len']} in, {loadgen['output_len']} out"


def _settings(before: BenchResult, now: BenchResult) -> Iterator[tuple[str, str, str]]:
    def of(result: BenchResult) -> dict[str, str]:
        info = result.run["loadgen"].get("server_info_before") or {}
        found = {k: json.dumps(v, sort_keys=True) for k, v in info.items() if not k.startswith(MOVING)}
        found |= {
            f"release {k}": str(v) for k, v in result.run["release"].items() if k in ("profile", "sglang", "runtime")
        }
        text = _provenance(result.folder).get("server", {}).get("environment", "")
        found |= dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        return found | {"driver": _provenance(result.folder).get("system", {}).get("driver", "")[:80]}

    first, second = of(before), of(now)
    for name in sorted(set(first) | set(second)):
        one, other = first.get(name, "not set"), second.get(name, "not set")
        if one != other:
            yield name, one[:60], other[:60]


def _provenance(folder: Path) -> dict[str, dict[str, str]]:
    try:
        found: dict[str, dict[str, str]] = json.loads((folder / "provenance.json").read_text())
    except (OSError, ValueError):
        return {}
    return found


def rows(points: Sequence[Point]) -> list[list[str]]:
    return [
        [
            point.load,
            number(point.before),
            number(point.now),
            f"{point.change:+.1%}",
            "-" if point.noise is None else plus_minus(point.noise),
            point.word,
        ]
        for point in points
    ]


def compare_runs(before: str, now: str, reporter: Reporter | None = None) -> int:
    """Say how two results folders differ. 1: something got slower."""
    reporter = reporter or Reporter(printer(json_lines=False, plain=False))
    try:
        first, second = named(before), named(now)
        with reading(first, second):
            found = compare(assess(first), assess(second))
        if not found.points:
            raise UsageError("no load is VALID in both runs: there is nothing to compare", details=found.left_out)
        reporter.table("output tok/s, end to end", COLUMNS, rows(found.points))
        for text in found.left_out:
            reporter.note(f"not compared: {text}", level="warning")
        if found.settings:
            reporter.table("settings that differ", ("setting", "before", "now"), [list(one) for one in found.settings])
        else:
            reporter.note("the same settings in both")
        return 1 if any(point.word == "slower" for point in found.points) else 0
    finally:
        reporter.close()


def list_results(out: str, reporter: Reporter | None = None) -> int:
    """The runs below a folder, newest first, from what they wrote down: nothing is computed again."""
    reporter = reporter or Reporter(printer(json_lines=False, plain=False))
    try:
        found = sorted(_listed(expand(out)), key=_age, reverse=True)
        if found:
            reporter.table(f"results in {out}", ("run", "verdict", "valid", "highest tok/s"), found)
        else:
            reporter.note(f"no results in {out} yet: invoke bench")
    finally:
        reporter.close()
    return 0


def _listed(out: Path) -> Iterator[list[str]]:
    paths = [path for places in ("*/points.json", "*-tune/*/points.json") for path in out.glob(places)]
    for path in paths:
        name = str(path.parent.relative_to(out))
        try:
            told = json.loads(path.read_text())
            if told.get("format") != FORMAT:
                continue
            points, word = told["points"], str(told["verdict"]["word"])
            asked = len(json.loads((path.parent / "run.json").read_text())["loadgen"]["sweep"])
            valid = [point["tok_s"] for point in points if point["valid"]]
            top = number(max(valid)) if valid else "-"
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            yield [name, "not readable", "-", "-"]
        else:
            word = _why_none(points) if word == "no verdict" else word
            yield [name, word, f"{len(valid)} of {asked}", top]


def _age(row: Sequence[str]) -> tuple[bool, str]:
    """Newest first, where the name says when it was; one without a date, as the example's, is the last."""
    name = row[0].rpartition("/")[2]
    return name[:4].isdigit(), name


def _why_none(points: Sequence[Mapping[str, Any]]) -> str:
    """In two words, why a run has no verdict."""
    valid = [point for point in points if point["valid"]]
    if not valid:
        return "nothing VALID"
    return "unknown cards" if any(point["step_ms"] for point in valid) else "too short"
