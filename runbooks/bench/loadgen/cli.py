"""`python3 loadgen.pyz --url URL [--concurrency 1,2,4 | --rate 0.5,1]`: a sweep, its raw logs, and a table."""

from __future__ import annotations

import json
import os
import ssl
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from .lateness import late
from .options import Options, options_of
from .run import BusyServer, Unfit, run
from .server import Server
from .stopping import STOP, Interrupted

FAILED, USAGE, BUSY, INTERRUPTED = 1, 2, 3, 130


class Told:
    """Progress: JSON lines for a program, short lines for a person."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.open = False  # a line of progress stands there, without its end

    def __call__(self, event: str, **fields: Any) -> None:
        try:
            self._print(event, fields)
        except BrokenPipeError:  # nobody reads on: what is measured is kept all the same
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for stream in (sys.stdout, sys.stderr):
                os.dup2(nowhere, stream.fileno())
            STOP.ask()

    def _print(self, event: str, fields: dict[str, Any]) -> None:
        if self.as_json:
            print(json.dumps({"event": event, **fields}), flush=True)
        elif event == "progress":
            rate = f"  ~{fields['rate']:.0f} chunks/s" if fields.get("rate") else ""
            line = f"  {fields['point']:>4g} {fields['phase']:<8} {fields['done']:.0f}/{fields['total']:.0f}{rate}"
            print(f"\r{line:<60}", end="", file=sys.stderr, flush=True)
            self.open = True
        elif event == "point":
            print(f"\r{_row(fields)}", flush=True)
            self.open = False
        elif event == "error":
            print("\n" * self.open + f"loadgen: {fields['text']}", file=sys.stderr)
        elif "text" in fields:
            print(f"\r{fields['text']}", flush=True)


def _row(point: dict[str, Any]) -> str:
    def ms(name: str, which: str) -> str:
        values = point[name]
        return f"{values[which]:.1f}" if values else "-"

    requests = point["requests"]
    decode = f"{point['decode_tok_s']:.1f}" if point["decode_tok_s"] else "-"
    step = f"{point['step_ms']:.2f}" if point["step_ms"] else "-"
    load = f"{point['open']['offered']:>4g} a second" if point["open"] else f"{point['concurrency']:>4} streams"
    return (
        f"{load}  {point['tok_s']:>8.1f} tok/s  decode {decode:>8}  step {step:>7} ms  "
        f"TTFT p50 {ms('ttft_ms', 'p50'):>7}  ITL p50/p99 {ms('itl_ms', 'p50')}/{ms('itl_ms', 'p99')} ms  "
        f"ok {requests['ok']}  failed {requests['failed']}  cut {requests['cut']}"
        f"{'  INVALID: the client was late' if late(point) else ''}"
    )


def main(argv: Sequence[str] | None = None) -> NoReturn:
    tell = Told("--json" in (sys.argv if argv is None else argv))
    try:
        options = options_of(argv)
    except ValueError as error:
        tell("error", kind="usage", text=str(error))
        sys.exit(USAGE)
    if argv is None:  # a process of our own: its signals are ours
        STOP.listen()
    code = _measured(options, tell)
    if argv is None:
        STOP.over()
    sys.exit(code)


def _measured(options: Options, tell: Told) -> int:
    key = os.environ.get(options.key_env) or None
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        text = f"${options.key_env}: no key looks so; a header takes letters, digits and signs of ASCII, and no space"
        tell("error", kind="usage", text=text)
        return USAGE
    server = Server(options.target, key)
    try:
        return INTERRUPTED if run(options, server, tell) else 0
    except BusyServer as error:
        tell("error", kind="busy", text=str(error))
        return BUSY
    except Unfit as error:
        tell("error", kind="usage", text=str(error))
        return USAGE
    except ssl.SSLCertVerificationError as error:
        advice = "its CA can be named: SSL_CERT_FILE=<file>"
        tell("error", kind="server", text=f"{options.url}: its certificate: {error.verify_message}; {advice}")
        return FAILED
    except OSError as error:
        tell("error", kind="server", text=f"{options.url}: {error}")
        return FAILED
    except Interrupted:
        tell("error", kind="interrupted", text="interrupted before the first point: nothing was measured")
        return INTERRUPTED
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        tell("error", kind="bug", text=f"a bug in the load generator: {type(error).__name__} at {where}")
        return FAILED


if __name__ == "__main__":
    main()
