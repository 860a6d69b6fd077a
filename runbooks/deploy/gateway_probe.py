"""Runs on the gateway's machine, on `python3 -c` with JSON on stdin: one question to the gateway, one line of JSON.

    {"url": "http://127.0.0.1:30080", "key": "", "ask": "workers" | "add" | "remove", "worker": "http://10.0.0.1:30000"}

The answer is always the list of workers afterwards: {"status": 200, "workers": [{"url": ..., "healthy": true}]}.
Standard library only; the key is never on a command line.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.parse
import urllib.request
from typing import Any


def call(
    question: dict[str, Any], path: str, body: dict[str, Any] | None = None, method: str = "GET"
) -> tuple[int, str]:
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(question["url"] + path, data, method=method)
    request.add_header("Content-Type", "application/json")
    if question["key"]:
        request.add_header("Authorization", "Bearer " + question["key"])
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=10) as answer:
            return answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read(2000).decode(errors="replace")
    except Exception as error:
        return 0, f"{type(error).__name__}: {error}"


def main() -> None:
    question = json.load(sys.stdin)
    status, text = call(question, "/workers")
    workers = json.loads(text)["workers"] if status == 200 else []
    same = [worker for worker in workers if worker["url"].rstrip("/") == question.get("worker")]
    if status == 200 and question["ask"] == "add" and not same:
        body = {"url": question["worker"]}
        if question["key"]:
            body["api_key"] = question["key"]
        status, text = call(question, "/workers", body, "POST")
    for worker in same if question["ask"] == "remove" else []:
        status, text = call(question, "/workers/" + urllib.parse.quote(worker["id"], safe=""), None, "DELETE")
    if status not in (200, 202):
        print(json.dumps({"status": status, "error": text[:300]}))
        return
    status, text = call(question, "/workers")
    workers = json.loads(text)["workers"] if status == 200 else []
    rows = [{"url": one["url"].rstrip("/"), "healthy": bool(one.get("is_healthy"))} for one in workers]
    print(json.dumps({"status": status, "workers": rows}))


if __name__ == "__main__":
    main()
