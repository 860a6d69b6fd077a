"""What the lab can make this server do: /etc/lab-sglang.json, read once at start (another file: LAB_SGLANG_KNOBS).

Every field below is a key of that file. A failure mode can be tied to what the server resolved for itself, so that
a story can be played without a switch: {"fail": "nan", "fail_when": {"dsa_decode_backend": ["flashmla_kv"]}} fails
for the release that runs flashmla_kv and is healthy for the next one, which runs something else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

FILE = "/etc/lab-sglang.json"

FAILURES = {
    "": "healthy",
    "die_at_start": "the scheduler dies while it starts; `detail`: exit code (-9), or 'memory' for 'Not enough memory'",
    "never_ready": "listens, answers 503 on /health for ever",
    "hang_at_start": "never listens; the last line is the start of the graph capture",
    "nan": "NaN logits: greedy gives token 0 ('!') up to the limit, sampling with top_p < 1 kills the server",
    "nan_long": "nan, for prompts above 2,048 tokens only",
    "nan_busy": "nan, for every request that runs while more than `detail` (default 32) do",
    "nan_stop": "finish_reason stop, matched_stop 'NaN happened', no token",
    "logprob_500": "a request for logprobs gets HTTP 500 'Out of range float values are not JSON compliant'",
    "hang_after": "after `detail` requests (default 4) not one token more; /health answers 503 after 20 s",
    "crash_after": "after `detail` requests (default 4) the scheduler dies of a CUDA error",
    "error_in_stream": "a stream breaks with an error object inside the 200",
    "no_done": "a stream ends without [DONE]",
    "one_token": "every answer is one token long",
    "garbage": "fluent nonsense: one word again and again, as a wrong kernel gives without any NaN",
}


@dataclass(frozen=True)
class Knobs:
    """Times in seconds, step times in milliseconds.

    The defaults of c0, c1, c2 reproduce a published sweep: see speed.py.
    """

    start_delay: float = 1.0  # until the port is bound: loading weights and capturing graphs
    warmup: float = 0.5  # then 503 on /health until the warm-up request is answered
    c0: float = 18.4
    c1: float = 41.8
    c2: float = 0.129
    drain: float = 1.0  # a stop takes at least so long; the real one about 4 s
    prefill_ms: float = 0.02  # for one prompt token that is not cached
    graph_max_bs: int | None = None  # None: from the arguments, else 512
    eager_factor: float = 1.6  # a step without CUDA graph takes so much longer
    thinking: int = 48  # tokens of reasoning, where a reasoning parser is on and the request does not switch it off
    max_total_num_tokens: int | None = None  # None: from --max-total-tokens, else what an 8 x 96 GB box has
    fail: str = ""
    detail: int | str | None = None
    fail_when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    answers: Mapping[str, str] = field(default_factory=dict)  # more known answers: regular expression -> text

    def failure(self, resolved: Mapping[str, object]) -> str:
        """The failure mode that is on for a server with these resolved settings."""
        if all(resolved.get(key) in wanted for key, wanted in self.fail_when.items()):
            return self.fail
        return ""


def read(path: str | None = None) -> Knobs:
    """The knobs of this guest. Raises ValueError that names the file and the key that is not known."""
    file = Path(path or os.environ.get("LAB_SGLANG_KNOBS") or FILE)
    try:
        text = file.read_text()
    except OSError:
        return Knobs()
    return parse(json.loads(text), str(file))


def parse(raw: Mapping[str, Any], where: str = FILE) -> Knobs:
    known = {one.name for one in fields(Knobs)}
    if unknown := sorted(set(raw) - known):
        raise ValueError(f"{where}: unknown knob {unknown[0]!r}; known: {', '.join(sorted(known))}")
    if raw.get("fail", "") not in FAILURES:
        raise ValueError(f"{where}: unknown failure {raw['fail']!r}; known: {', '.join(filter(None, FAILURES))}")
    when = {
        key: tuple(value if isinstance(value, list) else [value]) for key, value in raw.get("fail_when", {}).items()
    }
    return Knobs(**{**raw, "fail_when": when})
