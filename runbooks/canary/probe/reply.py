"""One answer of an OpenAI-compatible server, as plain values: what the judge looks at."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_NAN_STOP = re.compile(r"nan[ _-]*happened", re.IGNORECASE)
_NAN_WORDS = re.compile(
    r"not JSON compliant|out of range float"  # sglang #5984, vllm #13035: a NaN logprob met the JSON encoder
    r"|type must be number, but is null|unsupported value: (?:NaN|[+-]?Inf)"  # the same in C++ (nlohmann) and in Go
    r"|\bNaN\b.{0,40}\b(logits|detected|happened|values)|\b(logits|probabilit\w+|tensor)\b.{0,60}\bnan\b|nan detected",
    re.IGNORECASE,
)
_THINKS = re.compile(r"\s*<think(ing)?>")
_MARKUP = re.compile(r"\s*(?:<!doctype|<html|<\?xml|<head|<center|<h1)", re.IGNORECASE)
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
    """`status` is 0 where no HTTP status came back; `failure` then says refused, dropped, silent or unreadable, and
    `error` what was seen. Times in seconds."""

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
    echoed: bool = False  # the prompt comes first, and its first token has no logprob: nothing stands before it
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

    @property
    def too_long(self) -> bool:
        """The server says that the prompt does not fit; in the words of SGLang, vLLM, TGI and llama.cpp."""
        words = ("context", "longer than", "too long", "too large", "maximum input", "exceed")
        return self.status in (400, 413, 422) and any(word in self.error.lower() for word in words)

    @property
    def speaks_of_nan(self) -> bool:
        return bool(_NAN_WORDS.search(self.error))

    @property
    def thinking_still(self) -> bool:
        """It spent its tokens on thinking, so that they ended before its answer did."""
        thinks = self.reasoning or _THINKS.match(self.content)
        return bool(thinks) and self.finish_reason == "length"

    @property
    def length(self) -> int:
        """Completion tokens; where the server counts none, words and signs, of which a text never has more."""
        if self.completion_tokens is not None:
            return self.completion_tokens
        return max(len(re.findall(r"\w+|[^\w\s]", self.text)), len(self.text) // 6)


def read_body(reply: Reply, body: bytes, *, stream: bool) -> Reply:
    """Fill a reply from a whole body (also of a capture). Never raises: what cannot be read becomes `failure` or
    `error`."""
    text = body.decode("utf-8", "replace")
    reply.streamed = stream
    reply.nan_stop = bool(_NAN_STOP.search(text))
    if reply.status != 200:
        reply.error = _words_of_error(text)
        return reply
    if stream and not text.lstrip().startswith("{"):  # some servers answer in one piece, whatever was asked
        for document in _events(reply, text):
            _take(reply, document)
        if not reply.chunks and not reply.done_seen:
            reply.failure, reply.error = "unreadable", _words_of_error(text)
        return reply
    reply.streamed = False
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        reply.failure = "unreadable"
        reply.error = _words_of_error(text)
        return reply
    _take(reply, document)
    return reply


def _events(reply: Reply, text: str) -> Iterator[Any]:
    for line in re.split(r"\r\n|\n|\r", text):  # splitlines would also cut at U+2028, which JSON may hold
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            reply.done_seen = True
            continue
        reply.chunks += 1
        try:
            yield json.loads(data)
        except (ValueError, RecursionError):
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
        reply.content += _content(part.get("content")) or _string(part.get("text"))
        reply.reasoning += next((found for name in _REASONING if (found := _content(part.get(name)))), "")
    if choice.get("finish_reason") is not None:
        reason = choice["finish_reason"]
        reply.finish_reason = str(reason.get("type") if isinstance(reason, Mapping) else reason)
    if choice.get("matched_stop") is not None:
        reply.matched_stop = str(choice["matched_stop"])
    logprobs = choice.get("logprobs")
    if isinstance(logprobs, Mapping):
        reply.logprobs += _logprobs(logprobs)


_REASONING = ("reasoning_content", "reasoning", "thinking")  # SGLang and llama.cpp; vLLM and Ollama; others


def _content(value: Any) -> str:
    """A text, or a list of parts with a text each."""
    if isinstance(value, list):
        return "".join(_string(part.get("text")) if isinstance(part, Mapping) else _string(part) for part in value)
    return _string(value)


def _logprobs(logprobs: Mapping[str, Any]) -> Iterator[Logprob]:
    if logprobs.get("content"):  # chat completions
        for entry in logprobs["content"]:
            if not isinstance(entry, Mapping):
                continue
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
    try:
        return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
    except OverflowError:  # a whole number of 400 digits
        return None


def _count(value: Any, before: int | None) -> int | None:
    return value if isinstance(value, int) else before


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _words_of_error(text: str) -> str:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return _plain(text)
    for key in ("error", "message", "detail"):
        inner = document.get(key) if isinstance(document, Mapping) else None
        if isinstance(inner, Mapping):
            inner = inner.get("message") or json.dumps(inner)
        if inner:
            return str(inner)[:300]
    return _plain(text)


def _plain(text: str) -> str:
    """On one line; of a web page its title, or else the words that people see."""
    if _MARKUP.match(text):
        title = re.search(r"<title>\s*([^<]+)", text, re.IGNORECASE)
        words = re.sub(r"<(style|script).*?</\1>|<[^>]+>", " ", text, flags=re.DOTALL | re.IGNORECASE)
        text = f"a web page: {title[1] if title else words}"
    return " ".join(text.split())[:300]
