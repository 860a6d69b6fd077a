"""`python -m lab.traps [--step MS] [--prefill MS] [--certificate PEM]`: a server that misleads. Prints its port.

A stand-in for an OpenAI-compatible server: one engine that makes one token a step for each running stream. The first
part of a path chooses a trap, as in `/short/v1/models`; each has an engine of its own (`/short~NAME/`: one that nobody
else asks), and its answer has the truth in `usage`. `/short/truth` says which requests came, and by how many
connections. It imitates no product's speed: a step takes what the option says.
"""

from __future__ import annotations

import argparse
import json
import random
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TRAPS = {
    "": "none: one token an event, the role first, usage in an event of its own, [DONE]",
    "lumps": "four tokens an event",
    "flood": "all but one of the tokens in the first event",
    "spaces": "15 spaces for each token: who tokenises the text again counts fewer",
    "swallow": "the parser keeps 16 steps to itself: usage jumps, and no event shows it",
    "reasoning": "all text is reasoning_content",
    "thinking": "all text is delta.reasoning, as other servers call it",
    "tools": "all text is arguments of a tool call",
    "no-role": "no role chunk at the beginning",
    "no-usage": "usage is never sent",
    "strict": "unknown fields of stream_options are refused with 400",
    "no-done": "the stream ends without [DONE]",
    "no-metrics": "there is no /metrics",
    "short": "half of the tokens, and finish_reason stop",
    "one": "one token, and finish_reason stop",
    "silent": "three tokens, and then not one byte more",
    "error": "200, and after three tokens an error in the stream",
    "cut": "the connection is closed after three tokens",
    "refuse": "503 for every request of more than two tokens",
    "some-refuse": "503 for every other request",
    "nan": "finish_reason stop with matched_stop 'NaN happened' after half of the tokens",
    "bang": "token 0, which is '!', for ever",
    "echo": "one word for ever",
    "random": "every token drawn from a vocabulary of 154,880, as when NaN became equal chances",
    "fat": "each event has 20 kB of logprobs",
    "cached": "usage says that the prompt came from the prefix cache",
    "quiet-cache": "the prompt came from the prefix cache, and a counter says so that was not there before",
    "slow-start": "the first ten requests of the engine wait for a second",
    "graphs": "steps of more than 32 streams take four times as long, and /server_info says why",
    "liar": "its counters say more than it sent",
    "busy": "other people's requests are running",
    "stale": "its gauge keeps the last number of running requests; /v1/loads knows better",
    "small": "its context holds 64 tokens",
    "html": "every answer is a page of HTML",
    "locked": "wants the API key sk-traps",
}
WORDS = "the quick brown fox jumps over a lazy dog while seven wise cats look at one old moon".split()  # noqa: SIM905
GRAPHS = 32
OTHERS = {"busy": 3, "stale": 1}  # what the gauge has too much
KEPT = 16  # tokens that `swallow` hides


@dataclass
class Job:
    handler: Handler
    asked: int
    prompt: int
    usage: bool
    each: bool
    made: int = 0
    told: int = 0
    ended: threading.Event = field(default_factory=threading.Event)


class Engine:
    def __init__(self, trap: str, step: float, prefill: float) -> None:
        self.trap = trap
        self.step_ms = step
        self.prefill_ms = prefill
        self.jobs: list[Job] = []
        self.lock = threading.Lock()
        self.generated = self.decoded = self.prompts = self.finished = self.begun = 0
        self.asked: list[str] = []  # the prompt of each measured request
        self.at_once = self.connections = 0  # answers at one moment, at most; connections they came by

    def run(self) -> None:
        next_step = time.perf_counter()
        while True:
            with self.lock:
                jobs = list(self.jobs)
            step = self.step_ms * (4 if self.trap == "graphs" and len(jobs) > GRAPHS else 1)
            next_step = max(next_step + step / 1000, time.perf_counter())
            time.sleep(max(0.0002, next_step - time.perf_counter()))
            for job in jobs:
                self.step(job)

    def step(self, job: Job) -> None:
        trap = self.trap
        job.made += 1
        if job.made > 1:
            self.decoded += 1
        try:
            if trap == "silent" and job.made > 3:
                self.end(job)  # and not one byte more on its connection
                return
            if trap == "error" and job.made == 4:
                job.handler.event({"error": {"message": "out of memory", "code": 500}})
                self.end(job, close=True)
                return
            if trap == "cut" and job.made == 4:
                self.end(job, close=True)
                return
            early = (trap in ("short", "nan") and job.made >= job.asked // 2) or trap == "one"
            over = job.made >= job.asked or early
            if not self.holds_back(job) or over:
                self.tell(job)
            if over:
                self.last(job, "stop" if early else "length")
        except OSError:
            self.end(job, close=True)

    def holds_back(self, job: Job) -> bool:
        """Whether this token waits for the event of a later one."""
        if self.trap == "lumps":
            return bool(job.made % 4)
        if self.trap == "flood":
            return job.made < job.asked - 1
        return self.trap == "swallow" and 1 < job.made < 1 + KEPT

    def tell(self, job: Job) -> None:
        count = 1 if self.trap == "swallow" else job.made - job.told
        job.told = job.made
        text = words(self.trap, job.made, count)
        delta: dict[str, Any] = {"content": text}
        if self.trap == "reasoning":
            delta = {"content": None, "reasoning_content": text}
        if self.trap == "thinking":
            delta = {"content": "", "reasoning": text}
        if self.trap == "tools":
            delta = {"content": None, "tool_calls": [{"index": 0, "function": {"arguments": text}}]}
        message = chunk(delta)
        if self.trap == "fat":
            message["choices"][0]["logprobs"] = {"content": "x" * 20_000}
        job.handler.event(message | ({"usage": usage(job, self.trap)} if job.each else {}))

    def last(self, job: Job, reason: str) -> None:
        job.handler.event(chunk({}, reason, "NaN happened" if self.trap == "nan" else None))
        if job.usage:
            job.handler.event(chunk(None) | {"choices": [], "usage": usage(job, self.trap)})
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


def chunk(delta: dict[str, Any] | None, reason: str | None = None, matched: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason, "matched_stop": matched}
    return {"id": "0", "object": "chat.completion.chunk", "created": 0, "model": "tiny", "choices": [choice]}


def usage(job: Job, trap: str) -> dict[str, Any]:
    details = {"cached_tokens": job.prompt - 1} if trap == "cached" else None
    total = {"total_tokens": job.prompt + job.made, "prompt_tokens_details": details}
    return {"prompt_tokens": job.prompt, "completion_tokens": job.made} | total


def words(trap: str, number: int, count: int) -> str:
    if trap == "bang":
        return "!" * count
    if trap == "random":
        return "".join(f"{random.randrange(154_880):05x}" for _ in range(count))
    if trap == "echo":
        return "and " * count
    if trap == "spaces" and number % 2:
        return " " * 15 * count
    return "".join(WORDS[((number + i) * 7) % len(WORDS)] + " " for i in range(count))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def version_string(self) -> str:
        return "uvicorn"  # as SGLang says, whose sockets also have TCP_NODELAY

    measured = False  # whether a measured request came by this connection

    def route(self) -> tuple[Engine, str]:
        first, _, rest = self.path.lstrip("/").partition("/")
        trap = first.partition("~")[0]
        if trap not in TRAPS or not first:
            trap, first, rest = "", "", self.path.lstrip("/")
        with starting:
            if first not in engines:
                engines[first] = Engine(trap, options.step, options.prefill)
                threading.Thread(target=engines[first].run, daemon=True).start()
            return engines[first], f"/{rest}"

    def count(self, engine: Engine, prompt: str) -> None:
        """A request that is measured, and no question of how long a prompt is."""
        with engine.lock:
            engine.asked.append(prompt)
            engine.connections += not self.measured
        self.measured = True

    def event(self, message: Mapping[str, Any]) -> None:
        self.raw(b"data: " + json.dumps(message).encode() + b"\n\n")

    def raw(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def plain(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def spoils(self, engine: Engine) -> bool:
        refused = False
        if engine.trap == "html":
            self.plain(200, b"<!DOCTYPE html><html><body>Welcome</body></html>", "text/html")
        elif refused := engine.trap == "locked" and self.headers.get("Authorization") != "Bearer sk-traps":
            self.plain(401, b'{"error": {"message": "Invalid API key"}}')
        return engine.trap == "html" or refused

    def do_GET(self) -> None:
        engine, path = self.route()
        if self.spoils(engine):
            return
        if path == "/metrics" and engine.trap != "no-metrics":
            lines: dict[str, float] = {
                "generation_tokens_total": engine.generated + (7 * engine.finished if engine.trap == "liar" else 0),
                'realtime_tokens_total{mode="decode"}': engine.decoded,
                "prompt_tokens_total": engine.prompts,
                "num_running_reqs": len(engine.jobs) + OTHERS.get(engine.trap, 0),
                "num_queue_reqs": 0,
            }
            if engine.trap == "quiet-cache" and engine.asked:  # as SGLang: no sample before the first hit
                lines['cached_tokens_total{cache_source="device"}'] = engine.prompts - engine.finished
            self.plain(200, "".join(f"sglang:{name} {value}.0\n" for name, value in lines.items()).encode())
        elif path == "/v1/loads" and engine.trap in OTHERS:
            running = len(engine.jobs) + (OTHERS["busy"] if engine.trap == "busy" else 0)
            self.plain(200, json.dumps({"loads": [{"num_running_reqs": running, "num_waiting_reqs": 0}]}).encode())
        elif path == "/truth":
            truth = {"requests": len(engine.asked), "prompts": len(set(engine.asked)), "at_once": engine.at_once}
            self.plain(200, json.dumps(truth | {"connections": engine.connections}).encode())
        elif path == "/server_info":
            graphs = GRAPHS if engine.trap == "graphs" else 256
            told = {"cuda_graph_max_bs": graphs, "max_running_requests": 256, "api_key": "k"}
            self.plain(200, json.dumps(told).encode())
        elif path == "/v1/models":
            longest = 64 if engine.trap == "small" else 8192
            self.plain(200, json.dumps({"data": [{"id": "tiny", "max_model_len": longest}]}).encode())
        else:
            self.plain(200 if path == "/health" else 404, b"{}")

    def do_POST(self) -> None:
        engine, _ = self.route()
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.spoils(engine):
            return
        engine.begun += 1
        tokens = asked.get("max_tokens") or asked.get("max_completion_tokens") or 16
        prompt = 4 + sum(len(str(message["content"]).split()) for message in asked["messages"])
        streaming = asked.get("stream_options") or {}
        if asked.get("stream") and tokens > 2:
            self.count(engine, json.dumps(asked["messages"]))
        if engine.trap == "strict" and "continuous_usage_stats" in streaming:
            self.plain(400, b'{"error": {"message": "unknown field"}}')
            return
        refused = engine.trap == "refuse" or (engine.trap == "some-refuse" and engine.begun % 2)
        if refused and tokens > 2:
            self.plain(503, b'{"error": {"message": "overloaded"}}')
            return
        if not asked.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "length"}
            used = {"prompt_tokens": prompt, "completion_tokens": 1, "total_tokens": prompt + 1}
            self.plain(200, json.dumps({"id": "0", "choices": [choice], "usage": used}).encode())
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if engine.trap != "no-role":
            self.event(chunk({"role": "assistant", "content": ""}))
        wanted = streaming.get("include_usage", False) and engine.trap != "no-usage"
        job = Job(self, tokens, prompt, wanted, wanted and streaming.get("continuous_usage_stats", False))
        time.sleep(1.0 if engine.trap == "slow-start" and engine.begun <= 10 else engine.prefill_ms / 1000)
        with engine.lock:
            engine.jobs.append(job)
            engine.at_once = max(engine.at_once, len(engine.jobs))
        job.ended.wait()

    def log_message(self, *_: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """A client that went away is no news."""


engines: dict[str, Engine] = {}
starting = threading.Lock()
options = argparse.Namespace(step=2.0, prefill=2.0)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", type=float, default=2.0, help="ms")
    parser.add_argument("--prefill", type=float, default=2.0, help="ms")
    parser.add_argument("--certificate", help="speak TLS with this certificate and key")
    options = parser.parse_args()
    server = Server(("127.0.0.1", 0), Handler)
    if options.certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(options.certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    print(server.server_address[1], flush=True)
    server.serve_forever()
