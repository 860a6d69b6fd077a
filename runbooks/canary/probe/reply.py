"""One answer of an OpenAI-compatible server, as plain values: what the judge looks at."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_NAN_STOP = re.compile(r"nan[ _-]*happened", re.IGNORECASE)
# SGLang ends a request "normally" when a sampled id is outside the vocabulary: matched_stop (OpenAI routes) or
# meta_info.finish_reason.matched (/generate) is then "NaN happened" (sglang PR #8367, schedule_batch.py).


@dataclass(frozen=True)
class Logprob:
    """One position: the chosen token's logprob and those of the other candidates. None: the server sent null."""

    token: str
    value: float | None
    others: tuple[tuple[str, float | None], ...] = ()


@dataclass
class Reply:
    """`status` is 0 where no HTTP status came back; `failure` then says refused, dropped, silent or unreadable. Times
    in seconds."""

    status: int = 0
    content: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    matched_stop: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    logprobs: list[Logprob] = field(default_factory=list)
    asked_logprobs: bool = False
    streamed: bool = False
    done_seen: bool = False
    whole: bool = True  # False: the body ended before HTTP said that it would
    nan_stop: bool = False
    max_tokens: int | None = None
    error: str = ""  # the server's own words, from an error body or an error object in a stream
    failure: str = ""
    chunks: int = 0
    first_byte: float | None = None
    seconds: float = 0.0

    @property
    def text(self) -> str:
        return self.reasoning + self.content

    @property
    def answered(self) -> bool:
        return self.status == 200 and not self.failure and not self.error


def read_body(reply: Reply, body: bytes, *, stream: bool) -> Reply:
    """Fill a reply from a whole body (also of a capture). Never raises: what cannot be read becomes `failure` or
    `error`."""
    text = body.decode("utf-8", "replace")
    reply.streamed = stream
    reply.nan_stop = bool(_NAN_STOP.search(text))
    if reply.status != 200:
        reply.error = _words_of_error(text)
        return reply
    if stream:
        for document in _events(reply, text):
            _take(reply, document)
        return reply
    try:
        document = json.loads(text)
    except ValueError:
        reply.failure = "unreadable"
        reply.error = text[:300]
        return reply
    _take(reply, document)
    return reply


def _events(reply: Reply, text: str) -> Iterator[Any]:
    for line in text.splitlines():
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            reply.done_seen = True
            continue
        reply.chunks += 1
        try:
            yield json.loads(data)
        except ValueError:
            reply.whole = False  # a line cut in the middle


def _take(reply: Reply, document: Any) -> None:
    if not isinstance(document, Mapping):
        return
    if document.get("error") or document.get("object") == "error":
        reply.error = _words_of_error(json.dumps(document))
    usage = document.get("usage")
    if isinstance(usage, Mapping):
        reply.prompt_tokens = _count(usage.get("prompt_tokens"), reply.prompt_tokens)
        reply.completion_tokens = _count(usage.get("completion_tokens"), reply.completion_tokens)
        details = usage.get("prompt_tokens_details")
        if isinstance(details, Mapping):
            reply.cached_tokens = _count(details.get("cached_tokens"), reply.cached_tokens)
    for choice in document.get("choices") or ():
        if isinstance(choice, Mapping):
            _take_choice(reply, choice)


def _take_choice(reply: Reply, choice: Mapping[str, Any]) -> None:
    part = choice.get("delta") or choice.get("message") or choice
    if isinstance(part, Mapping):
        reply.content += _string(part.get("content")) or _string(part.get("text"))
        reply.reasoning += _string(part.get("reasoning_content")) or _string(part.get("reasoning"))
    if choice.get("finish_reason") is not None:
        reason = choice["finish_reason"]
        reply.finish_reason = str(reason.get("type") if isinstance(reason, Mapping) else reason)
    if choice.get("matched_stop") is not None:
        reply.matched_stop = str(choice["matched_stop"])
    logprobs = choice.get("logprobs")
    if isinstance(logprobs, Mapping):
        reply.logprobs += _logprobs(logprobs)


def _logprobs(logprobs: Mapping[str, Any]) -> Iterator[Logprob]:
    if logprobs.get("content"):  # chat completions
        for entry in logprobs["content"]:
            token = _string(entry.get("token"))
            others = ((_string(o.get("token")), _number(o.get("logprob"))) for o in entry.get("top_logprobs") or ())
            yield Logprob(token, _number(entry.get("logprob")), tuple(o for o in others if o[0] != token))
        return
    tops = logprobs.get("top_logprobs") or []  # completions
    for at, (token, value) in enumerate(
        zip(logprobs.get("tokens") or (), logprobs.get("token_logprobs") or (), strict=False)
    ):
        top = tops[at] if at < len(tops) and isinstance(tops[at], Mapping) else {}
        yield Logprob(str(token), _number(value), tuple((str(k), _number(v)) for k, v in top.items() if k != token))


def _number(value: Any) -> float | None:
    """A finite number, else None. json.loads reads NaN and Infinity, which some servers write although JSON forbids
    them."""
    if isinstance(value, (int, float)) and math.isfinite(value):
        return float(value)
    return None


def _count(value: Any, before: int | None) -> int | None:
    return value if isinstance(value, int) else before


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _words_of_error(text: str) -> str:
    try:
        document = json.loads(text)
    except ValueError:
        return text.strip()[:300]
    for key in ("error", "message", "detail"):
        inner = document.get(key) if isinstance(document, Mapping) else None
        if isinstance(inner, Mapping):
            inner = inner.get("message") or json.dumps(inner)
        if inner:
            return str(inner)[:300]
    return text.strip()[:300]
