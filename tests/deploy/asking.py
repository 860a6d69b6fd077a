"""A client that keeps asking while something is deployed, and counts what became of every request."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from typing import Any


class Client:
    """Asks from some threads, half of them streamed."""

    def __init__(self, url: str, key: str | None = None, *, threads: int = 4) -> None:
        self.url, self.key = url, key
        self.ends, self.went_wrong = Counter[str](), list[str]()
        self._sent: list[tuple[float, bool]] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number % 2 == 0,)) for number in range(threads)]

    def __enter__(self) -> Client:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def all_good_from_now(self, count: int = 3, seconds: float = 30) -> bool:
        """Whether so many requests that are sent from now on are answered, and none of them fails."""
        began = until = time.monotonic()
        until += seconds
        while time.monotonic() < until:
            since = [good for sent, good in list(self._sent) if sent >= began]
            if not all(since):
                return False
            if len(since) >= count:
                return True
            time.sleep(0.05)
        return False

    @property
    def tail(self) -> str:
        """The last failures, a line each: time, status and the end of what was said."""
        return "\n".join(one[:16] + one[-40:] for one in self.went_wrong[-6:]) + f"\n{time.time():.1f} {self.ends}"

    def _ask(self, streamed: bool) -> None:
        while not self._stop.is_set():
            body = {
                "model": "glm-5",
                "max_tokens": 24,
                "temperature": 0,
                "stream": streamed,
                "chat_template_kwargs": {"enable_thinking": False},
                "messages": [{"role": "user", "content": "What is 2+2?"}],
            }
            sent = time.monotonic()
            said = ask(self.url, body, self.key)
            good = said[0] == 200 and ("[DONE]" in said[1] if streamed else "equals 4" in said[1])
            self._sent.append((sent, good))
            self.ends["good" if good else "failed"] += 1
            if not good:
                self.went_wrong.append(f"{time.time():.1f} {said[0]} {said[1][-200:]}")
            self._stop.wait(0.1)


def ask(url: str, body: dict[str, Any], key: str | None = None) -> tuple[int, str]:
    """Status and text; status 0 where there was no answer."""
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except (OSError, ValueError) as error:
        return 0, str(error)
    except Exception as error:  # a stream that breaks in the middle
        return 0, f"{type(error).__name__}: {error}"
