"""A results folder: what a run left behind, read back and judged. Every number comes from the raw logs, each time.

run.json         what was run, where, by which version, against what; the load generator's own record; canary; hashes of
                 the raw logs
raw/*.bin        one log a point (loadgen/rawlog.py says how it is written)
points.json      the numbers and the validity of each point
provenance.json  the machine and the server, as they were
hardware.jsonl   watts, clocks, throttle reasons, PCIe counters of each card, once a second (sampler/cli.py)
collectives.json what `invoke bench.collectives` measured on that machine, where it did
report.md, report.html

What the load generator tells of a run, `loadgen` of run.json (loadgen/run.py), apart from what it was asked for:
    lengths, workload, shared_len   as words; a name of lengths.WORKLOADS or ""; tokens that all prompts have in common
    sweep, open, repeats            streams of each point, or requests/s where `open`; passes over them
    prompt_tokens                   tokens of a prompt where they are exact; null where the server does not count
    resumed                         points that were kept from a run that broke off
    self_check                      the null server's judgement of the client (loadgen/nullserver.py), or null
    server_info_before, _after      /server_info without secrets
And of a point (loadgen/summary.py; loadgen/metrics.py defines the numbers); times in ms, rates in tokens/s:
    concurrency, open               streams; of an open loop the mean in flight, and `open` has `offered`, `started`,
                                    `ended` (requests/s) and `late_ms` (from the intended to the real moment)
    windows, window_s, full_share   [begin, end] in ns of each pass; seconds of all; part in which all streams decoded
    tok_s, step_ms, each with _ci   the half width of a 95 % interval; null: too little to say
    tokens                          output, prompt, cached; where counts come from; prompt_off, the most that a prompt
                                    was off its length (0: all exact)
    requests                        sent = ok + failed + cut (by us, at the end); kinds of failures; `random`, answers
                                    in which hardly a token comes twice
    client                          its CPU and lateness within the window; whether it was first in line for a core
    attempts                        what was measured before and does not count, because the client was late; its logs
    server                          our count against the server's own; `difference` in parts of 1; `cached_tokens` as
                                    it counts them
    repeats, split                  each pass by itself; what more client processes found, or null
    timeline                        tok/s over the first pass, in 120 bins
    given_up                        true: nearly every request failed, and no more were sent; else null
    hardware, faults, valid, ceiling_tok_s   added here
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from runbooks.bench import hardware, measured
from runbooks.bench.ceiling import Ceiling, gpu_named
from runbooks.bench.loadgen import rawlog
from runbooks.bench.loadgen.summary import points_of
from runbooks.bench.measured import Collectives, Unusable
from runbooks.bench.validity import Limits, faults, without_sense
from runbooks.bench.verdict import Verdict, judge
from runbooks.engine.errors import RunbookError, UsageError
from runbooks.inventory.shape import ModelShape
from runbooks.paths import expand, home

FORMAT = 1
RUNS = ("*/run.json", "*-tune/*/run.json")  # below results/: of sweeps, and of the sweeps of an experiment


def named(text: str | Path, below: str | Path = "") -> Path:
    """A results folder as people type it: its path, or a part of its name that no other run in results/ has."""
    folder, root = expand(text), expand(below or home("results"))
    if folder.exists() or not str(text).strip("."):
        return folder
    if "/" in str(text):  # of an experiment, as `invoke results` names it
        return root / text if (root / text / "run.json").exists() else folder
    runs = [path.parent for places in RUNS for path in root.glob(places)]
    found = sorted(run for run in runs if str(text) in run.name)
    if not found:  # an experiment is no run, and its own runs are said
        found = sorted({run.parent for run in runs if run.parent != root and str(text) in run.parent.name})
    if len(found) > 1:
        names = [path.name for path in found]
        raise UsageError(f"{text}: more than one run in {root} has that in its name", details=names[-5:])
    return found[0] if found else folder


@contextmanager
def reading(*folders: Path) -> Iterator[None]:
    """A folder that comes from elsewhere: what its files make us stumble over is its damage, said with the place."""
    try:
        yield
    except RunbookError:
        raise
    except Exception as error:  # of any kind: every value of every file may be another than we wrote
        if isinstance(error, OSError) and error.filename is None:
            raise  # of what is printed, not of what is read
        ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "runbooks" in frame.filename]
        place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "?"
        raise UsageError(
            f"{' or '.join(map(str, folders))} cannot be read as the results of a sweep",
            details=[
                "damaged, changed by hand, or of another program",
                f"{type(error).__name__}: {str(error)[:100]!a} ({place})",
            ],
            next="invoke results",
        ) from None


@dataclass(frozen=True)
class BenchResult:
    """A run, judged. `points` are plain values, as in points.json; `valid` and `faults` are in each."""

    folder: Path
    run: Mapping[str, Any]
    points: tuple[Mapping[str, Any], ...]
    verdict: Verdict
    ceiling: Ceiling | None
    collectives: Mapping[str, Any] | None = None  # as they were measured on the host

    @property
    def valid(self) -> bool:
        """Every point asked for is there and VALID, and the canary found sense afterwards."""
        complete = len(self.points) == len(self.run["loadgen"]["sweep"])
        return complete and all(point["valid"] for point in self.points) and not self.canary_failed

    @property
    def canary_failed(self) -> bool:
        canary = self.run.get("canary")
        return canary is not None and canary["verdict"] != "healthy"

    @property
    def reference(self) -> dict[int, float]:
        return {int(b): rate for b, rate in self.run["reference"].items()}

    @property
    def limits(self) -> Limits:
        return Limits.of(self.run["loadgen"].get("server_info_before") or {})


def assess(folder: Path) -> BenchResult:
    """Compute a run from its raw logs. Raises UsageError when this is no results folder."""
    run = _run_of(folder)
    ceiling = ceiling_of(run)
    limits = Limits.of(run["loadgen"].get("server_info_before") or {})
    points, samples = [], hardware.read(folder)
    logs = sorted((folder / "raw").glob("*.bin"))
    for point in points_of((log.name, rawlog.decode(log.read_bytes())) for log in logs):
        point["hardware"] = hardware.within(samples, point["windows"])
        point["faults"] = faults(point, limits, ceiling, run["loadgen"].get("self_check"))
        if not run.get("about"):  # an experiment, and it says of what kind
            point["faults"] += without_sense(point, run.get("canary"))
        point["valid"] = not point["faults"]
        point["ceiling_tok_s"] = ceiling.tok_s(point["concurrency"]) if ceiling else None
        points.append(point)
    told = measured.read(folder)
    known = told if isinstance(told, dict) else None
    verdict = judge(
        points,
        ceiling=ceiling,
        limits=limits,
        settings=run["loadgen"].get("server_info_before") or {},
        reference={int(b): rate for b, rate in run["reference"].items()},
        collectives=told if isinstance(told, Unusable) else _collectives(known, ceiling, limits) if known else None,
    )
    return BenchResult(folder, run, tuple(points), verdict, ceiling, known)


def _collectives(told: Mapping[str, Any], ceiling: Ceiling | None, limits: Limits) -> Collectives | Unusable | None:
    if ceiling is None:
        return None
    return measured.collectives_of(
        told,
        ceiling.shape,
        ranks=ceiling.ranks,
        gpu=ceiling.gpu,
        graph_max=limits.graph_max,
        graphs_off=bool(limits.graphs_off),
    )


def ceiling_of(run: Mapping[str, Any]) -> Ceiling | None:
    """The ceiling for the model and cards of a run; None for cards without known figures."""
    gpu = gpu_named(run["gpus"]["name"])
    if gpu is None or not run["gpus"]["count"]:
        return None
    shape = msgspec.convert(run["model"]["shape"], ModelShape)
    loadgen = run["loadgen"]
    ranks = (loadgen.get("server_info_before") or {}).get("tp_size") or run["gpus"]["count"]
    return Ceiling(shape, gpu, int(ranks), loadgen["input_len"] + loadgen["output_len"] // 2)


def write_points(result: BenchResult) -> None:
    """points.json: the numbers, and the verdict over them."""
    content = {"format": FORMAT, "points": result.points, "verdict": asdict(result.verdict)}
    (result.folder / "points.json").write_text(as_json(content))


@dataclass(frozen=True)
class Recomputed:
    """`differences` are paths into points.json whose value is another now; empty: identical."""

    result: BenchResult
    differences: tuple[str, ...]
    changed_logs: tuple[str, ...]  # raw logs whose SHA-256 is not the one that the run recorded


def recompute(folder: Path) -> Recomputed:
    """Compute every number again from the raw logs, and hold it against points.json. Raises UsageError without one."""
    result = assess(folder)
    try:
        stored = json.loads((folder / "points.json").read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder / 'points.json'}: {error}") from None
    again = json.loads(as_json({"format": FORMAT, "points": result.points, "verdict": asdict(result.verdict)}))
    recorded = result.run.get("raw_sha256") or {}
    changed = tuple(sorted(name for name, digest in recorded.items() if digest_of(folder / "raw" / name) != digest))
    return Recomputed(result, tuple(_differences(stored, again, "")), changed)


def writable(folder: Path) -> Path:
    """The folder, made where it is not there: a sweep must not end with results that have no place to go."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise UsageError(f"out: nothing can be written to {folder}: {error.strerror}") from None


def digest_of(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def as_json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _run_of(folder: Path) -> dict[str, Any]:
    try:
        run: Any = json.loads((folder / "run.json").read_text())
    except FileNotFoundError:
        runs = sorted(f"{path.parent}" for path in folder.glob("*/run.json"))
        what = "holds the runs of an experiment; name one" if runs else "is not a results folder: no run.json is in it"
        raise UsageError(f"{folder} {what}", details=runs[-12:], next="invoke results") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder / 'run.json'}: {error}") from None
    if not isinstance(run, dict):
        raise UsageError(f"{folder / 'run.json'}: is no mapping, and so of no run of ours")
    if run.get("format") != FORMAT:
        raise UsageError(f"{folder}: results of format {run.get('format')}, and this version reads format {FORMAT}")
    return run


def _differences(stored: Any, again: Any, where: str) -> list[str]:
    if isinstance(stored, dict) and isinstance(again, dict):
        keys = sorted(set(stored) | set(again))
        return [d for key in keys for d in _differences(stored.get(key), again.get(key), f"{where}.{key}".lstrip("."))]
    if isinstance(stored, list) and isinstance(again, list) and len(stored) == len(again):
        pairs = enumerate(zip(stored, again, strict=True))
        return [d for i, (a, b) in pairs for d in _differences(a, b, f"{where}[{i}]")]
    return [] if stored == again else [where]
