"""How long prompts and answers are: fixed, uniform between two numbers, or pairs drawn from a file."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MOST = 10_000_000  # tokens
WORKLOADS = {
    "prefill-heavy": ("4096", "128", 0.0),
    "decode-heavy": ("128", "1024", 0.0),
    "shared-prefix": ("2048", "256", 0.75),
}
"""Name -> prompt length, answer length, part of the prompt that all share. The lengths can be given apart."""


@dataclass(frozen=True)
class Lengths:
    """Pairs of (prompt, answer) tokens; `draw` gives one. `said` is the text that describes them."""

    low: tuple[int, int]
    high: tuple[int, int]
    pairs: tuple[tuple[int, int], ...] = ()
    said: str = ""

    @property
    def fixed(self) -> bool:
        return not self.pairs and self.low == self.high

    @property
    def mean(self) -> tuple[int, int]:
        ends = self.pairs or (self.low, self.high)
        prompts, answers = zip(*ends, strict=True)
        return round(sum(prompts) / len(ends)), round(sum(answers) / len(ends))

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its answer: what the server's context must hold."""
        return max((prompt + answer for prompt, answer in self.pairs), default=sum(self.high))

    def draw(self, rng: random.Random) -> tuple[int, int]:
        if self.pairs:
            return rng.choice(self.pairs)
        if self.fixed:
            return self.low
        return rng.randint(self.low[0], self.high[0]), rng.randint(self.low[1], self.high[1])


def lengths_of(prompt: str, answer: str, file: Path | None = None) -> Lengths:
    """From `512` or `256-1024` for each, or from a file with `[[prompt, answer], ...]`. Raises ValueError in words."""
    if file is not None:
        pairs = _pairs(file)
        prompts, answers = zip(*pairs, strict=True)
        said = f"{len(pairs)} pairs of {file.name}"
        return Lengths((min(prompts), min(answers)), (max(prompts), max(answers)), pairs, said)
    (low_in, high_in), (low_out, high_out) = _range("input-len", prompt), _range("output-len", answer)
    return Lengths((low_in, low_out), (high_in, high_out), said=f"{prompt} in, {answer} out")


def _range(name: str, text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    if not re.fullmatch("[0-9]{1,9}(-[0-9]{1,9})?", text):
        raise ValueError(f"{name}: {text[:40]!r} is neither a length (512) nor a range (256-1024)")
    ends = int(low), int(high or low)
    if not 1 <= ends[0] <= ends[1] < MOST:
        raise ValueError(f"{name}: {text!r}: lengths are positive, and the lower end comes first")
    return ends


def _pairs(file: Path) -> tuple[tuple[int, int], ...]:
    wanted = "wanted: [[prompt tokens, answer tokens], ...]"
    try:
        told = json.loads(file.read_text())
    except OSError as error:
        raise ValueError(f"lengths: {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"lengths: {file}: {error}; {wanted}") from None
    if not isinstance(told, list) or not told:
        raise ValueError(f"lengths: {file}: {wanted}")
    for number, pair in enumerate(told, 1):
        if not _is_pair(pair):
            raise ValueError(f"lengths: {file}: entry {number} is {json.dumps(pair)[:60]}; {wanted}")
    return tuple((pair[0], pair[1]) for pair in told)


def _is_pair(pair: object) -> bool:
    if not isinstance(pair, Sequence) or len(pair) != 2:
        return False
    return all(isinstance(one, int) and not isinstance(one, bool) and 0 < one < MOST for one in pair)
