"""What the stand-in says. No model: known questions get their answers, a needle asked for is repeated, all else is
prose from a word list.

A token here is a run of at most eight characters that are no white space, with the white space before it. Joined,
the tokens of a text are the text. Every word of the list is one token, its full stop included, so a request for 512
tokens gets 512 words.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

TOKEN = re.compile(r"\s*\S{1,8}|\s+")
ORDINARY = 154_820  # GLM-5 has so many ordinary tokens; the special ones come after
NAN_TOKEN = "!"  # token 0 of GLM's vocabulary: what argmax picks when every logit is NaN

CAPITALS = {
    "austria": "Vienna",
    "canada": "Ottawa",
    "china": "Beijing",
    "egypt": "Cairo",
    "england": "London",
    "france": "Paris",
    "germany": "Berlin",
    "greece": "Athens",
    "ireland": "Dublin",
    "italy": "Rome",
    "japan": "Tokyo",
    "norway": "Oslo",
    "poland": "Warsaw",
    "portugal": "Lisbon",
    "spain": "Madrid",
    "sweden": "Stockholm",
    "the united kingdom": "London",
}

WORDS = tuple((Path(__file__).parent / "words.txt").read_text().split())

SMALL = ("the", "the", "the", "a", "of", "of", "and", "and", "in", "to", "with", "was", "that", "it")

_PRIMES = re.compile(r"prime numbers (?:lie |are |are there )?between (\d{1,4}) and (\d{1,4})", re.IGNORECASE)
_SUM = re.compile(r"(\d{1,9})\s*(\+|-|\*|x|×|times|plus|minus)\s*(\d{1,9})", re.IGNORECASE)
_CAPITAL = re.compile(r"capital(?: city)? of ([A-Za-z ]+?)\s*(?:[?.!,]|$)", re.IGNORECASE)
_REPEAT = re.compile(r"(?:repeat|echo|say|reply with|answer with)\b[^:\n]{0,60}:\s*(.+)", re.IGNORECASE)
_ONLY = re.compile(
    r"(?:reply|answer|respond|say)\s+(?:with\s+)?(?:only|exactly|just)\s+(?:with\s+)?(?:the word\s+)?[\"'`]?(\w+)",
    re.IGNORECASE,
)
_NEEDLE = re.compile(
    r"\b((?:(?:secret|magic|special|pass|access|hidden|door|key|safe|launch)\s*)*(?:code|number|word|key|phrase|password|passphrase|needle|token))"
    r"(?:\s+(?:of|for|to)\s+[\w ]{1,40})?\s+(?:is|was|equals|=|:)\s*[\"'`]?([A-Za-z0-9][\w-]*)",
    re.IGNORECASE,
)
_ASKS = re.compile(
    r"\b(?:code|number|word|key|phrase|password|passphrase|needle|token)\b[^.!\n]*\?|\b(?:what|which|repeat|tell|give|state)\b",
    re.I,
)
_COUNT = re.compile(r"count (?:from )?(\d{1,3}) (?:to|up to|through) (\d{1,4})", re.IGNORECASE)


@dataclass(frozen=True)
class Piece:
    """One token of an answer. `reasoning`: it belongs to the thinking before the answer."""

    text: str
    reasoning: bool = False


def split(text: str) -> list[str]:
    return TOKEN.findall(text)


def token_id(piece: str) -> int:
    """A stable id below the special tokens; 0 for '!', as in GLM's vocabulary."""
    return 0 if piece.strip() == NAN_TOKEN else 1 + zlib.crc32(piece.encode()) % (ORDINARY - 1)


def script(
    prompt: str, *, seed: int, thinking: int = 0, ignore_eos: bool = False, answers: Mapping[str, str] | None = None
) -> Iterator[Piece]:
    """The tokens of the answer. Ends where the model would end its turn; never, with `ignore_eos`."""
    rng = random.Random(seed)
    prose = _prose(rng)
    for _ in range(thinking):
        yield Piece(next(prose), reasoning=True)
    known = answer(prompt, answers or {})
    if known is not None:
        for piece in split(known):
            yield Piece(piece)
    else:
        for _ in range(rng.randint(60, 240)):
            yield Piece(next(prose))
    while ignore_eos:
        yield Piece(next(prose))


def answer(prompt: str, more: Mapping[str, str]) -> str | None:
    """The known answer to the last message, None where there is none."""
    for pattern, text in more.items():
        if re.search(pattern, prompt, re.IGNORECASE):
            return text
    tail = prompt[-600:]
    if found := _needle(prompt, f"{prompt[:200]}\n{tail}"):  # a question may stand before its text
        return found
    if primes := _PRIMES.search(tail):
        return _primes(int(primes[1]), int(primes[2]))
    if sums := _SUM.findall(tail):
        return _calculate(*sums[-1])
    if (found_capital := _CAPITAL.search(tail)) and (city := CAPITALS.get(found_capital[1].strip().lower())):
        return f"The capital of {found_capital[1].strip()} is {city}."
    if count := _COUNT.search(tail):
        return ", ".join(str(n) for n in range(int(count[1]), int(count[2]) + 1)) + "."
    if repeat := _REPEAT.search(tail):
        return repeat[1].strip().strip("\"'`")
    if only := _ONLY.search(tail):
        return only[1]
    if re.search(r"colou?r (?:is|of) (?:the|a clear|a cloudless)[\w ]* sky|sky", tail, re.IGNORECASE):
        return "The sky is blue."
    return "Hello! How can I help you today?" if re.search(r"\bhello\b", tail, re.IGNORECASE) else None


def _needle(prompt: str, tail: str) -> str | None:
    if not _ASKS.search(tail):
        return None
    found = _NEEDLE.findall(prompt)
    asked = [(name, value) for name, value in found if name.lower() in tail.lower()]
    if not asked:
        return None
    name, value = asked[-1] if len(asked) == 1 else asked[0]
    return f"The {name.lower()} is {value}."


def _calculate(left: str, sign: str, right: str) -> str:
    a, b = int(left), int(right)
    values = {"+": a + b, "plus": a + b, "-": a - b, "minus": a - b}
    shown = {"x": "*", "×": "*", "times": "*", "plus": "+", "minus": "-"}.get(sign.lower(), sign)
    return f"{a}{shown}{b} equals {values.get(sign.lower(), a * b)}."


def _primes(low: int, high: int) -> str:
    count = sum(all(number % by for by in range(2, int(number**0.5) + 1)) for number in range(max(low, 2), high + 1))
    return f"There are {count} prime numbers between {low} and {high}."


def _prose(rng: random.Random) -> Iterator[str]:
    """Sentences without end, one word a token: no sense in them, but the small words of English where they belong."""
    first = True
    while True:
        length = rng.randint(7, 15)
        small = False
        for place in range(length):
            small = not small and place < length - 1 and rng.random() < 0.5
            word = rng.choice(SMALL if small else WORDS)
            if place == 0:
                word = word.capitalize()
            if place == length - 1:
                word += "."
            elif place > 2 and not small and rng.random() < 0.08:
                word += ","
            yield word if first else f" {word}"
            first = False
