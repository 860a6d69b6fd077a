"""Unique prompts of an exact token count.

A prompt is a fixed multiset of common words in a random order. Byte-level BPE splits at spaces before it merges, so
the order does not change the count: the multiset is fitted once against the served tokenizer (usage.prompt_tokens),
and each order of it is a prompt of that length. The random order is also the nonce, and it comes first: no two prompts
share more than the template and a word or two, so a prefix cache has nothing to give. `prompt_tokens` of every answer
checks it, whatever the tokenizer.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

LEAD = "Story:"  # the first word behind it has its space too, so that every place in the order costs the same
FILLER = "a"  # one token nearly everywhere; fits the last few tokens

WORDS = """
time year people way day man thing woman life child world school state family student group country problem hand
part place case week company system program question work number night point home water room mother area money
story fact month lot right study book eye job word business issue side kind head house service friend father
power hour game line end member law car city community name president team minute idea body information back
parent face others level office door health person art war history party result change morning reason research
girl guy moment air teacher force education foot boy age policy music market sense nation plan college interest
death experience effect use class control field development role effort rate heart drug show leader light voice
wife police mind price report decision son view relationship town road arm difference value building action
season society tax director position player record paper space ground form event matter center table court
project star oil situation cost industry figure street image phone data picture practice piece land product
doctor wall patient worker news test movie north love support technology step baby computer type attention film
tree source hair window culture chance brother energy period course summer plant
""".split()  # noqa: SIM905


@dataclass(frozen=True)
class Prompts:
    """Makes prompts; `tokens` is their measured length (None: the server does not say)."""

    words: tuple[str, ...]
    tokens: int | None

    def new(self, rng: random.Random) -> str:
        return " ".join((LEAD, *rng.sample(self.words, len(self.words))))


def fit(count: Callable[[str], int | None], target: int, rng: random.Random) -> Prompts:
    """The multiset whose prompts have `target` tokens, in at most ten questions; as near as the tokenizer allows.

    `count(prompt)` asks the server. A target below the chat template's own length gives the shortest prompt.
    """
    pool = [WORDS[i % len(WORDS)] for i in range(max(64, 2 * target))]
    rng.shuffle(pool)
    few, more = max(8, target // 8), max(16, target // 2)
    first, second = (count(Prompts(tuple(pool[:n]), None).new(rng)) for n in (few, more))
    if first is None or second is None:
        return Prompts(tuple(pool[: max(1, round(target / 1.2))]), None)
    each = max(0.2, (second - first) / (more - few))
    size = max(1, round(more + (target - second) / each))
    fillers = 0
    best: Prompts | None = None
    for _ in range(7):
        while len(pool) < size:
            pool += pool
        words = (*pool[:size], *(FILLER,) * fillers)
        found = count(Prompts(words, None).new(rng))
        if found is None:
            break
        if best is None or abs(found - target) < abs((best.tokens or 0) - target):
            best = Prompts(words, found)
        if found == target:
            break
        over = found - target
        if over > 0 and fillers >= over:
            fillers -= over
        elif over > 0:
            size = max(1, size - max(1, round(over / each)))
        elif -over <= 2 * each + 8:
            fillers += -over
        else:
            size += max(1, round(-over / each) - 1)
    return best or Prompts(tuple(pool[:size]), None)
