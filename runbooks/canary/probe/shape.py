"""What a text looks like, without knowing what it should say: runs, loops, broken bytes, scripts that do not belong
together."""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

DRAWN = set(" \t\n-=_*.#~|─━│ ")
"""Characters that people and models repeat on purpose: rules, tables, indentation, dots of a list of contents."""

_ODD_MARK = re.compile(
    r"[.,;:]!"  # 4.!.!.!   a mark right behind another mark
    r"|!\.(?=\s|!|$)"
    r"|(?<=[^\W_])!(?= ?[a-z])"  # a server! every question: a mark where the sentence goes on
)
_LONG_MARK = re.compile(r"!{4,}(?= [a-z])")  # The!!!! upon a time
_WORD = re.compile(r"[^\W\d_]+")
_SMALL_WORDS: Mapping[str, frozenset[str]] = {
    "LATIN": frozenset(
        """
        a about all an and are as at be been but by can could did do each every for from had has have he her his i if in
        into is it its just more my no not of on one or our out she so some than that the their them then there they
        this to up was we were what when where which who will with would you your
        de la le el les los las un une una des du que qui et y en est es por para con se dans au il elle sur pas no lo
        der die das und ist im ein eine er sie es zu mit von auf den dem nicht war sich als o os e do da em um uma não
        di il che non per gli del della ma
        """.split()  # noqa: SIM905
    ),
    "CYRILLIC": frozenset(
        "и в не на что с он она как это но по из у за к от то был была было я его её а о".split()  # noqa: SIM905
    ),
}
"""Of English, Spanish, French, German, Portuguese and Italian together; of Russian."""
_SMALL_HAN = frozenset("的了是在不一有我他她这那人们上个来到时大地为子中你说生着就下和也得里去")


@dataclass(frozen=True)
class Loop:
    """The end of a text repeats: `unit`, `times` over, from character `start` on."""

    unit: str
    times: int
    start: int


def longest_run(text: str) -> tuple[str, int]:
    """The character with the longest uninterrupted run (drawn rules aside), and how long the run is."""
    best, best_length = "", 0
    for match in re.finditer(r"(.)\1*", text, re.DOTALL):
        if match[1] not in DRAWN and len(match[0]) > best_length:
            best, best_length = match[1], len(match[0])
    return best, best_length


def odd_marks(text: str) -> int:
    """Exclamation marks where no writer puts one. Token 0 is '!' in byte-level vocabularies, and argmax of NaN is
    token 0."""
    return len(_ODD_MARK.findall(text)) + 2 * len(_LONG_MARK.findall(text))


def loop(text: str, longest_unit: int = 240) -> Loop | None:
    """The shortest unit that the text ends in at least four times over, if any. A partial repetition at the very end
    counts as the end."""
    text = text.rstrip()
    for size in range(1, min(longest_unit, len(text) // 4) + 1):
        covered = size
        while covered < len(text) and text[-covered - 1] == text[-covered - 1 + size]:
            covered += 1
        if covered >= 4 * size and not set(text[-size:]) <= DRAWN:
            return Loop(
                text[-covered : size - covered] if covered > size else text[-size:],
                covered // size,
                len(text) - covered,
            )
    return None


def dominant_word(text: str) -> tuple[str, float]:
    """The most frequent word and its share; share 0 below twelve words."""
    words = [word.lower() for word in text.split()]
    if len(words) < 12:
        return "", 0.0
    word, count = Counter(words).most_common(1)[0]
    return word, count / len(words)


def dominant_character(text: str) -> tuple[str, float]:
    """The most frequent character that is not white space, and its share; share 0 below sixteen characters."""
    shown = [character for character in text if not character.isspace()]
    if len(shown) < 16:
        return "", 0.0
    character, count = Counter(shown).most_common(1)[0]
    return character, count / len(shown)


def broken_characters(text: str) -> int:
    """Replacement characters (bytes that were no UTF-8) and control characters."""
    return sum(
        character == "\ufffd" or (unicodedata.category(character) == "Cc" and character not in "\n\r\t")
        for character in text
    )


def scripts(text: str) -> Counter[str]:
    """Letters a script. Han, kana and hangul count as one: they share texts. Emoji and symbols count nowhere."""
    found: Counter[str] = Counter()
    for character in text:
        if not character.isalpha():
            continue
        if character.isascii():
            found["LATIN"] += 1
            continue
        name = unicodedata.name(character, "UNKNOWN").split()[0].split("-")[0]
        found["CJK" if name in ("HIRAGANA", "KATAKANA", "HANGUL", "FULLWIDTH", "HALFWIDTH", "BOPOMOFO") else name] += 1
    return found


def mixed_words(text: str) -> int:
    """Words whose letters come from more than one alphabet (`приhello`). CJK beside Latin is ordinary and does not
    count."""
    mixed = 0
    for word in _WORD.findall(text):
        if not word.isascii():
            mixed += len([s for s in scripts(word) if s not in ("CJK", "MODIFIER", "UNKNOWN")]) > 1
    return mixed


def is_salad(text: str) -> str:
    """Why the scripts of this text do not belong together, or an empty string."""
    found = {script: n for script, n in scripts(text).items() if n >= 2}
    letters = sum(found.values())
    if letters < 12:
        return ""
    if len(found) >= 4:
        return f"letters of {len(found)} scripts: {', '.join(sorted(found))}"
    rest = letters - max(found.values())
    if len(found) == 3 and rest >= 0.15 * letters:
        return f"letters of 3 scripts, none of them a quotation: {', '.join(sorted(found))}"
    if mixed_words(text) >= 3:
        return "words whose letters come from different alphabets"
    return _alternates(text) if len(found) >= 2 else ""


def _alternates(text: str) -> str:
    """Two scripts take turns, word by word. A quotation, a name or a loan word does not: it stands in longer runs.
    Single letters are formulas."""
    runs = [(script, words) for script, words in _runs(text) if script == "CJK" or max(map(len, words)) > 1]
    turns = [
        (script, sum(map(len, words))) for at, (script, words) in enumerate(runs) if not at or runs[at - 1][0] != script
    ]
    if len(turns) < 9:
        return ""
    mean = sum(length for _, length in turns) / len(turns)
    words = len(_WORD.findall(text))
    cjk = [length for script, length in turns if script == "CJK"]
    if not cjk and len(turns) >= 0.5 * words:
        return f"two scripts take turns, word by word ({len(turns)} turns in {words} words)"
    if cjk and sum(cjk) / len(cjk) < 2.5 and mean < 7 and len(turns) >= 12:
        return f"two scripts take turns, {len(turns)} times in {words} words"
    return ""


def _runs(text: str) -> list[tuple[str, list[str]]]:
    """Neighbouring stretches of letters of one script; names and abbreviations in capitals belong to every script."""
    runs: list[tuple[str, list[str]]] = []
    for word in _WORD.findall(text):
        if word[0].isascii() and word[0].isupper():
            continue
        for script, letters in groupby(word, key=_script):
            if runs and runs[-1][0] == script:
                runs[-1][1].append("".join(letters))
            else:
                runs.append((script, ["".join(letters)]))
    return runs


def _script(letter: str) -> str:
    return next(iter(scripts(letter)), "UNKNOWN")


def lacks_small_words(text: str) -> str:
    """Prose is a third `the`, `of`, `and`; words drawn at random are not. What is missing, or an empty string.

    Judged from forty words of an alphabet on, or sixty Han characters; scripts that are not listed are not judged.
    """
    by = scripts(text)
    script = by.most_common(1)[0][0] if by else ""
    han = [letter for letter in text if "\u4e00" <= letter <= "\u9fff"]
    if script == "CJK" and len(han) >= 60 and len(han) > 0.9 * by["CJK"]:
        share = sum(letter in _SMALL_HAN for letter in han) / len(han)
        return f"{share:.0%} of the characters are 的, 了 or their like" if share < 0.06 else ""
    words = [word.lower() for word in _WORD.findall(text)]
    if script not in _SMALL_WORDS or len(words) < 40:
        return ""
    share = sum(word in _SMALL_WORDS[script] for word in words) / len(words)
    return f"{share:.0%} of them are words like 'the' and 'of'" if share < 0.08 else ""


def compression(text: str) -> float:
    """Compressed size over size, of UTF-8 bytes. Prose stands above 0.4, a loop of any length falls towards 0; 1.0
    below 400 bytes."""
    raw = text.encode(errors="surrogatepass")  # a half of a pair, as JSON may hold
    return len(zlib.compress(raw, 9)) / len(raw) if len(raw) >= 400 else 1.0
