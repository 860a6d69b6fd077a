"""What clients send: the checks that SGLang makes, with its words, and the sampling parameters that the stand-in
honours."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .words import split, token_id

SPECIAL = {
    "[gMASK]": 154_822,
    "<sop>": 154_824,
    "<|system|>": 154_826,
    "<|user|>": 154_827,
    "<|assistant|>": 154_828,
    "<|observation|>": 154_829,
}


class BadRequest(Exception):
    """Refused with HTTP 400. `validation`: pydantic's text instead of SGLang's own."""

    def __init__(self, message: str, *, validation: bool = False) -> None:
        super().__init__(message)
        self.validation = validation


@dataclass(frozen=True)
class Sampling:
    """`max_new` None: as much as the context has room for."""

    max_new: int | None
    temperature: float
    top_p: float
    stop: tuple[str, ...]
    stop_ids: frozenset[int]
    ignore_eos: bool
    seed: int | None
    n: int

    @property
    def asserts(self) -> bool:
        """Whether sampling goes by probabilities sorted for top-p, the path that asserts on NaN."""
        return self.temperature > 0 and self.top_p < 1


def sampling(body: Mapping[str, Any], *, limit: str, default: int | None) -> Sampling:
    """From an OpenAI body or a native `sampling_params`. `limit` is the field that holds the longest answer."""
    longest = body.get(limit)
    if limit == "max_tokens":
        longest = body.get("max_completion_tokens", longest)
    longest = _integer(limit, longest)
    if longest is not None and longest < 0:
        raise BadRequest(f"max_new_tokens must be at least 0, got {longest}.")
    temperature, top_p = _number("temperature", body.get("temperature"), 1.0), _number("top_p", body.get("top_p"), 1.0)
    if temperature < 0 or not math.isfinite(temperature):
        raise BadRequest(f"temperature must be a non-negative finite number, got {temperature}.")
    if not 0 < top_p <= 1:
        raise BadRequest(f"top_p must be in (0, 1], got {top_p}.")
    stop = body.get("stop") or ()
    return Sampling(
        max_new=default if longest is None else longest,
        temperature=temperature,
        top_p=top_p,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_ids=frozenset(body.get("stop_token_ids") or ()),
        ignore_eos=bool(body.get("ignore_eos")),
        seed=body.get("seed", body.get("sampling_seed")),
        n=int(body.get("n") or 1),
    )


def _integer(name: str, value: Any) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    try:
        return int(value)
    except (TypeError, ValueError):
        said = "Input should be a valid integer, unable to parse string as an integer"
        raise BadRequest(
            f"{{'type': 'int_parsing', 'loc': ('body', '{name}'), 'msg': '{said}', 'input': {value!r}}}",
            validation=True,
        ) from None


def _number(name: str, value: Any, default: float) -> float:
    if value is None:
        return default
    if isinstance(value, (int, float)):
        return float(value)
    said = "Input should be a valid number, unable to parse string as a number"
    raise BadRequest(
        f"{{'type': 'float_parsing', 'loc': ('body', '{name}'), 'msg': '{said}', 'input': {value!r}}}", validation=True
    )


@dataclass(frozen=True)
class Prompt:
    """Token ids, and the text that an answer is looked up by."""

    ids: tuple[int, ...]
    text: str

    @property
    def seed(self) -> int:
        return zlib.crc32(repr(self.ids[-64:]).encode()) if not self.text else zlib.crc32(self.text.encode())


def of_text(text: str) -> Prompt:
    return Prompt(tuple(token_id(piece) for piece in split(text)), text)


def of_ids(ids: Sequence[int]) -> Prompt:
    return Prompt(tuple(int(one) for one in ids), "")


def of_messages(body: Mapping[str, Any]) -> Prompt:
    """GLM's chat template in outline: [gMASK]<sop>, then a role and its text for each message, then <|assistant|>."""
    messages = body.get("messages")
    if messages is None:
        given = {**body, "tool_choice": "none"}  # pydantic shows the body with the default that SGLang put in
        said = f"'msg': 'Field required', 'input': {given!r}"
        raise BadRequest(f"{{'type': 'missing', 'loc': ('body', 'messages'), {said}}}", validation=True)
    if not isinstance(messages, list):
        said = "Input should be a valid list"
        raise BadRequest(
            f"{{'type': 'list_type', 'loc': ('body', 'messages'), 'msg': '{said}', 'input': {messages!r}}}",
            validation=True,
        )
    if not messages:
        raise BadRequest("Messages cannot be empty.")
    ids = [SPECIAL["[gMASK]"], SPECIAL["<sop>"]]
    texts = []
    for message in messages:
        text = content(message)
        texts.append(text)
        ids.append(SPECIAL.get(f"<|{message.get('role')}|>", SPECIAL["<|user|>"]))
        ids += (token_id(piece) for piece in split(text))
    return Prompt((*ids, SPECIAL["<|assistant|>"]), "\n".join(texts))


def content(message: Any) -> str:
    """The text of a message, from a string or from parts."""
    found = message.get("content") if isinstance(message, dict) else None
    if isinstance(found, list):
        return "".join(part.get("text", "") for part in found if isinstance(part, dict))
    return str(found or "")


def fits(prompt: Prompt, wanted: int | None, context: int) -> int:
    """The length that the answer may have. Raises BadRequest in SGLang's words."""
    length = len(prompt.ids)
    if length >= context:
        raise BadRequest(f"The input ({length} tokens) is longer than the model's context length ({context} tokens).")
    if wanted is None:
        return max(context - length - 1, 0)
    if length + wanted > context:
        raise BadRequest(
            f"Requested token count exceeds the model's maximum context length of {context} tokens. You "
            f"requested a total of "
            f"{length + wanted} tokens: {length} tokens from the input messages and {wanted} tokens for "
            f"the completion. Please reduce "
            "the number of tokens in the input messages or the completion to fit within the limit."
        )
    return wanted
