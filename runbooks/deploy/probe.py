"""Runs on the host, on `python3 -c` with JSON on stdin: one question to the server, one line of JSON as the answer.

    {"url": "http://127.0.0.1:30000", "key": "", "model": "glm-5", "ask": "completion" | "info" | "live", "timeout": 20}

completion: a real one, since /health is 200 for a server that computes NaN. info: /server_info. live: requests that run
or wait, from /metrics. Standard library only; the key is never on a command line.
"""

from __future__ import annotations

import contextlib
import json
import sys
import urllib.error
import urllib.request
from typing import Any

LIMIT = 4 * 1024 * 1024  # bytes of an answer that are read


def get(question: dict[str, Any], path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
    """Status and text; status 0 when there was no answer."""
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(question["url"] + path, data)
    request.add_header("Content-Type", "application/json")
    if question["key"]:
        request.add_header("Authorization", "Bearer " + question["key"])
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=question["timeout"]) as answer:
            return answer.status, answer.read(LIMIT).decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read(2000).decode(errors="replace")
    except Exception as error:
        return 0, f"{type(error).__name__}: {error}"


def completion(question: dict[str, Any]) -> dict[str, Any]:
    body = {
        "model": question["model"],
        "messages": [{"role": "user", "content": "What is 2+2?"}],
        "max_tokens": 8,
        "temperature": 0,
    }
    status, text = get(question, "/v1/chat/completions", body)
    try:
        choice = json.loads(text)["choices"][0]
        message = choice["message"]
        return {
            "status": status,
            "text": (message.get("reasoning_content") or "") + (message.get("content") or ""),
            "finish": choice.get("finish_reason"),
        }
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return {"status": status, "error": text[:300]}


def info(question: dict[str, Any]) -> dict[str, Any]:
    for path in ("/server_info", "/get_server_info"):
        status, text = get(question, path)
        if status != 200:
            continue
        with contextlib.suppress(ValueError, AttributeError, RecursionError):  # a page of something in between
            return {"status": status, "info": {k: v for k, v in json.loads(text).items() if k != "internal_states"}}
    return {"status": status, "error": text[:300]}


def live(question: dict[str, Any]) -> dict[str, Any]:
    status, text = get(question, "/metrics")
    counts = {"running": 0.0, "queued": 0.0}
    for line in text.splitlines():
        for name, metric in (("running", "sglang:num_running_reqs"), ("queued", "sglang:num_queue_reqs")):
            if line.startswith((metric + "{", metric + " ")):
                with contextlib.suppress(ValueError):
                    counts[name] += float(line.rsplit(" ", 1)[1])
    return {"status": status, **counts}


def main() -> None:
    question = json.load(sys.stdin)
    answer = {"completion": completion, "info": info, "live": live}[question["ask"]](question)
    for name in ("api_key", "admin_api_key"):
        answer.get("info", {}).pop(name, None)
    said, shown = json.dumps(answer), json.dumps(question["key"])[1:-1]
    print(said.replace(shown, "***") if shown else said)  # wherever else the server shows it


if __name__ == "__main__":
    main()
