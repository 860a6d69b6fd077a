"""`PYTHON collectives.pyz --batches 1,2,4 --token-bytes 12288`: everything in order, then one JSON document."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from . import copies, reduce
from .group import Outcome, together

FAILED, HELD = 1, 3
FORMAT = 1
# Where the server's own choices stand: what is measured must run under the same ones.
STEERING = ("NCCL_", "TORCH_NCCL_", "GLOO_", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_")


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="collectives", description=__doc__, allow_abbrev=False)
    parser.add_argument("--batches", default="1,2,4,8,16,32,64", help="tokens a step, separated by commas")
    parser.add_argument("--token-bytes", type=int, default=12_288, help="hidden states of one token")
    parser.add_argument("--sent-to", type=int, default=8, help="experts that a token goes to, for the all-to-all")
    parser.add_argument("--ranks", type=int, default=0, help="GPUs (default: all; without GPUs: 2 processes)")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each part; then it counts as a hang")
    parser.add_argument("--environment", type=Path, help="the server's environment file: its NCCL settings are used")
    parser.add_argument("--force", action="store_true", help="measure although another process holds the GPUs")
    parser.add_argument("--out", type=Path, help="write the result here, too")
    parser.add_argument("--verdict", type=Path, help="the ladder's word goes here, where a grant of peer-to-peer waits")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    options = arguments(argv)
    _steer(options.environment)
    holders = held()
    if holders and not options.force:
        tell("error", kind="held", text=f"GPUs are in use: {', '.join(holders)}")
        sys.exit(HELD)
    _judge(options.verdict, "inconclusive")  # a ladder that takes the machine down has proven nothing
    with tempfile.TemporaryDirectory(prefix="collectives-") as folder:
        result = measure(options, Path(folder))
    _judge(options.verdict, word_of(result))
    result["held_by"] = holders
    text = json.dumps(result, sort_keys=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n")
    tell("result", result=result)
    sys.exit(0 if not result["errors"] else FAILED)


def tell(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All parts, each in processes of its own: what hangs or dies costs its own part only."""
    result: dict[str, Any] = {
        "format": FORMAT,
        "started": time.time(),
        "errors": [],
        "token_bytes": options.token_bytes,
    }
    result["environment"] = {name: value for name, value in sorted(os.environ.items()) if name.startswith(STEERING)}
    limit: float = options.limit

    def part(name: str, ranks: int, work: Callable[[int, Any], None]) -> Outcome:
        tell("note", text=name)
        outcome = together(ranks, limit, work, folder / name.replace(" ", "-"))
        if outcome.state != "ok":
            result["errors"].append({"part": name, "state": outcome.state, "text": outcome.error})
            tell("note", text=f"{name}: {outcome.state}")
        return outcome

    seen = part("what torch sees", 1, lambda _, emit: copies.look(emit))
    if seen.state != "ok":
        return result | {
            "ranks": 0,
            "backend": None,
            "cards": [],
            "collectives": [],
            "ladder": ladder_of([seen], [], 0),
        }
    told = seen.rows[0]
    cards = len(told["cards"])
    ranks = options.ranks or cards or 2
    if cards and ranks > cards:
        result["errors"].append({"part": "what torch sees", "state": "failed", "text": f"{cards} GPUs, not {ranks}"})
        ranks = cards
    result |= {name: told[name] for name in ("backend", "torch", "nccl", "cards", "granted")} | {"ranks": ranks}
    peers = writes = None
    if cards:
        result["host"] = _rows(part("host copies", 1, lambda _, emit: copies.host_copies(emit)), "host")
        result["errors"] += [
            {"part": "host copies", "state": "wrong data", "text": f"GPU {row['gpu']}: not what was sent came back"}
            for row in result["host"]
            if not (row["right_small"] and row["right_large"])
        ]
        peers = part("peer copies", 1, lambda _, emit: copies.peer_copies(emit))
    if ranks > 1:
        at = free_port()
        writes = part("kernel writes", ranks, lambda r, emit: copies.kernel_writes(r, ranks, at, limit, emit))
    where = free_port()
    sizes = reduce.Sizes(tuple(map(int, options.batches.split(","))), options.token_bytes, options.sent_to)
    moved = part("collectives", ranks, lambda r, emit: reduce.measure(r, ranks, where, sizes, limit, emit))
    result["collectives"] = reduce.merged(moved.rows, ranks)
    result["peers"] = _rows(peers, "peer")
    result["writes"] = _rows(writes, "write")
    result["ladder"] = ladder_of([one for one in (peers, writes, moved) if one], result["collectives"], ranks)
    return result


def ladder_of(outcomes: Sequence[Outcome], collectives: Sequence[dict[str, Any]], ranks: int) -> dict[str, Any]:
    """One word for all rungs, the gravest first: wrong data, hang, inconclusive, healthy; and what says so."""
    rows = [row for outcome in outcomes for row in outcome.rows]
    wrong = [
        f"{row['from']} -> {row['to']}: {'copy' if row['kind'] == 'peer' else 'kernel write'} arrived wrong"
        for row in rows
        if (row["kind"] == "peer" and not (row["right_small"] and row["right_large"]))
        or (row["kind"] == "write" and not row["right"])
    ]
    wrong += [f"{row['op']} of {row['bytes']} bytes: wrong sum" for row in collectives if not row["right"]]
    if wrong:
        return {"word": "wrong data", "why": wrong[:8]}
    hung = [outcome.error + _where(outcome) for outcome in outcomes if outcome.state == "hang"]
    if hung:
        return {"word": "hang", "why": hung}
    failed = [outcome.error for outcome in outcomes if outcome.state == "failed"]
    pairs = ranks * (ranks - 1)
    proven = sum(1 for row in rows if row["kind"] == "write" and row["right"])
    if failed or not collectives or proven < pairs:
        return {"word": "inconclusive", "why": failed or [f"{proven} of {pairs} ordered pairs were written and read"]}
    return {"word": "healthy", "why": [f"{pairs} ordered pairs written and read back on the destination"]}


def word_of(result: dict[str, Any]) -> str:
    """What a grant of peer-to-peer has come to: the ladder's word, unless the way around it was taken."""
    word: str = result["ladder"]["word"]
    if word != "healthy":
        return word
    if len(result["cards"]) > 1 and not result["granted"]:
        return "not granted"
    return "untested" if result["environment"].get("NCCL_P2P_DISABLE", "0") != "0" else word


def _judge(path: Path | None, word: str) -> None:
    """Only where the file is there already: without a grant there is nothing to judge."""
    if path is not None and path.exists():
        path.write_text(f"{word}\n")


def _where(outcome: Outcome) -> str:
    begun = [row for row in outcome.rows if row["kind"] == "peer_begin"]
    return f", copying from GPU {begun[-1]['from']} to {begun[-1]['to']}" if begun else ""


def held() -> list[str]:
    """Processes that have memory on a GPU, as nvidia-smi tells; [] where there is none, or no nvidia-smi."""
    query = ["nvidia-smi", "--query-compute-apps=pid,process_name", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=15, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = {line.strip() for line in done.stdout.splitlines() if line.strip()[:1].isdigit()}
    return sorted(lines) if done.returncode == 0 else []


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
    return port


def _steer(path: Path | None) -> None:
    if path is None or not path.exists():
        return
    for line in path.read_text().splitlines():
        name, mark, value = line.partition("=")
        if mark and name.startswith(STEERING):
            os.environ[name] = value.strip('"')


def _rows(outcome: Outcome | None, kind: str) -> list[dict[str, Any]]:
    rows = outcome.rows if outcome else ()
    return [{k: v for k, v in row.items() if k not in ("kind", "rank")} for row in rows if row["kind"] == kind]


if __name__ == "__main__":
    main()
