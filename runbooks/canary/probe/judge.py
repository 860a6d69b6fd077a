"""The judge: a pure function from a reply to findings.

Grades: `nan` is a sign that numbers are broken, whatever the text says; `dead` means that no answer came; `degraded`
is an answer that no
healthy server gives; `note` is worth knowing and decides nothing. It judges answers, not one engine's shape: what an
engine may leave out
(`[DONE]`, logprobs, usage) is a note as long as the answer is whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from . import shape
from .reply import Logprob, Reply

NAN, DEAD, DEGRADED, NOTE = "nan", "dead", "degraded", "note"

TOKEN_ZERO_RUN = 8
"""So many '!' in a row say token 0. The longest run in a sober answer is 3."""
CERTAIN = -0.7
"""A logprob above this (probability one half) is a sure choice, and sure choices may well all be equal (0.0)."""
SAME = 1e-6
POSITIONS = 3
"""In 16 bits the best three tokens of one position may well tie; at three positions, with one value, they do not."""
WITHIN = 0.7
"""Of the length of an answer that was cut: what stands before that, it would have had."""


@dataclass(frozen=True)
class Expect:
    """What is known beforehand about the answer to one prompt.

    `answer`: patterns of which one must be found (asked only of models that know). `fluent`: the model writes in words
    of its own. `prose`: in whole sentences, as in a story.
    `known`: every model that is tested here answers this prompt in words, so even a loop in it is a fault.
    """

    answer: tuple[str, ...] = ()
    fluent: bool = True
    prose: bool = False
    known: bool = True
    shortest: int = 1  # completion tokens
    wanted: str = ""  # the answer, in words for people


@dataclass(frozen=True)
class Finding:
    kind: str
    grade: str
    evidence: str


def judge(reply: Reply, expect: Expect | None = None) -> list[Finding]:
    """Everything that is wrong with a reply, most telling first."""
    expect = expect or Expect()
    found = list(_numbers(reply))
    found += _transport(reply)
    if reply.status == 200 and not reply.error:
        found += _text(reply, expect)
    order = (NAN, DEAD, DEGRADED, NOTE)
    return sorted(found, key=lambda finding: order.index(finding.grade))


def _numbers(reply: Reply) -> Iterator[Finding]:
    """Signs of NaN that do not depend on the text."""
    if reply.nan_stop or "nan" in (reply.matched_stop or "").lower().split():
        yield Finding(
            "nan-stop", NAN, f'the server ended the request with "NaN happened" (finish_reason {reply.finish_reason})'
        )
    if reply.speaks_of_nan:
        yield Finding("nan-error", NAN, f"HTTP {reply.status}: {reply.error}")
    entries = reply.logprobs[1:] if reply.echoed else reply.logprobs
    null = [entry for entry in entries if entry.value is None]
    if null:
        yield Finding(
            "null-logprob", NAN, f"{len(null)} of {len(entries)} logprobs are null, first at token {null[0].token!r}"
        )
    elif entries:
        yield from _constant(entries)
        high = [entry for entry in entries if entry.value is not None and entry.value > 1e-3]
        if high:
            yield Finding("impossible-logprob", DEGRADED, f"a logprob above 0: {high[0].value} for {high[0].token!r}")
    elif reply.asked_logprobs and reply.answered and reply.text:
        yield Finding("no-logprobs", NOTE, "logprobs were asked for and are not in the answer")


def _constant(entries: list[Logprob]) -> Iterator[Finding]:
    values = [entry.value for entry in entries if entry.value is not None]
    flat = values + [value for entry in entries for _, value in entry.others if value is not None]
    if len(values) >= POSITIONS and max(flat) < CERTAIN and max(flat) - min(flat) < SAME:
        # NaN logits that were replaced by a constant (sglang --enable-nan-detection) make every token equally likely:
        # -ln(vocabulary).
        yield Finding(
            "uniform-logprobs", NAN, f"all {len(flat)} logprobs are {flat[0]:.4f}: the model prefers no token"
        )
    elif (
        len(values) >= 8
        and values[0] < CERTAIN
        and max(values) - min(values) < SAME
        and len({e.token for e in entries}) == 1
    ):
        yield Finding(
            "frozen-token", NAN, f"token {entries[0].token!r} with logprob {values[0]:.4f} at every position"
        )  # vllm #52938


def _transport(reply: Reply) -> Iterator[Finding]:
    if reply.failure in ("refused", "silent", "dropped"):
        what = {
            "refused": "nothing listens on the port",
            "silent": f"no byte came for too long (after {reply.seconds:.0f} s, {reply.chunks} chunks)",
            "dropped": f"the server closed the connection (after {reply.seconds:.2f} s, {reply.chunks} chunks)",
        }[reply.failure]
        yield Finding(reply.failure, DEAD, what)
        return
    if reply.failure == "slow":
        yield Finding("slow", DEGRADED, f"still answering after {reply.seconds:.0f} s, with {reply.chunks} chunks")
        return
    foreign = _foreign(reply)
    if foreign:
        yield foreign
        return
    if reply.failure:
        yield Finding(reply.failure, DEGRADED, f"what came back cannot be read: {reply.error[:120]!r}")
        return
    if reply.status == 0:
        yield Finding("dropped", DEAD, "the connection ended without an answer")
        return
    if reply.status != 200:
        yield Finding(_status_kind(reply), DEGRADED, f"HTTP {reply.status}: {reply.error[:160]}")
        return
    if reply.error:
        yield Finding("stream-error", DEGRADED, f"an error inside a 200 answer: {reply.error[:160]}")
        return
    yield from _ending(reply)


def _foreign(reply: Reply) -> Finding | None:
    """Something else listens there: a web server, a proxy with nothing behind it, or no HTTP at all."""
    page = reply.error.startswith("a web page")
    if reply.status in (502, 503, 504) and page:
        return Finding("bad-gateway", DEAD, f"a proxy answers, and no server behind it: HTTP {reply.status}")
    no_route = reply.status in (404, 405, 501) and "model" not in reply.error.lower()
    if (reply.failure and not reply.status) or no_route or (page and reply.status not in (401, 403, 429)):
        seen = f"HTTP {reply.status}, {reply.error[:100]!r}" if reply.status else repr(reply.error[:100])
        return Finding("foreign", DEAD, f"this is not an OpenAI-compatible server: /v1/chat/completions gives {seen}")
    return None


def _status_kind(reply: Reply) -> str:
    if reply.status in (401, 403):
        return "unauthorised"
    if reply.status in (429, 503):
        return "not-serving"
    return "server-error" if reply.status >= 500 else "rejected"


def _ending(reply: Reply) -> Iterator[Finding]:
    if not reply.streamed:
        return
    if not reply.whole or (not reply.done_seen and reply.finish_reason is None):
        yield Finding(
            "cut-stream", DEGRADED, f"the stream ended in the middle, after {reply.chunks} chunks and without [DONE]"
        )
    elif not reply.done_seen:
        yield Finding("no-done", NOTE, "the stream ended without [DONE] (some engines never send it)")


def _text(reply: Reply, expect: Expect) -> Iterator[Finding]:
    text = reply.text
    shown = excerpt(text)
    if not text.strip():
        tokens = "no usage" if reply.completion_tokens is None else f"{reply.completion_tokens} tokens"
        grade = DEGRADED if expect.known or expect.fluent or expect.answer else NOTE
        yield Finding("empty", grade, f"no text came back ({tokens}, finish_reason {reply.finish_reason})")
        return
    yield from _token_zero(reply, expect, shown)
    yield from _loops(reply, expect, shown)
    yield from _letters(text, expect, shown)
    if reply.thinking_still:
        yield Finding(
            "still-thinking", NOTE, f"its tokens went into thinking, and ended before the answer did: {shown!r}"
        )
    elif expect.answer and not any(
        re.search(pattern, reply.content or text, re.IGNORECASE) for pattern in expect.answer
    ):
        yield Finding("wrong-answer", DEGRADED, f"wanted {expect.wanted}, got {shown!r}")
    elif not expect.answer and reply.length < expect.shortest:
        yield Finding(
            "too-short", DEGRADED, f"{reply.length} tokens where at least {expect.shortest} were due: {shown!r}"
        )


def _token_zero(reply: Reply, expect: Expect, shown: str) -> Iterator[Finding]:
    text = reply.text
    # A model that was never taught this prompt may stammer; finite logprobs that differ prove that its numbers are
    # sound.
    grade = NOTE if not expect.known and not expect.fluent and sound(reply) else NAN
    character, length = shape.longest_run(text)
    only_marks = set(packed := "".join(text.split())) == {"!"} and len(packed) >= 4
    if (character == "!" and length >= TOKEN_ZERO_RUN) or only_marks:
        yield Finding(
            "token-zero", grade, f"{length} times '!' in a row, token 0 of the vocabulary (argmax of NaN): {shown!r}"
        )
    elif shape.odd_marks(text) >= 2:
        yield Finding(
            "token-zero-strewn",
            grade,
            f"'!' where no sentence ends, token 0 of the vocabulary at single positions: {shown!r}",
        )
    elif character and character != "!" and length >= 16 and not character.isdigit():
        sober = DEGRADED if expect.known else NOTE  # a model that was taught nothing may stammer
        yield Finding("one-character", sober, f"{length} times {character!r} in a row: {shown!r}")


def _loops(reply: Reply, expect: Expect, shown: str) -> Iterator[Finding]:
    text = reply.text
    grade = DEGRADED if expect.known else NOTE
    found = shape.loop(text)
    word, share = shape.dominant_word(text)
    character, character_share = shape.dominant_character(text)
    if found and len(found.unit) <= 12 and found.times >= 8:
        from_start = found.start <= len(found.unit)
        # A quality collapse comes after some sense. One token from the very first position on may be argmax over NaN:
        # the verdict compares prompts.
        where = "from the first token on" if from_start else f"from character {found.start} on"
        kind = "one-token" if from_start and len(found.unit.strip()) <= 8 else "loop"
        yield Finding(kind, grade, f"{found.unit!r} {found.times} times, {where}: {shown!r}")
    elif found and (found.times >= 12 or (found.times * len(found.unit) >= 200 and found.times >= 4)):
        loud = DEGRADED if expect.fluent else NOTE
        yield Finding("loop", loud, f"the text ends in a loop: {excerpt(found.unit, 60)!r} {found.times} times")
    elif share > 0.5:
        yield Finding("one-word", grade, f"{share:.0%} of the words are {word!r}: {shown!r}")
    elif character_share > 0.6 and character not in shape.DRAWN and not character.isdigit():
        yield Finding("one-character", grade, f"{character_share:.0%} of the characters are {character!r}: {shown!r}")
    elif expect.fluent and shape.compression(text) < 0.15:
        yield Finding(
            "loop", DEGRADED, f"the text repeats itself: it packs to {shape.compression(text):.0%} of its size"
        )


def _letters(text: str, expect: Expect, shown: str) -> Iterator[Finding]:
    grade = DEGRADED if expect.known else NOTE
    broken = shape.broken_characters(text)
    if broken >= 3 and broken > 0.03 * len(text):
        yield Finding("broken-characters", grade, f"{broken} broken or control characters among {len(text)}: {shown!r}")
    salad = shape.is_salad(text)
    if salad:
        yield Finding("word-salad", DEGRADED if expect.fluent else NOTE, f"{salad}: {shown!r}")
    elif expect.prose and (missing := shape.lacks_small_words(text)):
        yield Finding("no-sentences", DEGRADED, f"words without sentences, {missing}: {shown!r}")


def comes_late(reply: Reply, expect: Expect, length: int) -> bool:
    """A sound answer, right, but not within so many characters."""
    if any(finding.grade != NOTE for finding in judge(reply, expect)):
        return False
    found = [match.start() for pattern in expect.answer for match in re.finditer(pattern, reply.text, re.IGNORECASE)]
    return not found or min(found) > WITHIN * length


def excerpt(text: str, length: int = 120) -> str:
    """The beginning and the end of a text, on one line."""
    text = " ".join(text.split(" ")).replace("\n", "⏎")
    return text if len(text) <= length else f"{text[: length * 2 // 3]} … {text[-length // 4 :]}"


def sound(reply: Reply) -> bool:
    """Finite logprobs that differ: the numbers behind this answer are in order, whatever it says."""
    values = [entry.value for entry in reply.logprobs]
    return len(values) >= 4 and all(value is not None for value in values) and len(set(values)) > 1
