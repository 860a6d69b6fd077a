"""From bytes to requests: what each answer held, when its tokens came, and whether it is a success."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .alike import Alike, alike
from .wire import Event, cut

ENOUGH, LONG = 100, 1_000  # pieces of an answer that are held against each other
CONTINUOUS, FINAL, EVENTS = "usage of each chunk", "final usage, spread over the text", "events (no usage sent)"


@dataclass
class Request:
    """One request. Times in ns of the host's monotonic clock; None: it did not happen."""

    slot: int
    asked: int  # output tokens asked for
    start: int
    end: int
    prompt: int = 0  # prompt tokens asked for; 0 in logs that do not say
    sent: int = 0  # the last byte of the request was given to the kernel
    is_first: bool = False  # the first of its slot: shortened, so not part of latency statistics
    is_cut: bool = False  # taken down by us at the end of a point: neither a success nor a failure
    status: int | None = None
    error: str | None = None
    finish_reason: str | None = None
    matched_stop: str | None = None
    done: bool = False  # [DONE] seen
    arrivals: list[tuple[int, int]] = field(
        default_factory=list
    )  # (time, tokens known by then), only where tokens came
    tokens: int = 0
    source: str = EVENTS
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    digest: str = ""  # first 16 hex digits of the SHA-256 of the text
    garbage: str | None = None
    is_random: bool = False  # no failure of one answer: what it says of a point is said in validity.py
    events: int = 0

    @property
    def first(self) -> int | None:
        return self.arrivals[0][0] if self.arrivals else None

    @property
    def last(self) -> int | None:
        return self.arrivals[-1][0] if self.arrivals else None

    @property
    def failure(self) -> str | None:
        """The kind of failure, or None for a success (and for a request that was cut while it was well)."""
        if self.error:
            return self.error
        if self.status is not None and self.status != 200:
            return f"HTTP {self.status}"
        if self.matched_stop == "NaN happened":
            return "NaN stop"
        if self.garbage:
            return f"garbage: {self.garbage}"
        if self.is_cut:
            return None
        if not self.finish_reason and not self.done:
            return "stream ended without finish_reason and [DONE]"
        if self.tokens != self.asked:
            return "short output" if self.tokens < self.asked else "long output"
        return None


def request_of(meta: dict[str, Any], reads: Sequence[tuple[int, bytes]]) -> Request:
    """One block of the raw log as a request."""
    request = Request(
        slot=meta["slot"],
        asked=meta["asked"],
        start=meta["start"],
        end=meta["end"],
        prompt=meta.get("prompt", 0),
        sent=meta.get("sent", 0),
        is_first=meta.get("first", False),
        is_cut=meta.get("cut", False),
        status=meta.get("status"),
        error=meta.get("error"),
    )
    try:
        head, events, body, complete = cut([data for _, data in reads])
    except ValueError as error:
        request.error = request.error or f"protocol: {error}"
        return request
    if head is not None:
        request.status = head.status
    if head is None or head.status != 200:
        return request
    if not complete and (head.chunked or head.length is not None) and not request.is_cut:
        request.error = request.error or "the answer was cut off"
    _read_events(request, events, [at for at, _ in reads])
    if not events and not request.error and not request.is_cut:
        request.error = _error_text(body) or "no events in the answer"
    return request


def _read_events(request: Request, events: Sequence[Event], times: Sequence[int]) -> None:
    pieces: list[str] = []
    weights: list[tuple[int, int]] = []  # (time, bytes of text) for each event that carried text
    counted: list[tuple[int, int]] = []  # (time, completion_tokens) as the server said, event by event
    final: int | None = None
    so_far = ""
    model: Alike | None = None
    for event in events:
        if model and (found := model.read(event.data)):
            at, (text, count) = times[event.read], found
            pieces.append(text)
            weights.append((at, len(text.encode(errors="surrogatepass"))))
            if count is not None:
                counted.append((at, count))
                final = count
            request.events += 1
            continue
        if event.data == b"[DONE]":
            request.done = True
            continue
        try:
            message = json.loads(event.data)
        except (ValueError, RecursionError):
            request.error = request.error or "an event that is not JSON"
            continue
        if not isinstance(message, dict):
            continue
        if message.get("error"):
            request.error = (
                f"error in the stream: {_error_text(event.data)}"  # the cause; a lost connection is its effect
            )
            continue
        at = times[event.read]
        request.events += 1
        text, so_far = _text(message, so_far)
        _ending(request, message)
        if text:
            pieces.append(text)
            weights.append((at, len(text.encode(errors="surrogatepass"))))
        usage = message.get("usage") or message.get("meta_info")
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            final = usage["completion_tokens"]
            if message.get("choices") != []:  # the usage chunk at the end says how many, not when
                counted.append((at, final))
            _prompt(request, usage)
        if "choices" in message and not request.finish_reason and not (model and event.data.startswith(model.head)):
            model = alike(event.data, text)
    text = "".join(pieces)
    request.digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
    request.garbage = garbage(text, pieces, final or 0)
    request.is_random = is_random(pieces, final or 0)
    request.source, request.arrivals = _arrivals(counted, weights, final)
    request.tokens = request.arrivals[-1][1] if request.arrivals else 0


def _arrivals(
    counted: list[tuple[int, int]], weights: list[tuple[int, int]], final: int | None
) -> tuple[str, list[tuple[int, int]]]:
    """Tokens known at each moment. Several events of one read count at its one moment."""
    if len(counted) > 1 or (counted and not weights):
        points = counted + ([(counted[-1][0], final)] if final and final > counted[-1][1] else [])
        return CONTINUOUS, _rising(points)
    if not weights:
        return (FINAL if final is not None else EVENTS), []
    if final is None:
        return EVENTS, _rising([(at, count) for count, (at, _) in enumerate(weights, 1)])
    if final >= len(weights):  # at least one token an event; what is over goes where the text is
        spare, size = final - len(weights), sum(size for _, size in weights)
        seen = 0
        points = []
        for count, (at, length) in enumerate(weights, 1):
            seen += length
            points.append((at, count + spare * seen // size))
        return FINAL, _rising(points)
    return FINAL, _rising([(at, -(-final * count // len(weights))) for count, (at, _) in enumerate(weights, 1)])


def _rising(points: list[tuple[int, int]]) -> list[tuple[int, int]]:
    rising: list[tuple[int, int]] = []
    for at, total in points:
        if total <= (rising[-1][1] if rising else 0):
            continue
        if rising and rising[-1][0] == at:
            rising[-1] = (at, total)
        else:
            rising.append((at, total))
    return rising


def _text(message: dict[str, Any], so_far: str) -> tuple[str, str]:
    """The new text of an event: chat, completions, or SGLang's own API, whose text is cumulative."""
    choices = message.get("choices")
    if isinstance(choices, list):
        if not choices or not isinstance(choices[0], dict):
            return "", so_far
        delta = choices[0].get("delta")
        if not isinstance(delta, dict):
            return choices[0].get("text") or "", so_far
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        tools = json.dumps(delta["tool_calls"]) if delta.get("tool_calls") else ""
        return reasoning + (delta.get("content") or "") + tools, so_far
    text = message.get("text")
    if not isinstance(text, str):
        return "", so_far
    return (text[len(so_far) :], text) if text.startswith(so_far) else (text, so_far + text)


def _ending(request: Request, message: dict[str, Any]) -> None:
    choices = message.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        reason: Any = choices[0].get("finish_reason")
        matched: Any = choices[0].get("matched_stop")
    else:
        ending = (message.get("meta_info") or {}).get("finish_reason")
        reason, matched = (ending.get("type"), ending.get("matched")) if isinstance(ending, dict) else (None, None)
    if reason:
        request.finish_reason = str(reason)
        request.matched_stop = None if matched is None else str(matched)
        if reason == "abort":
            request.error = request.error or "aborted by the server"


def _prompt(request: Request, usage: dict[str, Any]) -> None:
    if isinstance(usage.get("prompt_tokens"), int):
        request.prompt_tokens = usage["prompt_tokens"]
    cached = usage.get("cached_tokens")
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict):
        cached = details.get("cached_tokens")
    if isinstance(cached, int):
        request.cached_tokens = max(request.cached_tokens, cached)


def _error_text(body: bytes) -> str:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return body[:120].decode("utf-8", "replace").strip()
    error = message.get("error") if isinstance(message, dict) else None
    if isinstance(error, dict):
        error = error.get("message")
    return str(error or message)[:120]


def garbage(text: str, pieces: Sequence[str], tokens: int) -> str | None:
    """Why this text cannot be the work of a healthy model, or None. It is a floor under the canary, not a replacement.

    Token 0 is `!` in GLM's vocabulary: greedy decoding of NaN logits gives `!!!!` to the end.
    """
    if tokens >= 8 and not text.strip():
        return "tokens, but no text"
    if len(text) >= 8 and text.count("!") > len(text) / 2:
        return "'!!!!'"
    if len(pieces) >= 16:
        piece, count = Counter(pieces).most_common(1)[0]
        # Two thirds, not half: a small healthy model, sampled behind its end of sequence, was seen at 53 %.
        if count > len(pieces) * 2 / 3 and piece.strip():
            return f"one token is most of the text: {piece.strip()[:20]!r}"
    return None


def is_random(pieces: Sequence[str], tokens: int) -> bool:
    """Whether hardly a token comes twice: NaN that an engine turned into equal chances reads like this (sglang #33187).

    Of a hundred tokens of any language about a third came before; of a hundred drawn from a vocabulary of 32,000 none
    or one. Told only of answers long enough, and where an event is a token: three tokens together seldom come twice.
    """
    some = pieces[:LONG]
    return len(some) >= ENOUGH and tokens <= 1.3 * len(pieces) and len(set(some)) > 0.95 * len(some)
