"""A run: look at the server, fit the prompts, measure point after point, and leave run.json beside the raw logs."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import nullserver, rawlog
from .lateness import why_again
from .load import fresh
from .options import Options
from .point import Load, Tell, measure, null_run
from .prompts import Prompts, TokenIds, fit
from .server import Server
from .stopping import STOP, Interrupted
from .summary import point_of
from .wire import Shape

STATE = "state.json"  # in --out, while a run is not over: its plan, and the prompts' shape


class BusyServer(Exception):
    """The server has other requests."""


class Unfit(Exception):
    """What was asked for cannot be measured on this server."""


def run(options: Options, server: Server, tell: Tell) -> bool:
    """True when it was interrupted. Raises BusyServer, Unfit, OSError, Interrupted before anything is measured."""
    with STOP:
        shape, prompts, record, kept = _begin(options, server, tell)
    done, resumed, interrupted = _measure(options, server, shape, prompts, kept, tell)
    if interrupted and not done and not kept:
        raise Interrupted
    record |= {"ended": time.time(), "interrupted": interrupted, "points": done, "resumed": resumed}
    record |= {"server_info_after": {} if STOP.asked else server.info()}
    (options.out / "run.json").write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    if not interrupted:
        (options.out / STATE).unlink()
    said = "interrupted; what was measured is kept, and --resume measures the rest; " if interrupted else ""
    tell("end", out=str(options.out), interrupted=interrupted, text=f"{said}raw logs: {options.out}")
    return interrupted


def _begin(options: Options, server: Server, tell: Tell) -> tuple[Shape, Prompts | TokenIds, dict[str, Any], set[Path]]:
    """Look at the server, fit the prompts, prove the client; the logs that are kept from before."""
    models = server.models()
    if options.model and options.model not in models and not options.force:
        names = ", ".join(sorted(models))
        tell("note", text=f"the server does not name {options.model!r} among its models ({names})")
    shape = Shape(options.api, options.model or next(iter(models)), options.temperature, options.top_p)
    info = server.info()
    _fits(options, models.get(shape.model), info)
    live = server.settled()
    others = ((live or {}).get("running") or 0) + ((live or {}).get("queued") or 0)
    if others and not options.force:
        raise BusyServer(f"the server has {others:.0f} live or queued requests; a measurement would disturb both")
    options.out.mkdir(parents=True, exist_ok=True)
    kept = _kept(options) if options.resume else set()
    for old in options.out.glob("*.bin"):
        if old not in kept:
            old.unlink()
    (options.out / STATE).write_text(json.dumps({"plan": options.plan, "began": time.time()}))
    shape, prompts = _prepare(options, server, shape, tell)
    record = _record(options, shape, prompts, info) | {"metrics": live is not None}
    if options.self_check:
        most = max(load.slots for load in options.loads)
        record["self_check"] = nullserver.self_check(lambda port: null_run(most, port, options.out), most)
        tell("self_check", text=nullserver.said(record["self_check"]), **record["self_check"])
    return shape, prompts, record, kept


def _measure(
    options: Options,
    server: Server,
    shape: Shape,
    prompts: Prompts | TokenIds,
    kept: set[Path],
    tell: Tell,
) -> tuple[list[float], int, bool]:
    """The loads that were measured, how many points were kept from before, and whether it was interrupted."""
    done: list[float] = []
    before = 0
    for number, load in enumerate(options.loads):
        try:
            point, resumed = _attempts(options, server, shape, prompts, number, load, kept, tell)
        except Interrupted:
            return done, before, True
        tell("point", resumed=resumed, repeat=load.repeat, **point)
        before += resumed
        if (load.rate or load.streams) not in done:
            done.append(load.rate or load.streams)
        if point["interrupted"] or (STOP.asked and number + 1 < len(options.loads)):
            return done, before, True
    return done, before, False


def _attempts(
    options: Options,
    server: Server,
    shape: Shape,
    prompts: Prompts | TokenIds,
    number: int,
    load: Load,
    kept: set[Path],
    tell: Tell,
) -> tuple[dict[str, Any], bool]:
    """One point, measured again where the client was late; each log stays. True: all of it was there before.

    Raises Interrupted before its first attempt began.
    """
    point: dict[str, Any] = {}
    resumed, attempt = True, 0
    while True:
        this = replace(load, attempt=attempt)
        log = options.out / _name(number, this)
        if log not in kept:
            resumed = False
            try:
                measure(server, shape, prompts, this, options.settings, log, tell)
            except Interrupted:
                if not attempt:
                    raise
                return point, resumed
        point = point_of(rawlog.decode(log.read_bytes()))
        why = why_again(point)
        if not why or attempt >= options.again or STOP.asked:
            return point, resumed
        attempt += 1
        tell("note", text=f"{load.said}: {why}; measured again, {attempt} of at most {options.again} times")


def _name(number: int, load: Load) -> str:
    again = f"-again{load.attempt}" if load.attempt else ""
    return f"{number:02d}-{load.name}{again}.bin"


def _kept(options: Options) -> set[Path]:
    """The whole logs of the same run that are there already. Raises Unfit for those of another run."""
    try:
        state = json.loads((options.out / STATE).read_text())
    except (OSError, ValueError):
        raise Unfit(f"resume: {options.out} holds no run that was broken off") from None
    if state.get("plan") != options.plan:
        changed = sorted(name for name, value in options.plan.items() if state.get("plan", {}).get(name) != value)
        raise Unfit(f"resume: the run that was broken off had other settings: {', '.join(changed)}")
    names = [
        options.out / _name(number, replace(load, attempt=attempt))
        for number, load in enumerate(options.loads)
        for attempt in range(options.again + 1)
    ]
    return {log for log in names if log.exists() and _whole(log)}


def _whole(log: Path) -> bool:
    try:
        point = next(meta for meta, _ in rawlog.decode(log.read_bytes()) if meta["kind"] == "point")
    except (ValueError, StopIteration):
        return False
    return not point["interrupted"]


def _fits(options: Options, longest: int | None, info: dict[str, Any]) -> None:
    told = [longest, info.get("context_length"), info.get("max_model_len")]
    limit = min((value for value in told if isinstance(value, int) and value > 0), default=None)
    wanted = options.lengths.longest
    if limit is not None and wanted > limit:
        said = options.lengths.said
        raise Unfit(f"a prompt and its answer are up to {wanted} tokens ({said}), and the server takes {limit}")


def _prepare(options: Options, server: Server, shape: Shape, tell: Tell) -> tuple[Shape, Prompts | TokenIds]:
    rng = fresh()
    length = options.lengths.mean[0]
    prompts: Prompts | TokenIds
    if options.ids:
        prompts = options.ids
    else:
        tell("note", text=f"fitting prompts of {options.lengths.said.split(',')[0]} to the served tokenizer")
        prompts = fit(lambda prompt: server.prompt_tokens(shape, prompt), length, rng)
    if options.settings.shared:
        prompts = prompts.sharing(rng, options.settings.shared)
    if shape.api != "generate" and not server.takes_continuous_usage(shape, prompts.new(rng, length)):
        shape = replace(shape, usage_each_chunk=False)
    return shape, prompts


def _record(options: Options, shape: Shape, prompts: Prompts | TokenIds, info: dict[str, Any]) -> dict[str, Any]:
    tokens_in, tokens_out = options.lengths.mean
    return {
        "started": time.time(),
        "url": options.url,
        "model": shape.model,
        "api": options.api,
        "input_len": tokens_in,
        "output_len": tokens_out,
        "lengths": options.lengths.said,
        "workload": options.workload,
        "shared_len": options.settings.shared,
        "sweep": options.sweep,
        "open": bool(options.loads[0].rate),
        "repeats": 1 + max(load.repeat for load in options.loads),
        "precision": options.settings.precision,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "python": sys.version.split()[0],
        "self_check": None,
        "prompt_tokens": tokens_in if prompts.exact else None,
        "usage_each_chunk": shape.usage_each_chunk,
        "server_info_before": info,
        "plan": options.plan,
    }
