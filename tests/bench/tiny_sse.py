"""A small server of SSE streams for tests of the load generator: one engine, one token a step for each running stream.

Run as a program (`tiny_sse.py --step 5`), it prints its port. The first part of a path, as in `/short/v1/models`,
chooses one of the ways in which real servers mislead a client; each has an engine of its own. It imitates no product's
speed: a step takes what the option says.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WORDS = (
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "seven",
    "wise",
    "cats",
    "look",
    "at",
    "one",
    "old",
    "moon",
)


@dataclass
class Job:
    handler: Handler
    asked: int
    prompt: int
    usage: bool
    each: bool
    made: int = 0
    ended: threading.Event = field(default_factory=threading.Event)


class Engine:
    def __init__(self, trap: str, step: float, prefill: float) -> None:
        self.trap = trap
        self.step_ms = step
        self.prefill_ms = prefill
        self.jobs: list[Job] = []
        self.lock = threading.Lock()
        self.generated = self.decoded = self.prompts = self.finished = 0

    def run(self) -> None:
        next_step = time.perf_counter()
        while True:
            with self.lock:
                jobs = list(self.jobs)
            next_step = max(next_step + self.step_ms / 1000, time.perf_counter())
            time.sleep(max(0.0002, next_step - time.perf_counter()))
            for job in jobs:
                self.step(job)

    def step(self, job: Job) -> None:
        trap = self.trap
        job.made += 1
        if job.made > 1:
            self.decoded += 1
        try:
            short = trap == "short" and job.made >= job.asked // 2
            if trap == "silent" and job.made > 3:
                self.end(job)  # and not one byte more on its connection
                return
            if trap == "error" and job.made == 4:
                job.handler.chunk({"error": {"message": "out of memory", "code": 500}})
                self.end(job, close=True)
                return
            if trap == "cut" and job.made == 4:
                self.end(job, close=True)
                return
            if not (trap == "lumps" and job.made % 4 and job.made < job.asked):
                self.tell(job, text(trap, job.made))
            if job.made >= job.asked or short:
                self.last(job, "stop" if short or trap == "nan" else "length")
        except OSError:
            self.end(job, close=True)

    def tell(self, job: Job, words: str) -> None:
        message: dict[str, Any] = {"choices": [{"index": 0, "delta": {"content": words}, "finish_reason": None}]}
        if job.each:
            message |= {"usage": usage(job, self.trap)}
        job.handler.chunk(message)

    def last(self, job: Job, reason: str) -> None:
        matched = "NaN happened" if self.trap == "nan" else None
        job.handler.chunk({"choices": [{"index": 0, "delta": {}, "finish_reason": reason, "matched_stop": matched}]})
        if job.usage:
            job.handler.chunk({"choices": [], "usage": usage(job, self.trap)})
        if self.trap != "no-done":
            job.handler.raw(b"data: [DONE]\n\n")
        job.handler.raw(b"")
        self.end(job)

    def end(self, job: Job, close: bool = False) -> None:
        with self.lock:
            if job in self.jobs:
                self.jobs.remove(job)
                self.generated += job.made
                self.prompts += job.prompt
                self.finished += 1
        if close:
            job.handler.close_connection = True
        job.ended.set()


def usage(job: Job, trap: str) -> dict[str, Any]:
    details = {"cached_tokens": job.prompt - 1} if trap == "cached" else None
    return {"prompt_tokens": job.prompt, "completion_tokens": job.made, "prompt_tokens_details": details}


def text(trap: str, number: int) -> str:
    if trap == "bang":
        return "!"
    return " ".join(WORDS[(number * 7 + i) % len(WORDS)] for i in range(4 if trap == "lumps" else 1)) + " "


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def route(self) -> tuple[Engine, str]:
        first, _, rest = self.path.lstrip("/").partition("/")
        trap, path = ("", self.path) if first in ("v1", "metrics", "server_info") else (first, f"/{rest}")
        with starting:
            if trap not in engines:
                engines[trap] = Engine(trap, options.step, options.prefill)
                threading.Thread(target=engines[trap].run, daemon=True).start()
            return engines[trap], path

    def chunk(self, message: dict[str, Any]) -> None:
        self.raw(b"data: " + json.dumps(message).encode() + b"\n\n")

    def raw(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def plain(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        engine, path = self.route()
        if path == "/metrics" and engine.trap != "no-metrics":
            lines = {
                "generation_tokens_total": engine.generated + (7 * engine.finished if engine.trap == "liar" else 0),
                'realtime_tokens_total{mode="decode"}': engine.decoded,
                "prompt_tokens_total": engine.prompts,
                "num_running_reqs": len(engine.jobs) + (3 if engine.trap == "busy" else 0),
                "num_queue_reqs": 0,
            }
            self.plain(200, "".join(f"sglang:{name} {value}.0\n" for name, value in lines.items()).encode())
        elif path == "/server_info":
            graphs = 2 if engine.trap == "graphs" else 64
            self.plain(
                200, json.dumps({"cuda_graph_max_bs": graphs, "max_running_requests": 256, "api_key": "k"}).encode()
            )
        elif path == "/v1/models":
            self.plain(200, b'{"data": [{"id": "tiny"}]}')
        else:
            self.plain(404, b"{}")

    def do_POST(self) -> None:
        engine, _ = self.route()
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = 4 + len(asked["messages"][0]["content"].split())
        streaming = asked.get("stream_options") or {}
        if engine.trap == "strict" and "continuous_usage_stats" in streaming:
            self.plain(400, b'{"error": {"message": "unknown field"}}')
            return
        if engine.trap == "refuse" and asked["max_tokens"] > 2:
            self.plain(503, b'{"error": {"message": "overloaded"}}')
            return
        if not asked.get("stream"):
            body = {
                "choices": [{"message": {"content": "x"}}],
                "usage": {"prompt_tokens": prompt, "completion_tokens": 1},
            }
            self.plain(200, json.dumps(body).encode())
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.chunk({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        wanted = streaming.get("include_usage", False) and engine.trap != "no-usage"
        job = Job(self, asked["max_tokens"], prompt, wanted, wanted and streaming.get("continuous_usage_stats", False))
        time.sleep(engine.prefill_ms / 1000)
        with engine.lock:
            engine.jobs.append(job)
        job.ended.wait()

    def log_message(self, *_: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


engines: dict[str, Engine] = {}
starting = threading.Lock()
options = argparse.Namespace(step=2.0, prefill=2.0)

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--step", type=float, default=2.0, help="ms")
    parser.add_argument("--prefill", type=float, default=2.0, help="ms")
    options = parser.parse_args()
    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
