"""Health's HTTP questions in one go: /health, a real completion, and the metrics before and after it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from .battery import ARITHMETIC
from .client import Endpoint, complete, get
from .judge import Expect, judge
from .server import document, load

PATIENCE = 4.0  # seconds that the completion, and /health, may take before they count as not coming
METRICS = 1.2  # seconds for one look at the metrics


def round_of_questions(endpoint: Endpoint) -> Mapping[str, Any]:
    """Plain values, after at most PATIENCE + 2 * METRICS seconds, whatever the server does."""
    endpoint.silence = PATIENCE
    endpoint.extras = {"chat_template_kwargs": {"enable_thinking": False}}
    request = {"messages": [{"role": "user", "content": ARITHMETIC[0]}], "max_tokens": 8, "temperature": 0}
    request |= {"stream": True, "stream_options": {"include_usage": True}}
    before = load(endpoint, timeout=METRICS)
    with ThreadPoolExecutor(2) as pool:
        health = pool.submit(get, endpoint, "/health", timeout=PATIENCE)
        server = pool.submit(document, endpoint, "/server_info", timeout=PATIENCE)
        reply = complete(endpoint, request, limit=PATIENCE)
        status, reason = health.result()
        info = server.result()
    after = load(endpoint, timeout=METRICS)
    return {
        "event": "vitals",
        "health": status,
        "health_failure": reason.decode() if status == 0 else "",
        "completion": reply.status if not reply.failure else 0,
        "failure": reply.failure or reply.error,
        "text": reply.text[:80],
        "seconds": round(reply.seconds, 3),
        "findings": [asdict(finding) for finding in judge(reply, Expect(fluent=False))],
        "version": info.get("version"),
        "standin": info.get("standin"),  # a simulated server says that it is one
        "before": before,
        "after": after,
    }
