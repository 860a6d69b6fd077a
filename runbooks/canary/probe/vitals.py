"""Health's HTTP questions in one go: /health, a real completion, and the metrics before and after it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from .battery import ARITHMETIC
from .client import Endpoint, complete, get
from .judge import Expect, judge
from .server import load, look

PATIENCE = 4.0  # seconds that the one completion may take before it counts as not coming
WATCHED = 1.5  # seconds between two looks at the counter of generated tokens


def round_of_questions(endpoint: Endpoint) -> Mapping[str, Any]:
    """Plain values; at most about nine seconds, whatever the server does."""
    endpoint.silence = PATIENCE
    endpoint.extras = {"chat_template_kwargs": {"enable_thinking": False}}
    began = time.monotonic()
    before = load(endpoint)
    status, reason = get(endpoint, "/health", timeout=2.5)
    request = {"messages": [{"role": "user", "content": ARITHMETIC[0]}], "max_tokens": 8, "temperature": 0}
    reply = complete(endpoint, request | {"stream": True, "stream_options": {"include_usage": True}}, limit=PATIENCE)
    left = WATCHED - (time.monotonic() - began)
    if left > 0 and not reply.answered:
        time.sleep(left)
    after = load(endpoint)
    findings = judge(reply, Expect(fluent=False))
    return {
        "event": "vitals",
        "health": status,
        "health_failure": reason.decode() if status == 0 else "",
        "completion": reply.status if not reply.failure else 0,
        "failure": reply.failure or reply.error,
        "text": reply.text[:80],
        "seconds": round(reply.seconds, 3),
        "findings": [asdict(finding) for finding in findings],
        "before": before,
        "after": after,
        "models": look(endpoint).models if reply.answered else (),
    }
