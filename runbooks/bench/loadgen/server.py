"""What the server says of itself: counters, settings, its model. Small blocking calls, never within a window."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any

from .wire import APIS, Prompt, Shape, Target, trusted

# The name in the log -> metrics that mean it, each with a label where one is needed: SGLang's, vLLM's.
COUNTERS = {
    "generation_tokens": (("sglang:generation_tokens_total", ""), ("vllm:generation_tokens_total", "")),
    "decode_tokens": (("sglang:realtime_tokens_total", 'mode="decode"'),),
    "prompt_tokens": (("sglang:prompt_tokens_total", ""), ("vllm:prompt_tokens_total", "")),
    "cached_tokens": (("sglang:cached_tokens_total", ""), ("vllm:prefix_cache_hits_total", "")),
    "running": (("sglang:num_running_reqs", ""), ("vllm:num_requests_running", "")),
    "queued": (("sglang:num_queue_reqs", ""), ("vllm:num_requests_waiting", "")),
    "cuda_graph": (("sglang:is_cuda_graph", ""),),
    "open": (
        ("sglang:http_requests_active", 'endpoint="/v1/c'),
        ("sglang:http_requests_active", 'endpoint="/generate'),
    ),
}
PROGRESS = ("generation_tokens", "decode_tokens", "prompt_tokens")
LARGEST = 32_000_000  # bytes of an answer: /metrics and /server_info have some hundred thousand
STILL = 1.0  # s without a token, prompt or answer: no server that works is silent for so long
_SAMPLE = re.compile(r"^((?:sglang|vllm):\w+)(?:\{([^}]*)\})? ([-+0-9.eE]+|NaN)", re.M)
_SECRETS = re.compile(r"key|token$|password|secret", re.I)


@dataclass(frozen=True)
class Server:
    target: Target
    key: str | None

    def ask(self, method: str, path: str, body: bytes | None = None, timeout: float = 10.0) -> tuple[int, bytes]:
        """Status and body. Raises OSError when there is no whole answer in time, however slowly it comes."""
        host, port = self.target.host, self.target.port
        connection: http.client.HTTPConnection
        if self.target.tls:
            connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=trusted())
        else:
            connection = http.client.HTTPConnection(host, port, timeout=timeout)
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        late, held = threading.Event(), list[socket.socket]()  # an answer without a length takes the socket with it

        def cut() -> None:
            late.set()
            for sock in (*held, *([connection.sock] if connection.sock else [])):
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

        watch = threading.Timer(timeout, cut)  # a socket's own limit begins anew with each byte
        watch.daemon = True
        watch.start()
        try:
            connection.connect()
            held.append(connection.sock)
            connection.request(method, self.target.prefix + path, body, headers)
            answer = connection.getresponse()
            told = answer.read(LARGEST + 1)
            if late.is_set():
                raise TimeoutError
            if len(told) > LARGEST:
                raise OSError(f"{path}: the answer is longer than {LARGEST // 10**6} MB")
            if answer.length:
                raise OSError(f"{path}: the answer broke off")
            return answer.status, told
        except (OSError, http.client.HTTPException, ValueError) as error:
            if late.is_set() or isinstance(error, TimeoutError):
                raise TimeoutError(f"{path}: no whole answer within {timeout:g} s") from None
            if isinstance(error, OSError):
                raise
            raise OSError(f"{path}: what answers does not speak HTTP ({type(error).__name__})") from None
        finally:
            watch.cancel()
            connection.close()

    def counters(self) -> dict[str, Any] | None:
        """The counters of COUNTERS, summed over labels, with the moment; None where it publishes none that we know."""
        before = time.perf_counter_ns()
        try:
            status, body = self.ask("GET", "/metrics", timeout=5.0)
        except OSError:
            return None
        if status != 200:
            return None
        after = time.perf_counter_ns()
        found = parse_metrics(body.decode("utf-8", "replace"))
        return {"at": (before + after) // 2} | found if found else None

    def settled(self) -> dict[str, Any] | None:
        """The counters once nothing runs any more, or after three seconds: SGLang's gauges are late by one or two.

        SGLang 0.5.10 writes them with its log lines, so that an idle server keeps those of its last step. They are
        stale, and set right here, where no token was counted for a second and its scheduler holds nothing now.
        """
        since, last = time.perf_counter(), None
        for _ in range(15):
            counters = self.counters()
            if not counters or not (counters.get("running") or counters.get("queued")):
                return counters
            progress = [counters.get(name) for name in (*PROGRESS, "open")]
            if progress != last:
                since, last = time.perf_counter(), progress
            elif time.perf_counter() - since > STILL and not counters.get("open") and self.load() == 0:
                return counters | {"running": 0.0, "queued": 0.0}
            time.sleep(0.2)
        return counters

    def load(self) -> int | None:
        """Requests that SGLang's scheduler holds at this moment, over its ranks; None where it does not say."""
        for path in ("/v1/loads", "/get_load"):  # 0.5.10 has both, and answers the first with 500
            try:
                status, body = self.ask("GET", path, timeout=5.0)
                told = json.loads(body) if status == 200 else []
                ranks = told["loads"] if isinstance(told, dict) else told
                if ranks:
                    return sum(_held(rank) for rank in ranks)
            except (OSError, ValueError, LookupError, TypeError, RecursionError):
                continue
        return None

    def info(self) -> dict[str, Any]:
        """/server_info (once /get_server_info) without anything that looks like a secret; {} where there is none."""
        for path in ("/server_info", "/get_server_info"):
            try:
                status, body = self.ask("GET", path, timeout=5.0)
            except OSError:
                continue
            if status == 200:
                try:
                    told = json.loads(body)
                except (ValueError, RecursionError):
                    continue
                return _without_secrets(told) if isinstance(told, dict) else {}
        return {}

    def models(self) -> dict[str, int | None]:
        """Served names, each with the longest context it takes where the server says so. Raises OSError in words."""
        told = self._json("/v1/models", *self.ask("GET", "/v1/models"))
        listed = told.get("data")
        found = {
            str(one["id"]): one["max_model_len"] if isinstance(one.get("max_model_len"), int) else None
            for one in (listed if isinstance(listed, list) else [])
            if isinstance(one, dict) and one.get("id")
        }
        if not found:
            raise OSError("/v1/models names no model: is this a server with an OpenAI-compatible API?")
        return found

    def prompt_tokens(self, shape: Shape, prompt: Prompt, timeout: float = 120.0) -> int | None:
        """How many tokens the served tokenizer makes of this prompt, template included; None when it does not say."""
        path = APIS[shape.api]
        told = self._json(path, *self.ask("POST", path, shape.body(prompt, 1, stream=False), timeout))
        usage = told.get("usage") or told.get("meta_info") or {}
        count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        return count if isinstance(count, int) else None

    def takes_continuous_usage(self, shape: Shape, prompt: Prompt) -> bool:
        """Whether stream_options.continuous_usage_stats is accepted. Servers that do not know it answer 400 or 422."""
        status, _ = self.ask("POST", APIS[shape.api], shape.body(prompt, 2), 120.0)
        return status == 200

    @staticmethod
    def _json(path: str, status: int, body: bytes) -> dict[str, Any]:
        """The document, or an OSError that says what came in its place: pages of HTML are named, not shown."""
        text = body.decode("utf-8", "replace").strip()
        if status in (401, 403):
            raise OSError(f"{path} answered {status}: it wants another API key, or one at all ($RUNBOOKS_API_KEY)")
        try:
            told = json.loads(text)
        except (ValueError, RecursionError):
            page = text[:200].lower().startswith(("<!doctype", "<html", "<?xml"))
            kind = "a page of HTML" if page else repr(text[:80])
            advice = "is this a server with an OpenAI-compatible API?"
            raise OSError(f"{path} answered {status} with {kind}, not JSON: {advice}") from None
        if status != 200 or not isinstance(told, dict):
            raise OSError(f"{path} answered {status}: {text[:300]!a}")
        return told


def parse_metrics(text: str) -> dict[str, float]:
    totals: dict[str, float] = {}
    for name, labels, value in _SAMPLE.findall(text):
        for ours, metrics in COUNTERS.items():
            if any(name == metric and label in labels for metric, label in metrics):
                totals[ours] = totals.get(ours, 0.0) + float(value)
    return totals


def _held(rank: dict[str, int]) -> int:
    return rank["num_reqs"] if "num_reqs" in rank else rank["num_running_reqs"] + rank["num_waiting_reqs"]


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: "***" if _SECRETS.search(k) and v else _without_secrets(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_without_secrets(one) for one in value]
    return value
