"""The command line, checked: what is wrong is a ValueError in words."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .lateness import AGAIN
from .lengths import WORKLOADS, Lengths, lengths_of
from .point import Load, Settings
from .prompts import TokenIds
from .wire import APIS, Target

SWEEP = "1,2,4,8,16,32,64"


@dataclass(frozen=True)
class Options:
    """What to measure, and how. `plan` is all of it that makes two runs the same run, for --resume."""

    url: str
    target: Target
    model: str | None
    api: str
    loads: tuple[Load, ...]  # of all passes, in order
    lengths: Lengths
    settings: Settings
    ids: TokenIds | None
    temperature: float
    top_p: float
    key_env: str
    out: Path
    workload: str
    self_check: bool
    force: bool
    resume: bool
    again: int  # times that a point is measured anew because the client was late
    plan: dict[str, Any]

    @property
    def sweep(self) -> list[float]:
        """Streams of each point, or requests/s."""
        return [load.rate or load.streams for load in self.loads if load.repeat == 0]


def options_of(argv: Sequence[str] | None) -> Options:
    told = _parser().parse_args(argv)
    prompt, answer, shared = WORKLOADS.get(told.workload, ("1024", "512", 0.0))
    lengths = lengths_of(told.input_len or prompt, told.output_len or answer, told.lengths)
    for name in ("warmup", "drain", "silence", "precision"):
        if not 0 <= getattr(told, name) < 1e6:
            raise ValueError(f"{name}: {getattr(told, name):g} is not a number from 0 to a million")
    if told.precision > 0.5:
        raise ValueError(f"precision: {told.precision:g} is a part of the rate itself: 0.02 is 2 %, and 0.5 the most")
    if not 0 < told.window < 1e6:
        raise ValueError(f"window: {told.window:g} is not a positive number of seconds")
    if told.api == "chat" and told.token_ids:
        raise ValueError("token-ids: a chat takes text; token ids go to --api completions or generate")
    for name in ("temperature", "top_p", "max_requests", "processes", "again"):
        if not 0 <= getattr(told, name) < 1e9:
            raise ValueError(f"{name.replace('_', '-')}: {getattr(told, name):g} is not a number from 0 to 1e9")
    passes = max(1, told.repeats)
    if passes > 9:
        raise ValueError(f"repeats: {passes} passes are more than anybody waits for (1 to 9)")
    loads = _loads(told.concurrency, told.rate, passes, told.split_test)
    settings = Settings(
        lengths,
        told.warmup,
        told.window,
        told.precision,
        drain_limit=told.drain,
        silence=told.silence,
        max_requests=told.max_requests,
        processes=told.processes,
        steady=told.steady,
        shared=round(shared * lengths.low[0]),
    )
    names = ("url", "model", "api", "workload", "warmup", "window", "precision", "token_ids", "temperature", "top_p")
    plan = {name: getattr(told, name) for name in names}
    plan |= {"lengths": lengths.said, "loads": [[load.name, load.repeat] for load in loads]}
    return Options(
        url=told.url,
        target=Target.parse(told.url),
        model=told.model,
        api=told.api,
        loads=loads,
        lengths=lengths,
        settings=settings,
        ids=_ids(told.token_ids) if told.token_ids else None,
        temperature=told.temperature,
        top_p=told.top_p,
        key_env=told.key_env,
        out=told.out,
        workload=told.workload or "",
        self_check=told.self_check,
        force=told.force,
        resume=told.resume,
        again=told.again,
        plan=plan,
    )


def _loads(concurrency: str | None, rates: str | None, passes: int, split: bool) -> tuple[Load, ...]:
    """Every pass in the other direction than the one before, so that a drift of the machine shows.

    The highest load of the second pass comes from twice the processes: the split test. With one pass it is done again.
    """
    if concurrency and rates:
        raise ValueError("concurrency and rate: a closed loop holds streams, an open one a rate; one of them")
    if rates:
        once = [Load(rate=_number("rate", word, float)) for word in rates.split(",")]
    else:
        once = [Load(streams=_number("concurrency", word, int)) for word in (concurrency or SWEEP).split(",")]
    if len({load.name for load in once}) != len(once):
        raise ValueError("concurrency, rate: a point is named twice; --repeats measures each more than once")
    loads = [
        Load(one.streams, one.rate, repeat) for repeat in range(passes) for one in (once[::-1] if repeat % 2 else once)
    ]
    top = max(once, key=lambda load: load.rate or load.streams)
    if split and passes == 1:
        loads.append(Load(top.streams, top.rate, 1))
    return tuple(
        Load(one.streams, one.rate, one.repeat, processes=2) if split and one.repeat == 1 and one.name == top.name
        else one for one in loads
    )  # fmt: skip


def _number(name: str, word: str, kind: type[int] | type[float]) -> Any:
    try:
        value = kind(word.strip())
    except ValueError:
        value = kind(0)
    if not 0 < value < 1e5:
        what = "a number of streams" if kind is int else "a number of requests a second"
        raise ValueError(f"{name}: {word.strip()[:40]!r} is not {what}")
    return value


def _ids(text: str) -> TokenIds:
    first, _, last = text.partition(":")
    if not re.fullmatch("[0-9]{1,9}:[0-9]{1,9}", text) or int(first) >= int(last):
        raise ValueError(f"token-ids: {text[:40]!r} is not a range of ids (1000:150000)")
    return TokenIds(int(first), int(last))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise ValueError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="loadgen", description="Measures a server with an OpenAI-compatible API.", allow_abbrev=False)
    add = parser.add_argument
    add("--url", required=True, help="http[s]://host:port of any server with an OpenAI-compatible API")
    add("--model", help="served name (default: the first of /v1/models)")
    add("--api", choices=sorted(APIS), default="chat")
    add("--concurrency", help=f"streams of each point, separated by commas (default: {SWEEP})")
    add("--rate", help="instead: requests a second of each point, whatever the server does (an open loop)")
    add("--steady", action="store_true", help="with --rate: evenly spaced, not Poisson")
    add("--repeats", type=int, default=1, help="passes over the sweep, each in the other direction")
    add("--split-test", action="store_true", help="the highest load of the second pass from two processes")
    add("--workload", choices=sorted(WORKLOADS), help="lengths that stress one part of the server")
    add("--input-len", help="tokens of a prompt, chat template included: 512, or 256-1024 (default: 1024)")
    add("--output-len", help="tokens of an answer, likewise (default: 512)")
    add("--lengths", type=Path, help="a JSON file of [prompt, answer] pairs to draw from")
    add("--token-ids", help="prompts of random token ids in FIRST:LAST, not words")
    add("--warmup", type=float, default=10.0, help="seconds, once every stream has had its first token")
    add("--window", type=float, default=60.0, help="seconds that are measured, at most")
    add("--precision", type=float, default=0.0, help="end a window when tok/s is known to this part (0.02), 95 %%")
    add("--drain", type=float, default=30.0, help="seconds that running requests get to end; then they are cut")
    add("--silence", type=float, default=60.0, help="seconds without a byte after which a stream has failed")
    add("--max-requests", type=int, default=100_000, help="of each point")
    add("--processes", type=int, default=0, help="client processes (default: by streams and cores)")
    add("--temperature", type=float, default=1.0)
    add("--top-p", type=float, default=0.95)
    add("--out", type=Path, default=Path("loadgen-results"), help="folder for raw logs and run.json")
    add("--resume", action="store_true", help="keep the points that --out has of the same run, and measure the rest")
    add("--again", type=int, default=AGAIN, help="times that a point is measured anew when this client was late")
    add("--key-env", default="RUNBOOKS_API_KEY", help="environment variable that holds the API key")
    add("--self-check", action="store_true", help="first prove on a null server that this client is not the limit")
    add("--force", action="store_true", help="measure although the server has other requests")
    add("--json", action="store_true", help="progress as JSON lines")
    return parser
