"""What the server says of itself: counters, settings, its model. Small blocking calls, never within a window."""

from __future__ import annotations

import http.client
import json
import re
import time
from dataclasses import dataclass
from typing import Any

from .wire import APIS, Shape, Target

# The name in the log -> SGLang's metric and, where one is needed, a label.
COUNTERS = {
    "generation_tokens": ("sglang:generation_tokens_total", ""),
    "decode_tokens": ("sglang:realtime_tokens_total", 'mode="decode"'),
    "prompt_tokens": ("sglang:prompt_tokens_total", ""),
    "cached_tokens": ("sglang:cached_tokens_total", ""),
    "running": ("sglang:num_running_reqs", ""),
    "queued": ("sglang:num_queue_reqs", ""),
    "cuda_graph": ("sglang:is_cuda_graph", ""),
}
_SAMPLE = re.compile(r"^(sglang:\w+)(?:\{([^}]*)\})? ([-+0-9.eE]+|NaN)", re.M)
_SECRETS = re.compile(r"key|token$|password|secret", re.I)


@dataclass(frozen=True)
class Server:
    target: Target
    key: str | None

    def ask(self, method: str, path: str, body: bytes | None = None, timeout: float = 10.0) -> tuple[int, bytes]:
        """Status and body. Raises OSError when there is no answer in time."""
        make = http.client.HTTPSConnection if self.target.tls else http.client.HTTPConnection
        connection = make(self.target.host, self.target.port, timeout=timeout)
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        try:
            connection.request(method, self.target.prefix + path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except http.client.HTTPException as error:
            raise OSError(f"{type(error).__name__} at {path}") from None
        finally:
            connection.close()

    def counters(self) -> dict[str, Any] | None:
        """The counters of COUNTERS, summed over labels, with the moment; None where the server publishes none."""
        before = time.perf_counter_ns()
        try:
            status, body = self.ask("GET", "/metrics", timeout=5.0)
        except OSError:
            return None
        if status != 200:
            return None
        after = time.perf_counter_ns()
        return {"at": (before + after) // 2} | parse_metrics(body.decode("utf-8", "replace"))

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
                except ValueError:
                    continue
                return _without_secrets(told) if isinstance(told, dict) else {}
        return {}

    def model(self) -> str:
        """The first served name. Raises OSError with what came instead."""
        status, body = self.ask("GET", "/v1/models")
        if status != 200:
            raise OSError(f"/v1/models answered {status}: {body[:200].decode('utf-8', 'replace')}")
        return str(json.loads(body)["data"][0]["id"])

    def prompt_tokens(self, shape: Shape, prompt: str, timeout: float = 120.0) -> int | None:
        """How many tokens the served tokenizer makes of this prompt, template included; None when it does not say."""
        status, body = self.ask("POST", APIS[shape.api], shape.body(prompt, 1, stream=False), timeout)
        if status != 200:
            raise OSError(f"{APIS[shape.api]} answered {status}: {body[:300].decode('utf-8', 'replace')}")
        told = json.loads(body)
        usage = told.get("usage") or told.get("meta_info") or {}
        count = usage.get("prompt_tokens")
        return count if isinstance(count, int) else None

    def takes_continuous_usage(self, shape: Shape, prompt: str) -> bool:
        """Whether stream_options.continuous_usage_stats is accepted. Servers that do not know it answer 400 or 422."""
        status, _ = self.ask("POST", APIS[shape.api], shape.body(prompt, 2), 120.0)
        return status == 200


def parse_metrics(text: str) -> dict[str, float]:
    totals: dict[str, float] = {}
    for name, labels, value in _SAMPLE.findall(text):
        for ours, (metric, label) in COUNTERS.items():
            if name == metric and label in labels:
                totals[ours] = totals.get(ours, 0.0) + float(value)
    return totals


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: "***" if _SECRETS.search(k) and v else _without_secrets(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_without_secrets(one) for one in value]
    return value
