"""The prompts, as data: each is there for a failure that really happened, and says which.

Lengths are prompt tokens, aimed at by measuring how many tokens a word of the filler costs, and verified by the
server's own usage.
2,048 is GLM-5's index_topk: up to there attention is dense, above it the sparse kernels run; 64 is the page size of
its KV cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from . import prose
from .judge import Expect

THRESHOLD = 2048
PAGE = 64

ARITHMETIC = ("What is 2+2?", Expect(answer=(r"(?<!\d)4(?!\d)", r"\bfour\b"), wanted="4"))
CAPITAL = ("What is the capital of France?", Expect(answer=("Paris",), wanted="Paris"))
SKY = ("What color is the sky?", Expect(answer=("blue",), wanted="blue"))
COUNT = ("Count from 1 to 5.", Expect(answer=(r"1\D+2\D+3\D+4\D+5",), shortest=4, wanted="1, 2, 3, 4, 5"))
STORY = ("Write a long story.", Expect(shortest=16, prose=True))
EASY = (ARITHMETIC, CAPITAL, SKY, COUNT)

GREEDY: Mapping[str, Any] = {"temperature": 0}
SAMPLED: Mapping[str, Any] = {"temperature": 0.7, "top_p": 0.95}


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """`text` is the question itself; `length` (prompt tokens) puts it below that much filler. `streams` are sent at
    once. `prefix`: filler is the same for all prompts that share this word. `edge`: the prompt ends so many tokens past
    a page of the KV cache. `echo`: not a question, but a text whose own tokens the server is to weigh."""

    name: str
    why: str
    text: str
    expect: Expect
    max_tokens: int
    sampling: Mapping[str, Any] = field(default_factory=lambda: GREEDY)
    length: int | None = None
    logprobs: bool = False
    thinking: bool = False
    streams: int = 1
    prefix: str = ""
    edge: int | None = None
    echo: bool = False

    @property
    def needs(self) -> int:
        """Tokens of context that it takes."""
        return (self.length or 64) + (0 if self.edge is None else 2 * PAGE) + self.max_tokens


_NEEDLE = Expect(answer=(prose.NEEDLE_ANSWER,), fluent=False, known=False, wanted="7413")
_COUNTING = "Do not mind the text above. Count from 1 to 20 on one line, separated by commas."
_COUNTED = Expect(answer=(r"17\D+18\D+19\D+20",), fluent=False, known=False, shortest=8, wanted="1 to 20")

_ARITHMETIC = Prompt(
    name="arithmetic",
    why="greedy over NaN is token 0 for ever, with HTTP 200 and a healthy /health (vllm #55766, sglang #24321)",
    text=ARITHMETIC[0],
    expect=ARITHMETIC[1],
    max_tokens=24,
)
_CAPITAL = Prompt(
    name="capital",
    why=(
        "logprobs show NaN that the text hides: null, uniform, or HTTP 500 'not JSON compliant' (sglang #5984, vllm "
        "#52938)"
    ),
    text=CAPITAL[0],
    expect=CAPITAL[1],
    max_tokens=24,
    logprobs=True,
)
_STORY = Prompt(
    name="story",
    why="a broken expert is reached by some tokens only, so short answers miss it; 64 varied tokens meet most of them",
    text=STORY[0],
    expect=STORY[1],
    max_tokens=64,
)
_READING = Prompt(
    name="reading",
    why=(
        "NaN that the server replaces before it samples (SGLANG_SANITIZE_NAN_LOGITS, --enable-nan-detection) is still "
        "in the logprobs of the prompt's own tokens, which are taken before (sglang 0.5.23, layers/sampler.py)"
    ),
    text=prose.READING,
    expect=Expect(fluent=False, known=False),
    max_tokens=1,
    echo=True,
)
_BELOW = Prompt(
    name="needle-below",
    why=(
        "prefill on the dense branch, below 2,048 tokens; the fact must be found (NVIDIA's smoke test for this box "
        "asks the same)"
    ),
    text=prose.NEEDLE_QUESTION,
    expect=_NEEDLE,
    max_tokens=24,
    length=1500,
    prefix="below",
)
_REPEAT = Prompt(
    name="repeat",
    why=(
        "the same prompt again is a prefix-cache hit: NaN in verification (sglang #19796, #20043), stale KV (vllm "
        "#55766)"
    ),
    text=prose.NEEDLE_QUESTION,
    expect=_NEEDLE,
    max_tokens=24,
    length=1500,
    prefix="below",
)
_ACROSS = Prompt(
    name="count-across",
    why="decoding across 2,048 tokens changes from dense to sparse attention inside one answer (sglang #26087, #37105)",
    text=_COUNTING,
    expect=_COUNTED,
    max_tokens=96,
    length=THRESHOLD - 24,
)
_ABOVE = Prompt(
    name="needle-above",
    why="sparse attention kernels that were not made for SM120 (sglang #26087, #29562; rtx6kpro deployment guide)",
    text=prose.NEEDLE_QUESTION,
    expect=_NEEDLE,
    max_tokens=24,
    length=3600,
    prefix="above",
)
_SAMPLED = Prompt(
    name="sampled",
    why="only sampling trips the NaN assert in the sampler, which takes the server down (sglang #35324)",
    text=STORY[0],
    expect=STORY[1],
    max_tokens=48,
    sampling=SAMPLED,
)
_SAMPLED_LONG = Prompt(
    name="sampled-long",
    why="sampling with sparse attention, on a prefix hit (sglang #29453, #29562)",
    text=prose.NEEDLE_QUESTION,
    expect=_NEEDLE,
    max_tokens=24,
    sampling=SAMPLED,
    length=3600,
    prefix="above",
)


def burst(streams: int) -> Prompt:
    """So many different easy questions at once, greedy and sampled by turns."""
    return Prompt(
        name=f"burst-{streams}",
        why="FP4 GEMM and CUDA graph failures depend on how many run at once; the race of flashinfer #2708 needs 64",
        text="",
        expect=Expect(),
        max_tokens=32,
        streams=streams,
    )


def edge(tokens: int) -> Prompt:
    """A prompt that ends so many tokens past a page, after a prefix hit that ends before its last tokens."""
    return Prompt(
        name=f"edge{tokens:+d}",
        why="a hit that ends a few tokens past a page of the KV cache reads stale or NaN entries (vllm #55766)",
        text=prose.NEEDLE_QUESTION,
        expect=_NEEDLE,
        max_tokens=16,
        length=16 * PAGE,
        prefix="edge",
        edge=tokens,
    )


_AGAIN = Prompt(
    name="again",
    why="what a burst leaves behind, a stuck queue or NaN in cached keys, shows in the next answer (vllm #55766)",
    text=ARITHMETIC[0],
    expect=ARITHMETIC[1],
    max_tokens=24,
)
_THINK = Prompt(
    name="think",
    why=(
        "long decoding with reasoning: repetition, '!!!!' while thinking (vllm #47367), collapse without NaN "
        "(rtx6kpro, GLM-5.1)"
    ),
    text="How many prime numbers lie between 100 and 200? Think it through, and check every candidate.",
    expect=Expect(answer=(r"\b21\b", r"twenty-one"), known=False, shortest=32, wanted="21"),
    max_tokens=2000,
    sampling=SAMPLED,
    thinking=True,
)
_FAR = Prompt(
    name="needle-far",
    why="16k tokens: several chunks of prefill, and an index that must choose 2,048 of many",
    text=prose.NEEDLE_QUESTION,
    expect=_NEEDLE,
    max_tokens=24,
    length=16000,
)

QUICK: tuple[Prompt, ...] = (
    _ARITHMETIC,
    _CAPITAL,
    _STORY,
    _READING,
    _BELOW,
    _REPEAT,
    _ACROSS,
    _ABOVE,
    _SAMPLED,
    _SAMPLED_LONG,
    burst(8),
    _AGAIN,
)
FULL: tuple[Prompt, ...] = (
    *QUICK,
    *(edge(tokens) for tokens in (0, 1, 4, 5, 6, 7, 8, 9, 10, -1)),  # reached by length: each sees the pages before it
    *(
        burst(streams) for streams in (3, 13, 16, 33, 64, 72)
    ),  # on graph sizes, between them, and above the usual largest
    replace(_AGAIN, name="again-72"),
    _FAR,
    _THINK,
)
GATE: tuple[Prompt, ...] = (*QUICK[:-2], burst(64), _AGAIN)
"""A deploy's: the quick one with a burst that reaches the race of flashinfer #2708. At 11 tok/s a stream it takes about
a minute; the timer's quick one spares a server that people use."""

BATTERIES: Mapping[str, tuple[Prompt, ...]] = {"quick": QUICK, "gate": GATE, "full": FULL}
BUDGET: Mapping[str, float] = {"quick": 90.0, "gate": 90.0, "full": 900.0}
ESSENTIAL = ("arithmetic", "story", "needle-above", "sampled", "burst-64")
"""Without these a server is not called healthy."""
FIXED = ("arithmetic", "capital", "story")
"""Greedy questions that are the same in every run: their answers can be compared with those of the deploy."""
SMALL = ("arithmetic", "capital", "story", "reading", "needle-above", "sampled")
"""All that a server is asked that people are using: some 4,000 tokens."""
