"""`python3 loadgen.pyz --url URL [--concurrency 1,2,4]`: a sweep, its raw logs, and a table."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from . import nullserver, rawlog
from .metrics import point_of
from .point import Interrupted, Settings, measure, null_run
from .prompts import Prompts, fit
from .server import Server
from .wire import APIS, Shape, Target

FAILED, USAGE, BUSY, INTERRUPTED = 1, 2, 3, 130


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="loadgen", description=__doc__, allow_abbrev=False)
    parser.add_argument("--url", required=True, help="http[s]://host:port of any server with an OpenAI-compatible API")
    parser.add_argument("--model", help="served name (default: the first of /v1/models)")
    parser.add_argument("--api", choices=sorted(APIS), default="chat")
    parser.add_argument("--concurrency", default="1,2,4,8,16,32,64", help="streams of each point, separated by commas")
    parser.add_argument("--input-len", type=int, default=1024, help="tokens of a prompt, chat template included")
    parser.add_argument("--output-len", type=int, default=512, help="tokens of an answer")
    parser.add_argument("--warmup", type=float, default=10.0, help="seconds, once every stream has had its first token")
    parser.add_argument("--window", type=float, default=60.0, help="seconds that are measured")
    parser.add_argument(
        "--drain", type=float, default=30.0, help="seconds that running requests get to end; then they are cut"
    )
    parser.add_argument(
        "--silence", type=float, default=60.0, help="seconds without a byte after which a stream has failed"
    )
    parser.add_argument("--max-requests", type=int, default=100_000, help="of each point")
    parser.add_argument("--processes", type=int, default=0, help="client processes (default: by streams and cores)")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--out", type=Path, default=Path("loadgen-results"), help="folder for raw logs and run.json")
    parser.add_argument("--key-env", default="RUNBOOKS_API_KEY", help="environment variable that holds the API key")
    parser.add_argument(
        "--self-check", action="store_true", help="first prove on a null server that this client is not the limit"
    )
    parser.add_argument("--force", action="store_true", help="measure although the server has other requests")
    parser.add_argument("--json", action="store_true", help="progress as JSON lines")
    return parser.parse_args(argv)


class Told:
    """Progress: JSON lines for a program, short lines for a person."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def __call__(self, event: str, **fields: Any) -> None:
        if self.as_json:
            print(json.dumps({"event": event, **fields}), flush=True)
        elif event == "progress":
            rate = f"  ~{fields['rate']:.0f} chunks/s" if fields.get("rate") else ""
            line = f"  {fields['point']:>4} {fields['phase']:<8} {fields['done']:.0f}/{fields['total']:.0f}{rate}"
            print(f"\r{line:<60}", end="", file=sys.stderr, flush=True)
        elif event == "point":
            print(f"\r{_row(fields)}", flush=True)
        elif event == "error":
            print(f"loadgen: {fields['text']}", file=sys.stderr)
        elif "text" in fields:
            print(f"\r{fields['text']}", flush=True)


def _row(point: dict[str, Any]) -> str:
    def ms(name: str, which: str) -> str:
        values = point[name]
        return f"{values[which]:.1f}" if values else "-"

    requests = point["requests"]
    decode = f"{point['decode_tok_s']:.1f}" if point["decode_tok_s"] else "-"
    step = f"{point['step_ms']:.2f}" if point["step_ms"] else "-"
    return (
        f"{point['concurrency']:>4} streams  {point['tok_s']:>8.1f} tok/s  decode {decode:>8}  step {step:>7} ms  "
        f"TTFT p50 {ms('ttft_ms', 'p50'):>7}  ITL p50/p99 {ms('itl_ms', 'p50')}/{ms('itl_ms', 'p99')} ms  "
        f"ok {requests['ok']}  failed {requests['failed']}  cut {requests['cut']}"
    )


def main(argv: Sequence[str] | None = None) -> NoReturn:
    options = arguments(argv)
    tell = Told(options.json)
    try:
        target = Target.parse(options.url)
        sweep = [int(one) for one in options.concurrency.split(",")]
        if not sweep or min(sweep) < 1 or options.output_len < 1 or options.input_len < 1 or options.window <= 0:
            raise ValueError("concurrency, lengths and the window are positive numbers")
    except ValueError as error:
        tell("error", kind="usage", text=str(error))
        sys.exit(USAGE)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    try:
        sys.exit(_run(options, target, sweep, tell))
    except OSError as error:
        tell("error", kind="server", text=f"{options.url}: {error}")
        sys.exit(FAILED)
    except (Interrupted, KeyboardInterrupt):
        tell("error", kind="interrupted", text="interrupted before the first point: nothing was measured")
        sys.exit(INTERRUPTED)


def _stop(_number: int, _frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough; the rest is writing down what there is
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise Interrupted


def _run(options: argparse.Namespace, target: Target, sweep: list[int], tell: Told) -> int:
    server = Server(target, os.environ.get(options.key_env) or None)
    live = server.counters()
    if live and (others := (live.get("running") or 0) + (live.get("queued") or 0)) and not options.force:
        tell(
            "error",
            kind="busy",
            text=f"the server has {others:.0f} live or queued requests; a measurement would disturb both",
        )
        return BUSY
    shape = Shape(options.api, options.model or server.model(), options.temperature, options.top_p)
    options.out.mkdir(parents=True, exist_ok=True)
    run: dict[str, Any] = {"started": time.time(), "url": options.url, "model": shape.model, "api": options.api}
    run |= {
        "input_len": options.input_len,
        "output_len": options.output_len,
        "sweep": sweep,
        "metrics": live is not None,
    }
    run |= {
        "temperature": options.temperature,
        "top_p": options.top_p,
        "python": sys.version.split()[0],
        "self_check": None,
    }
    tell("note", text=f"fitting prompts of {options.input_len} tokens to the served tokenizer")
    shape, prompts = _prepare(server, shape, options.input_len)
    if options.self_check:
        run["self_check"] = nullserver.self_check(lambda port: null_run(max(sweep), port, options.out), max(sweep))
        tell("self_check", text=_proof(run["self_check"]), **run["self_check"])
    run |= {"prompt_tokens": prompts.tokens, "usage_each_chunk": shape.usage_each_chunk}
    run["server_info_before"] = server.info()
    settings = Settings(
        options.input_len,
        options.output_len,
        options.warmup,
        options.window,
        drain_limit=options.drain,
        silence=options.silence,
        max_requests=options.max_requests,
        processes=options.processes,
    )
    interrupted = False
    done: list[int] = []
    for streams in sweep:
        log = options.out / f"{len(done):02d}-c{streams}.bin"
        point = measure(server, shape, prompts, streams, settings, log, tell)
        tell("point", **point_of(rawlog.decode(log.read_bytes())))
        done.append(streams)
        interrupted = point["interrupted"]
        if interrupted:
            break
    run |= {"ended": time.time(), "interrupted": interrupted, "points": done, "server_info_after": server.info()}
    (options.out / "run.json").write_text(json.dumps(run, indent=1, sort_keys=True) + "\n")
    tell("end", out=str(options.out), interrupted=interrupted, text=f"raw logs: {options.out}")
    return INTERRUPTED if interrupted else 0


def _prepare(server: Server, shape: Shape, input_len: int) -> tuple[Shape, Prompts]:
    rng = random.Random(int.from_bytes(os.urandom(8), "big"))
    prompts = fit(lambda prompt: server.prompt_tokens(shape, prompt), input_len, rng)
    if shape.api != "generate" and not server.takes_continuous_usage(shape, prompts.new(rng)):
        shape = Shape(shape.api, shape.model, shape.temperature, shape.top_p, usage_each_chunk=False)
    return shape, prompts


def _proof(check: dict[str, Any]) -> str:
    verdict = "keeps up" if check["ok"] else "DOES NOT KEEP UP"
    return (
        f"client {verdict}: {check['caught']} of {check['expected']} chunks at {check['rate']:.0f}/s "
        f"on {check['streams']} streams, "
        f"stamps late by {check['late_ms']['p50']:.2f}/{check['late_ms']['p99']:.2f} ms (p50/p99), "
        f"{check['cpu_us_per_chunk'] or 0:.1f} us CPU a chunk"
    )


if __name__ == "__main__":
    main()
