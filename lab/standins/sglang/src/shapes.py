"""The JSON and SSE of OpenAI's endpoints as SGLang writes them, field for field and in its order.

Two dialects of the chat stream: up to 0.5.12 every delta holds role, content, reasoning_content and tool_calls
(null where there is none) and every chunk a usage; from 0.5.13 on (entrypoints/openai/sse_utils.py) only
reasoning_content is always there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from . import release
from .engine import Finish, Request


def compact(value: object) -> str:
    """JSON without blanks, as orjson and msgspec write it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


@lru_cache(maxsize=4096)
def quoted(text: str) -> str:
    return compact(text)


@dataclass(frozen=True)
class Dialect:
    """What one release writes."""

    late_head: bool  # 0.5.10: the 200 of a stream waits for the first token, so that a bad request can still be a 400
    lean_delta: bool  # 0.5.13.post1
    weight_versions: bool  # 0.5.19
    completion_details: bool  # 0.5.23

    @classmethod
    def of(cls, version: str) -> Dialect:
        return cls(*(release.at_least(one, this=version) for one in ("0.5.10", "0.5.13.post1", "0.5.19", "0.5.23")))


@dataclass(frozen=True)
class Head:
    """What all chunks of a response share."""

    id: str
    created: int
    model: str
    dialect: Dialect


def usage(requests: list[Request], dialect: Dialect, *, cache_report: bool) -> dict[str, Any]:
    """The prompt is counted once for each distinct prompt, completions are summed."""
    prompts = {id(one.prompt): one for one in requests}
    prompt = sum(len(one.prompt) for one in prompts.values())
    made = sum(len(one.ids) for one in requests)
    cached = sum(one.cached for one in prompts.values())
    shown = cache_report and (cached > 0 or dialect.lean_delta)  # older releases do not report a miss
    found = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + made,
        "completion_tokens": made,
        "prompt_tokens_details": {"cached_tokens": cached} if shown else None,
        "reasoning_tokens": sum(one.reasoning for one in requests),
    }
    return {**found, "completion_tokens_details": None} if dialect.completion_details else found


def metadata(request: Request, dialect: Dialect) -> dict[str, Any]:
    found: dict[str, Any] = {"weight_version": "default"}
    if dialect.weight_versions:
        found["weight_versions"] = [{"version": "default", "start": 0, "end": len(request.ids)}]
    return found


def reason(finish: Finish | None) -> dict[str, Any]:
    """finish_reason and matched_stop of a choice."""
    if finish is None:
        return {"finish_reason": None, "matched_stop": None}
    return {"finish_reason": finish.kind, "matched_stop": finish.matched}


def chat_choice(
    index: int, request: Request, content: str, reasoning: str, logprobs: object, dialect: Dialect, *, parsed: bool
) -> dict[str, Any]:
    """One choice of a whole chat completion. `parsed`: a reasoning parser is on, so an empty half is null."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": content if content or (dialect.lean_delta and not parsed) else None,
        "reasoning_content": reasoning or None,
    }
    if not dialect.lean_delta:
        message["tool_calls"] = None
    return {"index": index, "message": message, "logprobs": logprobs, **reason(request.finish)}


def chat_chunk(
    head: Head,
    index: int,
    delta: dict[str, Any],
    *,
    finish: Finish | None = None,
    logprobs: object = None,
    usage: object = None,
) -> str:
    """One SSE event of a chat stream. `delta` holds any of role, content and reasoning_content."""
    if head.dialect.lean_delta:
        shown: dict[str, Any] = {
            "reasoning_content": delta.get("reasoning_content"),
            **{k: delta[k] for k in ("role", "content") if k in delta},
        }
    else:
        shown = {key: delta.get(key) for key in ("role", "content", "reasoning_content", "tool_calls")}
    body: dict[str, Any] = {
        "id": head.id,
        "object": "chat.completion.chunk",
        "created": head.created,
        "model": head.model,
        "choices": [{"index": index, "delta": shown, "logprobs": logprobs, **reason(finish)}],
    }
    if usage is not None or not head.dialect.lean_delta:
        body["usage"] = usage
    return event(body)


def chat_frame(head: Head, index: int, key: str) -> tuple[str, str]:
    """The parts before and after the text of a plain token event, so that the hot path only joins three strings."""
    before, after = chat_chunk(head, index, {key: "\0"}).split('"\\u0000"')
    return before, after


def chat_usage(head: Head, counted: dict[str, Any]) -> str:
    return event(
        {
            "id": head.id,
            "object": "chat.completion.chunk",
            "created": head.created,
            "model": head.model,
            "choices": [],
            "usage": counted,
        }
    )


def text_chunk(
    head: Head, index: int, text: str, *, finish: Finish | None = None, logprobs: object = None, usage: object = None
) -> str:
    """One SSE event of a /v1/completions stream."""
    choice = {"index": index, "text": text, "logprobs": logprobs, **reason(finish)}
    return event(
        {
            "id": head.id,
            "object": "text_completion",
            "created": head.created,
            "model": head.model,
            "choices": [choice],
            "usage": usage,
        }
    )


def text_frame(head: Head, index: int) -> tuple[str, str]:
    before, after = text_chunk(head, index, "\0").split('"\\u0000"')
    return before, after


def text_usage(head: Head, counted: dict[str, Any]) -> str:
    """This one leaves out what is null."""
    shown = {key: value for key, value in counted.items() if value is not None}
    return event(
        {
            "id": head.id,
            "object": "text_completion",
            "created": head.created,
            "model": head.model,
            "choices": [],
            "usage": shown,
        }
    )


def event(body: object) -> str:
    return f"data: {compact(body)}\n\n"


DONE = "data: [DONE]\n\n"


def error(message: str, *, kind: str = "BadRequestError", code: int = 400) -> dict[str, Any]:
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}
