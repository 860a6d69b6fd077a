"""`python3 canary.pyz`: JSON lines on standard output, and the verdict as exit code."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from . import vitals, watch
from .battery import BATTERIES
from .client import Endpoint
from .run import Canary

EXIT_CODES = {"healthy": 0, "degraded": 1, "nan": 3, "dead": 4}  # 2 is argparse's own, for wrong usage


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    try:
        key = _checked(options)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        print(f"canary: {reason}", file=sys.stderr)
        return 2
    endpoint = Endpoint(options.url, options.model, key, silence=options.silence)
    if options.vitals:
        _emit(vitals.round_of_questions(endpoint))
        return 0
    canary = Canary(
        endpoint,
        options.battery,
        _emit,
        unit=options.unit,
        log=options.log,
        knowledge=options.knowledge,
        budget=options.budget,
        answers=options.answers,
        accept=options.accept,
    )
    said = canary.run()
    if options.state:
        state = watch.remember(options.state, canary.conclusion)
        if options.textfile:
            watch.write(options.textfile, watch.metrics(state))
    return EXIT_CODES[said]


def _checked(options: argparse.Namespace) -> str | None:
    """The key, or None. Raises ValueError for a key or an address that cannot be used, in words that show no secret."""
    where = urlsplit(options.url)
    if where.scheme not in ("http", "https") or not where.hostname or where.port == 0 or "@" in where.netloc:
        raise ValueError("--url is http[s]://HOST[:PORT][/PREFIX], without a user or a password")
    if not (options.url.isascii() and options.url.isprintable() and " " not in options.url):
        raise ValueError("--url holds a space, a control character or a letter outside ASCII")
    if not all(number is None or 0 < number < 1e6 for number in (options.silence, options.budget)):
        raise ValueError("--silence and --budget are seconds, above zero")
    key: str | None = os.environ.get(options.key_env) if options.key_env else None
    if options.key_file:
        try:
            key = options.key_file.read_text(encoding="utf-8").strip()
        except UnicodeDecodeError:
            raise ValueError(f"{options.key_file} holds no text, and so no key") from None
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise ValueError("the key holds what no header takes: a space, a line break or a letter outside ASCII")
    return key


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="canary", description="Ask a server questions, and judge its answers.")
    parser.add_argument("--url", default="http://127.0.0.1:30000")
    parser.add_argument("--model", default="glm-5", help="the served model name")
    parser.add_argument("--battery", choices=sorted(BATTERIES), default="quick")
    parser.add_argument("--key-env", metavar="NAME", help="the environment variable that holds the API key")
    parser.add_argument("--key-file", type=Path, metavar="FILE", help="a file that holds the API key")
    parser.add_argument("--state", type=Path, metavar="FILE", help="remember this run there, over restarts")
    parser.add_argument("--textfile", type=Path, metavar="FILE", help="with --state: metrics for node_exporter")
    parser.add_argument("--unit", help="the systemd unit whose PID, restarts and journal are compared before and after")
    parser.add_argument("--log", type=Path, metavar="FILE", help="the log of a server that is no systemd unit")
    parser.add_argument(
        "--answers", type=Path, metavar="FILE", help="what it said at first: written once, then compared"
    )
    parser.add_argument(
        "--accept", action="store_true", help="with --answers: a change is meant; if healthy, compare with today's"
    )
    parser.add_argument("--silence", type=float, default=30.0, help="longest wait for the next byte, in seconds")
    parser.add_argument("--budget", type=float, help="seconds after which no further prompt is asked")
    parser.add_argument(
        "--no-knowledge", dest="knowledge", action="store_false", help="the model knows nothing: judge numbers"
    )
    parser.add_argument(
        "--vitals", action="store_true", help="health's questions only: one completion, metrics, models"
    )
    return parser.parse_args(arguments)


def _emit(event: Mapping[str, Any]) -> None:
    json.dump(event, sys.stdout, ensure_ascii=True, allow_nan=False)
    sys.stdout.write("\n")
    sys.stdout.flush()
