"""Text to fill a prompt with: sentences that differ from run to run, so that no earlier run's prefix cache answers
for this one."""

from __future__ import annotations

import random

_ADJECTIVES = """
    old quiet green heavy late small northern broken warm empty careful distant round silver plain narrow
    """.split()  # noqa: SIM905
_NOUNS = """
    harbour lamp engine letter garden bridge teacher window river market kitchen captain forest signal paper tower
    """.split()  # noqa: SIM905
_VERBS = """
    carried watched repaired followed counted painted answered opened crossed measured forgot described
    """.split()  # noqa: SIM905
_ENDS = ("before noon", "after the rain", "without a word", "for the second time", "near the wall", "on the way home")

NEEDLE = "The secret number is 7413."
NEEDLE_QUESTION = "What is the secret number? Answer with the number alone."
NEEDLE_ANSWER = r"7[ ,.']?413"
READING = """On 14 March 1998 the ferry left Bergen with 312 passengers, 47 cars and a piano. Its engineer, \
Dr. Ewa Nowak, wrote: "Pressure 8.6 bar, oil at 71 °C; nothing to report!" Two hours later the radar failed.
def area(r): return 3.14159 * r ** 2  # in m²
Wer zuletzt lacht, lacht am besten. 今天天气很好，我们去公园散步。 La bibliothèque ferme à dix-huit heures.
| year | price | change |
| 2021 | $19.50 | -3% |
Photosynthesis turns light, water and carbon dioxide into sugar; mitochondria burn it. Therefore x > 0 implies log(x) \
exists, and the jury, having heard both sides, acquitted her."""
"""Read, not asked: of many kinds, so that its tokens reach many experts."""


def sentence(draw: random.Random) -> str:
    """Ten to twelve words."""
    first, second = draw.sample(_NOUNS, 2)
    adjective, verb, end = draw.choice(_ADJECTIVES), draw.choice(_VERBS), draw.choice(_ENDS)
    return f"The {adjective} {first} {verb} the {draw.choice(_ADJECTIVES)} {second} {end}."


def filler(words: int, seed: str) -> str:
    """So many words (at least one) of sentences that depend on the seed alone."""
    draw = random.Random(seed)
    found: list[str] = []
    while len(found) < words:
        found += sentence(draw).split()
    return " ".join(found[: max(1, words)])


def with_needle(words: int, seed: str, question: str) -> str:
    """A long text with one fact in its first third, and a question at the end."""
    return f"{_hay(words, seed)}\n\n{question}"


def ending_anywhere(words: int, seed: str, question: str, *, extra: int) -> str:
    """The question first, then the text, then `extra` little words of one token each: two such prompts are the same
    up to where the shorter one ends, so that a prefix hit can be made to end at any token."""
    return f"{question}\n\n{_hay(words, seed)}{' so' * extra}"


def _hay(words: int, seed: str) -> str:
    hay = filler(words, seed).split()
    at = words // 3
    return " ".join([*hay[:at], NEEDLE, *hay[at:]])
