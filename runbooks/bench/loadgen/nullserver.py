"""Proof that the client is not the limit: a server that does nothing but send, faster than any real one, on loopback.

Its chunks have the shape of SGLang's and carry the moment they were sent; what the client recorded tells how many it
caught and how late its stamps are. (MLPerf LoadGen's null system under test is the precedent.)
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from .metrics import spread
from .rawlog import Block
from .stopping import fork
from .wire import cut

HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


def chunk(tokens: int) -> bytes:
    choice = {"index": 0, "delta": {"reasoning_content": None, "content": " word"}, "logprobs": None}
    choice |= {"finish_reason": None, "matched_stop": None}
    message = {"id": "0" * 32, "object": "chat.completion.chunk", "created": 0, "model": "null", "choices": [choice]}
    usage = {"prompt_tokens": 0, "total_tokens": tokens, "completion_tokens": tokens, "at": time.perf_counter_ns()}
    data = b"data: " + json.dumps(message | {"usage": usage}).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def start(streams: int, rate: float, seconds: float) -> tuple[int, int]:
    """Forks the server: `rate` chunks/s over all streams, then it ends by itself. Returns its port and process id."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=streams)
    port: int = listener.getsockname()[1]
    child = fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(int(seconds) + 20)
            _play(listener, streams, rate, seconds)
            code = 0
        finally:
            os._exit(code)
    listener.close()
    return port, child


def _play(listener: socket.socket, streams: int, rate: float, seconds: float) -> None:
    connections = []
    for _ in range(streams):
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connections.append(connection)
    for connection in connections:
        request = b""
        while b"\r\n\r\n" not in request:
            select.select([connection], [], [], 10)
            request += connection.recv(65536)
        connection.sendall(HEAD)
    step = streams / rate
    begin = time.perf_counter()
    for number in range(1, max(2, int(seconds / step)) + 1):
        pause = begin + number * step - time.perf_counter()
        if pause > 0:
            time.sleep(pause)
        for connection in connections:
            connection.sendall(chunk(number))
    for connection in connections:
        connection.sendall(b"0\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
    time.sleep(0.2)


def judge(blocks: Sequence[Block], streams: int, rate: float, seconds: float) -> dict[str, Any]:
    """What the client caught of it: chunks, rate, and the lateness of its stamps."""
    step = streams / rate
    expected = max(2, int(seconds / step)) * streams
    late: list[float] = []
    stamps: list[int] = []
    last: list[int] = []
    for meta, reads in blocks:
        if meta["kind"] != "request":
            continue
        _, events, _, _ = cut([data for _, data in reads])
        sent = [json.loads(event.data)["usage"]["at"] for event in events]
        late += [(reads[event.read][0] - at) * 1e-6 for event, at in zip(events, sent, strict=True)]
        stamps += sent
        last.append(reads[-1][0])
    caught = len(late)
    took = (max(last) - min(stamps)) * 1e-9 if stamps else 0.0
    sending = (max(stamps) - min(stamps)) * 1e-9 + step if stamps else 0.0  # a busy machine also slows the null server
    workers = [meta for meta, _ in blocks if meta["kind"] == "worker"]
    reads_done, cpu = sum(w["reads"] for w in workers), sum(w["cpu_ns"] for w in workers)
    lateness = spread(late) or {"p50": 0.0, "p99": 0.0}
    return {
        "streams": streams,
        "rate": rate,
        "expected": expected,
        "caught": caught,
        "sent_rate": caught / sending if sending else 0.0,
        "seen_rate": caught / took if took else 0.0,
        "late_ms": {"p50": lateness["p50"], "p99": lateness["p99"]},
        "cpu_us_per_chunk": cpu / caught / 1e3 if caught else None,
        "cpu_share": cpu / max(1, sum(w["wall_ns"] for w in workers)),
        "reads": reads_done,
        "ok": caught >= 0.995 * expected and 0 < took <= sending / 0.97 + step,
    }


def self_check(
    run: Callable[[int], Sequence[Block]], streams: int, rate: float = 10_000.0, seconds: float = 1.5
) -> dict[str, Any]:
    """Plays the null server against `run(port)`, which is the ordinary loop, and judges what it recorded."""
    port, child = start(streams, rate, seconds)
    try:
        return judge(run(port), streams, rate, seconds)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def said(check: dict[str, Any]) -> str:
    """One line of proof: how much faster than any server it reads, and how exact its stamps are."""
    verdict = "keeps up" if check["ok"] else "DOES NOT KEEP UP"
    return (
        f"client {verdict}: {check['caught']} of {check['expected']} chunks at {check['rate']:.0f}/s "
        f"on {check['streams']} streams, "
        f"stamps late by {check['late_ms']['p50']:.2f}/{check['late_ms']['p99']:.2f} ms (p50/p99), "
        f"{check['cpu_us_per_chunk'] or 0:.1f} us CPU a chunk"
    )
