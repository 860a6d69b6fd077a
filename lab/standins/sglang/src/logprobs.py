"""Log probabilities in the shapes of OpenAI's two endpoints and of /generate.

Numbers are made up, stable for a text; NaN where the model is sick.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

from .engine import Request
from .words import WORDS, token_id

_NAN_ROW = ("!", '"', "#")  # what top-k gives when all logits are NaN: tokens 0, 1, 2


def row(text: str, place: int, top: int, *, broken: bool) -> list[tuple[str, float | None]]:
    """The token itself and the `top` best, best first; the token is the best one.

    None stands for NaN, which JSON cannot say.
    """
    if broken:
        return [(token, None) for token in _NAN_ROW[: max(top, 1)]]
    seed = zlib.crc32(f"{place}{text}".encode())
    first = -(seed % 9973) / 9973 * 0.4
    # The others share what is left, halving from one to the next, so that the best of them is always less
    # likely than the token.
    left = math.log(max(1 - math.exp(first), 1e-4)) - 0.7
    others = [(f" {WORDS[(seed // 7 + n) % len(WORDS)]}", left - 0.7 * n) for n in range(max(top - 1, 0))]
    return [(text, first), *others]


def chat(text: str, place: int, top: int, *, broken: bool) -> dict[str, Any]:
    """One entry of choices[].logprobs.content."""
    rows = row(text, place, top, broken=broken)
    shown = [{"token": token, "bytes": list(token.encode()), "logprob": value} for token, value in rows]
    return {**shown[0], "top_logprobs": shown[:top]}


def legacy(entries: list[tuple[str, int]], top: int, *, broken: bool) -> dict[str, Any]:
    """choices[].logprobs of /v1/completions for (token, place) pairs. SGLang gives -1 for every offset."""
    rows = [row(text, place, top, broken=broken) for text, place in entries]
    return {
        "text_offset": [-1] * len(rows),
        "token_logprobs": [one[0][1] for one in rows],
        "tokens": [one[0][0] for one in rows],
        "top_logprobs": [dict(one[:top]) for one in rows],
    }


def native(request: Request, pieces: list[str], top: int) -> dict[str, Any]:
    """The four fields of meta_info: [logprob, token id, text or null]."""
    rows = [row(text, place, top, broken=request.broken) for place, text in enumerate(pieces)]
    found: dict[str, Any] = {
        "input_token_logprobs": [],
        "output_token_logprobs": [[one[0][1], token_id(one[0][0]), None] for one in rows],
        "output_token_logprobs_length": len(rows),
    }
    if top:
        found["input_top_logprobs"] = []
        found["output_top_logprobs"] = [[[value, token_id(token), None] for token, value in one[:top]] for one in rows]
    return found
