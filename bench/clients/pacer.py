"""`python -m bench.clients.pacer [--step MS] [--count FILE]`: a server that costs next to nothing, to measure clients.

One thread and one poll: each step it sends one prepared chunk to every running stream, in one burst, as an engine's
decode step does. It prints its port. Its answers have the shape of SGLang's, usage of each chunk where asked. In FILE
stands what it has done, anew after each step (COUNTED): chunks sent, first tokens sent, and the nanoseconds that passed
from the request read to the first token sent, of all of them.
"""

from __future__ import annotations

import argparse
import json
import mmap
import re
import select
import socket
import struct
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
PROMPT = 64
COUNTED = struct.Struct("<3q")
_LENGTH = re.compile(rb"content-length: *(\d+)", re.I)


@dataclass(eq=False)
class Stream:
    sock: socket.socket
    data: bytes = b""
    asked: int = 0  # 0: it waits for a request
    made: int = 0
    begun: int = 0  # ns
    each: bool = False
    usage: bool = False


def event(message: dict[str, Any] | str) -> bytes:
    text = message if isinstance(message, str) else json.dumps(message)
    data = f"data: {text}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def message(delta: dict[str, Any] | None, reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason, "matched_stop": None}
    head = {"id": "0" * 32, "object": "chat.completion.chunk", "created": 0, "model": "tiny"}
    return head | {"choices": [] if delta is None else [choice]}


def usage(made: int) -> dict[str, Any]:
    return {"usage": {"prompt_tokens": PROMPT, "completion_tokens": made, "total_tokens": PROMPT + made}}


@cache
def token(number: int, each: bool) -> bytes:
    said = message({"content": f" word{number % 10}", "reasoning_content": None})
    return event(said | (usage(number) if each else {}))


@cache
def ending(made: int, wanted: bool) -> bytes:
    last = event(message({}, "length")) + (event(message(None) | usage(made)) if wanted else b"")
    return last + event("[DONE]") + b"0\r\n\r\n"


def plain(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data)


def asked(stream: Stream) -> None:
    """Answers the request that has come whole, if one has."""
    head, blank, body = stream.data.partition(b"\r\n\r\n")
    found = _LENGTH.search(head)
    size = int(found[1]) if found else 0
    if not blank or len(body) < size:
        return
    stream.data = b""
    if not head.startswith(b"POST /v1/chat/completions "):
        known = head.startswith(b"GET /v1/models ")
        stream.sock.sendall(plain({"data": [{"id": "tiny", "max_model_len": 8192}]} if known else {}))
        return
    told = json.loads(body)
    options = told.get("stream_options") or {}
    if not told.get("stream"):
        choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "length"}
        words = sum(len(str(one["content"]).split()) for one in told.get("messages", ()))
        used = {"prompt_tokens": words, "completion_tokens": 1, "total_tokens": words + 1}
        stream.sock.sendall(plain({"id": "0", "choices": [choice], "usage": used}))
        return
    stream.asked = told.get("max_tokens") or told.get("max_completion_tokens") or 16
    stream.begun = time.perf_counter_ns()
    stream.made, stream.usage = 0, bool(options.get("include_usage"))
    stream.each = stream.usage and bool(options.get("continuous_usage_stats"))
    stream.sock.sendall(HEAD + event(message({"role": "assistant", "content": ""})))


def step(streams: list[Stream], done: list[int]) -> None:
    """Sends a chunk to each, and adds to what is done."""
    for stream in streams:
        stream.made += 1
        data = token(stream.made, stream.each)
        if stream.made == stream.asked:
            data += ending(stream.made, stream.usage)
            stream.asked = 0
        try:
            stream.sock.sendall(data)
        except OSError:
            stream.asked = 0
        done[0] += 1
        if stream.made == 1:
            done[1] += 1
            done[2] += time.perf_counter_ns() - stream.begun


def counter(file: Path | None) -> mmap.mmap:
    if file is None:
        return mmap.mmap(-1, COUNTED.size)
    file.write_bytes(bytes(COUNTED.size))
    with file.open("r+b") as opened:
        return mmap.mmap(opened.fileno(), COUNTED.size)


def serve(seconds: float, count: Path | None) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    print(listener.getsockname()[1], flush=True)
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    streams: dict[int, Stream] = {}
    told, done = counter(count), [0, 0, 0]
    due = time.perf_counter() + seconds
    while True:
        for number, _ in poll.poll(max(0.0, (due - time.perf_counter()) * 1e3)):
            if number == listener.fileno():
                sock, _ = listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                streams[sock.fileno()] = Stream(sock)
                poll.register(sock, select.POLLIN)
                continue
            stream = streams[number]
            try:
                data = stream.sock.recv(1 << 20)
                stream.data += data
                asked(stream)
            except OSError:
                data = b""
            if not data:
                poll.unregister(number)
                streams.pop(number).sock.close()
        if time.perf_counter() >= due:
            due = max(due + seconds, time.perf_counter())
            step([stream for stream in streams.values() if stream.asked], done)
            told[:] = COUNTED.pack(*done)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", type=float, default=20.0, help="ms")
    parser.add_argument("--count", type=Path, help="the file that says what was sent")
    options = parser.parse_args()
    serve(options.step / 1e3, options.count)
