"""`python -m bench.gpu.serve --port 18500 --ranks 2 --layers 11`: the engine behind /v1/chat/completions, streamed.

One token is one word of the prompt, and every output token is sent by itself, with usage. A waiting prompt is filled
in before the next step of the others, one at a time: prefill and decode take turns, as in SGLang's default schedule.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import socket
import threading
import time
import zlib
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any

NAME = "glm-5-random"


@dataclass
class Job:
    """A request: where its chunks go, and how much is left of it."""

    tokens: list[int]
    limit: int
    out: socket.socket | None  # None: answered in one piece
    slot: int = -1
    made: int = 0
    done: threading.Event = field(default_factory=threading.Event)

    def token(self, token: int) -> None:
        self.made += 1
        if self.out is None:
            return
        reason = "length" if self.made >= self.limit else None
        choice = {"index": 0, "delta": {"role": "assistant", "content": f" w{token}"}, "finish_reason": reason}
        self._send(json.dumps({"choices": [choice], "usage": self.usage()}))
        if reason:
            self._send(json.dumps({"choices": [], "usage": self.usage()}))
            self._send("[DONE]", last=True)

    def usage(self) -> dict[str, Any]:
        prompt = len(self.tokens)
        return {"prompt_tokens": prompt, "completion_tokens": self.made, "total_tokens": prompt + self.made}

    def _send(self, text: str, *, last: bool = False) -> None:
        data = f"data: {text}\n\n".encode()
        end = b"0\r\n\r\n" if last else b""
        try:
            assert self.out is not None
            self.out.sendall(f"{len(data):x}\r\n".encode() + data + b"\r\n" + end)
        except OSError:
            self.made = self.limit  # the client went away


class Scheduler:
    """Rank 0: admits, steps, hands tokens out; tells the other ranks what to do by their pipes."""

    def __init__(self, engine: Any, others: list[Connection], slots: int, batches: tuple[int, ...]) -> None:
        self.engine, self.others, self.batches = engine, others, batches
        self.waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self.running: dict[int, Job] = {}
        self.free = list(range(slots))
        self.made = 0

    def run(self) -> None:
        while True:
            if self.free and not (self.waiting.empty() and self.running):
                self._admit(self.waiting.get())
            if self.running:
                self._step()

    def _admit(self, job: Job) -> None:
        job.slot = min(self.free)
        self.free.remove(job.slot)
        self._tell("prefill", job.slot, job.tokens)
        self._hand(job, self.engine.prefill(job.slot, job.tokens))
        self.running[job.slot] = job
        self._retire(job)

    def _step(self) -> None:
        batch = next(size for size in self.batches if size > max(self.running))
        self._tell("decode", batch, None)
        tokens = self.engine.decode(batch)
        for slot, job in list(self.running.items()):
            self._hand(job, tokens[slot])
            self._retire(job)

    def _hand(self, job: Job, token: int) -> None:
        self.made += 1
        job.token(token)

    def _retire(self, job: Job) -> None:
        if job.made >= job.limit:
            del self.running[job.slot]
            self.free.append(job.slot)
            job.done.set()

    def _tell(self, *what: Any) -> None:
        for other in self.others:
            other.send(what)


def follow(engine: Any, orders: Connection) -> None:
    """The other ranks."""
    while True:
        what, number, tokens = orders.recv()
        engine.prefill(number, tokens) if what == "prefill" else engine.decode(number)


def words(body: dict[str, Any], vocabulary: int) -> list[int]:
    text = " ".join(str(one.get("content", "")) for one in body.get("messages", ())) or str(body.get("prompt", ""))
    return [zlib.crc32(word.encode()) % vocabulary for word in text.split()]


def handler(scheduler: Scheduler, info: dict[str, Any], vocabulary: int, length: int) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None: ...

        def _json(self, value: Any, status: int = 200) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            known = {"/health": {}, "/v1/models": {"data": [{"id": NAME}]}, "/server_info": info}
            self._json(known.get(self.path, {"error": "not found"}), 200 if self.path in known else 404)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            tokens, limit = words(body, vocabulary), int(body.get("max_tokens") or 16)
            if not tokens or len(tokens) + limit > length:
                self._json({"error": f"{len(tokens)} + {limit} tokens do not fit into {length}"}, 400)
                return
            stream = bool(body.get("stream"))
            job = Job(tokens, limit, self.connection if stream else None)
            if stream:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.wfile.flush()
            scheduler.waiting.put(job)
            job.done.wait()
            if not stream:
                choice = {"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "length"}
                self._json({"choices": [choice], "usage": job.usage()})

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=18500)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--length", type=int, default=544)
    parser.add_argument("--small", type=json.loads, help="other sizes, as JSON: a try on a CPU")
    options = parser.parse_args()
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    pipes = [context.Pipe(duplex=False) for _ in range(options.ranks - 1)]
    children = [
        context.Process(target=work, args=(rank, options, pipes[rank - 1][0], []), daemon=True)
        for rank in range(1, options.ranks)
    ]
    for child in children:
        child.start()
    work(0, options, None, [sender for _, sender in pipes])


def work(rank: int, options: argparse.Namespace, orders: Connection | None, others: list[Connection]) -> None:
    import torch
    import torch.distributed as dist

    from bench.gpu.model import BATCHES, Engine, Scale

    gpu = torch.cuda.is_available()
    device = torch.device("cuda", rank) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    if options.ranks > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(options.port + 1))
        dist.init_process_group("nccl" if gpu else "gloo", rank=rank, world_size=options.ranks)
    since = time.monotonic()
    slots = max(BATCHES)
    engine = Engine(rank, options.ranks, Scale(options.layers, options.length, options.small), slots, device)
    engine.prefill(0, list(range(64)))  # the caches are made before the graphs are
    if gpu:
        engine.capture(BATCHES)
    if orders is not None:
        follow(engine, orders)
    params = sum(weight.numel() for weight in engine.model.parameters())
    print(f"ready after {time.monotonic() - since:.0f} s, {params / 1e9:.2f} B parameters a rank", flush=True)
    info = {
        "engine": "bench.gpu, over transformers' GlmMoeDsa",
        "tp_size": options.ranks,
        "max_running_requests": slots,
        "cuda_graph_max_bs_decode": slots if gpu else None,
        "disable_cuda_graph": not gpu,
        "attention_backend": "sdpa, keys and values kept expanded",
        "moe_runner_backend": str(engine.model.config._experts_implementation),
        "num_hidden_layers": options.layers,
        "context_length": options.length,
    }
    scheduler = Scheduler(engine, others, slots, BATCHES)
    vocabulary = engine.model.config.vocab_size

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

    server = Server(("127.0.0.1", options.port), handler(scheduler, info, vocabulary, options.length))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    scheduler.run()


if __name__ == "__main__":
    main()
