"""Unique prompts of an exact token count, of any length asked for.

Byte-level BPE splits at spaces before it merges, so each of the common words below costs the same wherever it stands.
A few questions to the served tokenizer (usage.prompt_tokens) tell what they cost; a prompt is then a random row of
words that adds up. The row is also the nonce, and it comes first: no two prompts share more than the template and a
word or two, so a prefix cache has nothing to give, unless a shared prefix is what is measured. `prompt_tokens` of every
answer checks the length, whatever the tokenizer.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

LEAD = "Story:"  # the first word behind it has its space too, so that every place in the row costs the same
FILLER = "a"  # one token nearly everywhere: fills what is left where words cost more than one
GROUP = 6  # words that are asked together, where not every word is one token and prompts are long

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
    """`new` makes one. `base`: tokens of the template and LEAD; `atoms`: groups of words, each of a known cost."""

    atoms: tuple[tuple[str, int], ...] = tuple((word, 1) for word in WORDS)
    base: int = 0
    exact: bool = True  # False: the server does not say how many tokens a prompt has
    prefix: str = ""  # the shared part, with LEAD
    one_each: bool = field(init=False)
    texts: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "one_each", all(cost == 1 for _, cost in self.atoms))
        object.__setattr__(self, "texts", tuple(text for text, _ in self.atoms))

    def new(self, rng: random.Random, tokens: int) -> str:
        """A prompt of `tokens` tokens, template included; of at least one word, however few were asked for."""
        left = max(1, tokens - self.base)
        if self.one_each:
            words = rng.choices(self.texts, k=left)
        else:
            words = []
            atoms = list(self.atoms)
            while atoms := [atom for atom in atoms if atom[1] <= left]:
                text, cost = rng.choice(atoms)
                words.append(text)
                left -= cost
            words += [FILLER] * left
        return " ".join((self.prefix or LEAD, *words))

    def sharing(self, rng: random.Random, tokens: int) -> Prompts:
        """The same, with `tokens` tokens at their beginning (template included) in common."""
        prefix = self.new(rng, tokens)
        return replace(self, prefix=prefix, base=max(tokens, self.base + 1))


@dataclass(frozen=True)
class TokenIds:
    """Prompts as random token ids in first..last: their length is exact whatever the tokenizer.

    Ids at random are no language: a draft model guesses them worse than text.
    """

    first: int
    last: int
    prefix: tuple[int, ...] = ()
    exact: bool = True

    def new(self, rng: random.Random, tokens: int) -> list[int]:
        more = max(1, tokens - len(self.prefix))
        return [*self.prefix, *(rng.randint(self.first, self.last) for _ in range(more))]

    def sharing(self, rng: random.Random, tokens: int) -> TokenIds:
        return replace(self, prefix=tuple(self.new(rng, tokens)))


def fit(count: Callable[[str], int | None], target: int, rng: random.Random) -> Prompts:
    """What the words cost in the served tokenizer: five questions where each is one token, about 40 elsewhere.

    `count(prompt)` asks the server. A prompt of `target` tokens is asked last; where it is off, as some templates are
    by a token, the base is set right.
    """
    bare = count(LEAD)
    if bare is None:
        return Prompts(tuple((word, 1) for word in WORDS), 0, exact=False)
    all_words = count(" ".join((LEAD, *WORDS)))
    if all_words == bare + len(WORDS):
        prompts = Prompts(base=bare)
    else:
        # A short prompt is made of single words: of groups, none or one would fit, and prompts were alike.
        many = target - bare > 4 * GROUP * ((all_words or 0) - bare) / len(WORDS)
        groups = [" ".join(WORDS[at : at + GROUP]) for at in range(0, len(WORDS), GROUP)]
        groups = groups if many else [group.split()[0] for group in groups]
        counts = ((text, count(f"{LEAD} {text}")) for text in groups)
        prompts = Prompts(tuple((text, max(1, found - bare)) for text, found in counts if found is not None), bare)
    for _ in range(2):
        found = count(prompts.new(rng, target))
        if found is None or found == target or target <= bare + 1:
            break
        prompts = replace(prompts, base=prompts.base + found - target)
    return prompts
