"""`python -m sglang.launch_server`: parse, resolve, load (say so), listen, warm up, serve."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from . import arguments, death, knobs, processes, ranks, release, resolve, startup
from .api import Api
from .http import Connection
from .knobs import Knobs
from .log import Log
from .requests import of_text
from .resolve import Refused, Resolved
from .serving import Serving


def main(argv: Sequence[str] | None = None) -> int:
    log = Log()
    log.bare(f"This is a {release.LABEL} {release.version()}: no model, no GPU.")
    if release.at_least("0.5.10"):
        where = f"{os.path.dirname(__file__)}/launch_server.py"  # noqa: PTH120
        log.bare(
            f"{where}:51: UserWarning: 'python -m sglang.launch_server' is still supported, but 'sglang "
            f"serve' is the recommended entrypoint."
        )
        log.bare("  Example: sglang serve --model-path <model> [options]\n  warnings.warn(")
    args = arguments.parse(sys.argv[1:] if argv is None else argv)
    wanted = knobs.read()
    try:
        resolved = resolve.resolve(args, max_tokens=wanted.max_total_num_tokens, graph_max_bs=wanted.graph_max_bs)
    except Refused as refused:
        log.bare(
            f'Traceback (most recent call last):\n  File "{__file__}", line 79, in <module>\n    '
            f"server_args = prepare_server_args(sys.argv[1:])"
        )
        log.bare(str(refused))
        return 1
    for line in resolved.lines:
        log.server(line)
    log = Log(resolved.tp)
    log.server(startup.arguments_line(resolved))
    nodes = int(args.get("nnodes") or 1)
    children = processes.spawn(max(1, resolved.tp // nodes))
    try:
        ranks.meet(args, log)
        _load(resolved, wanted, log)
        if nodes > 1 and args.get("node_rank"):
            ranks.serve_nothing(args, log)
        return asyncio.run(_serve(resolved, wanted, log, args, children))
    finally:
        processes.end(children)


def _load(resolved: Resolved, wanted: Knobs, log: Log) -> None:
    """The start of the scheduler: lines and time, and the deaths that belong here."""
    seconds, failure = wanted.start_delay, wanted.failure(resolved.facts)
    if resolved.args.get("enable_two_batch_overlap") and resolved.args.get("moe_a2a_backend", "none") == "none":
        death.at_start(log, "overlap")
    _play(startup.loading(resolved, seconds), seconds, log)
    if resolved.weights_gb > resolve.CARD_GB - 1:
        death.at_start(log, "weights")
    if failure == "die_at_start" and wanted.detail != "memory":
        death.exit_code(log, int(wanted.detail or -9))
    if failure == "die_at_start" or resolved.kv_tokens <= 0:
        death.at_start(log, "memory", resolved.args.get("mem_fraction_static"))
    _play(startup.pools(resolved), seconds, log)
    lines = list(startup.graphs(resolved, seconds))
    if failure == "hang_at_start":
        _play(lines[:1], seconds, log)
        signal.pause()
    _play(lines, seconds, log)


def _play(lines: Iterable[tuple[float, str]], seconds: float, log: Log) -> None:
    for share, text in lines:
        time.sleep(share * seconds)
        log.scheduler(text)


async def _serve(
    resolved: Resolved, wanted: Knobs, log: Log, args: dict[str, Any], children: list[subprocess.Popen[bytes]]
) -> int:
    loop = asyncio.get_running_loop()
    serving = Serving(resolved, wanted, log, children)
    api = Api(serving, serving.board)
    _play(startup.ready(resolved, serving.engine.limits.max_running), 0, log)
    finished = asyncio.Event()
    log.server(f"INFO:     Started server process [{os.getpid()}]")
    log.server("INFO:     Waiting for application startup.")
    log.server("INFO:     Application startup complete.")
    host, port = str(args.get("host") or "127.0.0.1"), int(args.get("port") or 30000)
    try:
        listener = await loop.create_server(lambda: Connection(api.handle, log.server), host, port, backlog=2048)
    except OSError as error:
        return await _no_port(error, host, port, log)
    loop.add_signal_handler(signal.SIGTERM, serving.stop, finished)
    loop.add_signal_handler(signal.SIGINT, serving.stop, finished)
    log.server(f"INFO:     Uvicorn running on http://{host}:{port} (Press CTRL+C to quit)")
    loop.call_later(0 if args.get("skip_server_warmup") else wanted.warmup, _warm, serving)
    async with listener:
        await finished.wait()
    return 0


def _warm(serving: Serving) -> None:
    """The warm-up request is over: from now on /health asks the scheduler."""
    if serving.failure == "never_ready":
        return
    serving.engine.cache.insert(of_text("The capital city of France is").ids)
    serving.status = "up"
    serving.log.server("The server is fired up and ready to roll!")


async def _no_port(error: OSError, host: str, port: int, log: Log) -> int:
    """uvicorn's words; then the real server neither serves nor ends until somebody stops it (seen with
    0.5.10.post1 and 0.5.23)."""
    number = error.errno or errno.EADDRINUSE
    text = os.strerror(number).lower()
    log.server(f"ERROR:    [Errno {number}] error while attempting to bind on address ('{host}', {port}): {text}")
    log.server("INFO:     Waiting for application shutdown.")
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    log.server(
        f"Subprocess scheduler_0 (pid={os.getpid()}) crashed with exit code -15. Triggering SIGQUIT for cleanup..."
    )
    log.server("Received sigquit from a child process. It usually means the child failed.")
    death.kill(log)


if __name__ == "__main__":
    raise SystemExit(main())
