"""One row a sign: the reply, and the kind and grade that the judge must find (or nothing at all)."""

from __future__ import annotations

import json
import math

import pytest

from runbooks.canary.probe.judge import Expect, Finding, judge
from runbooks.canary.probe.reply import Logprob, Reply, read_body
from runbooks.canary.probe.verdict import Judged, settle, verdict

SENTENCES = (
    "The lighthouse keeper walked down to the harbour before dawn, as he had done every day for thirty years. "
    "A letter lay on the bench, and the wind had not yet taken it. He read it twice, put it into his coat, and "
    "looked out over the water. Nothing moved out there but a small boat, far away, with a lamp at its bow."
)


def reply(content: str = "", **fields: object) -> Reply:
    made = Reply(status=200, content=content, finish_reason="stop", done_seen=True, streamed=True)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def whole(status: int, body: str) -> Reply:
    return read_body(Reply(status=status), body.encode(), stream=False)


def stream(body: str) -> Reply:
    return read_body(Reply(status=200), body.encode(), stream=True)


def kinds(findings: list[Finding], grade: str) -> set[str]:
    return {finding.kind for finding in findings if finding.grade == grade}


ONCE = 'data: {"choices":[{"delta":{"content":"Once upon a time"}}]}\n\n'

NAN: dict[str, tuple[Reply, str]] = {
    "matched stop": (whole(200, '{"choices":[{"text":"","matched_stop":"NaN happened"}]}'), "nan-stop"),
    "meta info": (whole(200, '{"meta_info":{"finish_reason":{"matched":"NaN happened"}}}'), "nan-stop"),
    "other spelling": (whole(200, '{"choices":[{"text":"a","matched_stop":"nan_happened"}]}'), "nan-stop"),
    "token 0": (reply("!!!!!!!!!!!!"), "token-zero"),
    "token 0 while thinking": (reply(reasoning="Let me see" + "!" * 40), "token-zero"),
    "four marks only": (reply(" !!!! "), "token-zero"),
    "token 0 strewn": (reply("2+2 equals 4.!.!.!.! How2 equals 4.!."), "token-zero-strewn"),
    "token 0 in words": (reply("there was a server! every question. Once a server! server! time"), "token-zero-strewn"),
    "null logprob": (reply("4", logprobs=[Logprob("4", -0.1), Logprob(".", None)]), "null-logprob"),
    "uniform logprobs": (reply("abc", logprobs=[Logprob("a", -6.2383, (("b", -6.2383),))] * 3), "uniform-logprobs"),
    "frozen token": (reply("x" * 8, logprobs=[Logprob("x", -1.5, (("y", -2.0),))] * 8), "frozen-token"),
    "json error": (whole(500, '{"error":{"message":"Out of range float values are not JSON compliant"}}'), "nan-error"),
    "assert in the words": (whole(500, "probability tensor contains either inf, nan or element < 0"), "nan-error"),
}  # fmt: skip

DEGRADED: dict[str, tuple[Reply, str]] = {
    "one token for ever": (reply(" ca" * 32), "one-token"),
    "plus signs": (reply("Sure: " + "+" * 60), "loop"),
    "loop after sense": (reply(SENTENCES + " and so on" * 30), "loop"),
    "long loop": (reply(SENTENCES[:104] * 6), "loop"),
    "salad of scripts": (reply("the приher 漢字 สวัสดี wor한글ld مرحبا ok и так далее"), "word-salad"),
    "mixed words": (reply("приhello миworld котcat собdog и так далее по тексту"), "word-salad"),
    "broken bytes": (reply("�What�What�� w��"), "broken-characters"),
    "control characters": (reply("\x08\x08estion s you\x7f helloary every6\x01day"), "broken-characters"),
    "empty": (reply("", completion_tokens=0), "empty"),
    "one token": (reply("The", completion_tokens=1), "too-short"),
    "error in a 200 stream": (stream(ONCE + 'data: {"error":{"message":"aborted"}}\n\n'), "stream-error"),
    "cut stream": (stream(ONCE + 'data: {"choi'), "cut-stream"),
    "500": (whole(500, "Internal Server Error"), "server-error"),
    "503": (whole(503, ""), "not-serving"),
    "wrong key": (whole(401, '{"error":"Unauthorized"}'), "unauthorised"),
    "not JSON": (whole(200, '{"choices": [{"mess'), "unreadable"),
    "slow": (reply("Once", failure="slow", seconds=60.0), "slow"),
}  # fmt: skip

SOBER: dict[str, str] = {
    "prose": SENTENCES,
    "short": "4",
    "greeting": "Hello! How can I help you today? I am happy to help!",
    "excited": "Wow! That is great! Really, really great! And it works!!!",
    "code": "if a != b and not !c { return !important } // fine!\nprint('done!')",
    "markdown": "# Title\n\n---\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n" + "-" * 60 + "\n\n* one\n* two\n* three\n",
    "contents": "Chapter 1 " + "." * 60 + " 3\nChapter 2 " + "." * 60 + " 9",
    "digits": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20.",
    "pi": "3." + "1415926535897932384626433832795028841971693993751058209749445923",
    "zeros": "One followed by a hundred zeros is 1" + "0" * 100 + ".",
    "chinese": "法国的首都是巴黎。它位于塞纳河畔，是欧洲最大的城市之一，也是文化和艺术的中心。",
    "japanese and english": "SGLangサーバーは正常です。GPUは8枚あり、すべて動作しています。テストはOKでした。",
    "russian with a name": "Столица Франции - Париж (Paris). Это большой город на реке Сене, и там живёт много людей.",
    "emoji": "Sure thing 😀👍🏽 here you go: ✅ ✅ ✅ all tests passed, enjoy your day 🎉",
    "maths": "Let α = β² and γ ≥ π/2; then ∑ αᵢ = Ω(n log n), as Euler showed for ζ(2) = π²/6.",
    "quoted greek and hebrew": SENTENCES + " They say λόγος in Greek.",
    "list": "\n".join(f"- item {n}: it is the {n}th of the list" for n in range(1, 12)),
    "lyrics": "La la la la, la la la la, sing with me. La la la la, and now the end.",
}


@pytest.mark.parametrize("name", NAN)
def test_signs_of_nan(name: str) -> None:
    given, kind = NAN[name]
    assert kind in kinds(judge(given), "nan")


@pytest.mark.parametrize("name", DEGRADED)
def test_signs_of_a_degraded_answer(name: str) -> None:
    given, kind = DEGRADED[name]
    found = judge(given, Expect(shortest=4))
    assert kind in kinds(found, "degraded")
    assert kinds(found, "nan") == set()


@pytest.mark.parametrize("name", SOBER)
def test_ordinary_text_is_left_alone(name: str) -> None:
    found = [finding for finding in judge(reply(SOBER[name])) if finding.grade != "note"]
    assert found == []


@pytest.mark.parametrize("failure", ["refused", "silent", "dropped"])
def test_no_answer_is_dead(failure: str) -> None:
    assert kinds(judge(Reply(failure=failure)), "dead") == {failure}


def test_a_known_answer_is_looked_for_and_garbage_behind_it_is_seen() -> None:
    four = Expect(answer=(r"(?<!\d)4(?!\d)",), wanted="4")
    assert judge(reply("2+2 equals 4."), four) == []
    assert kinds(judge(reply("2+2 equals 5."), four), "degraded") == {"wrong-answer"}
    assert kinds(judge(reply("2+2 equals 4.!.!.!"), four), "nan") == {"token-zero-strewn"}
    assert judge(reply("", reasoning="so that is 4, then"), four) == []


def test_sure_answers_may_have_equal_logprobs() -> None:
    sure = [Logprob(token, 0.0, (("x", -20.0),)) for token in "Paris is it."]
    assert judge(reply("Paris is it.", logprobs=sure)) == []


def test_the_best_of_one_token_may_tie() -> None:
    """Seen on a healthy SGLang 0.5.9: three tokens of one logprob in bfloat16, and then the answer was over."""
    tied = [Logprob("a", -6.25, (("a", -6.25), ("b", -6.25), ("c", -6.25)))]
    assert kinds(judge(reply("a", logprobs=tied)), "nan") == set()
    assert kinds(judge(reply("aaa", logprobs=tied * 3)), "nan") == {"uniform-logprobs"}


def test_what_an_engine_may_leave_out_is_a_note() -> None:
    bare = reply("2+2 equals 4.", done_seen=False, asked_logprobs=True)
    assert kinds(judge(bare), "note") == {"no-done", "no-logprobs"}
    assert verdict(judge(bare), answered=True) == "healthy"


def test_an_untaught_model_may_stammer_when_its_numbers_are_sound() -> None:
    untaught = Expect(fluent=False, known=False)
    sound = [Logprob("!", -0.5 - n / 10, (("a", -2.0),)) for n in range(8)]
    assert verdict(judge(reply("!" * 8, logprobs=sound), untaught), answered=True) == "healthy"
    assert verdict(judge(reply("!" * 8), untaught), answered=True) == "nan"
    assert verdict(judge(reply("We" + "e" * 30), untaught), answered=True) == "healthy"
    assert verdict(judge(reply("We" + "e" * 30)), answered=True) == "degraded"


def test_one_token_for_every_question_is_nan_unless_the_logprobs_are_sound() -> None:
    def stuck(name: str, **fields: object) -> Judged:
        made = reply(" ca" * 32, **fields)
        return Judged(name, made, tuple(judge(made)))

    two = settle([stuck("a"), stuck("b")])
    assert verdict([entry.finding for entry in two], answered=True) == "nan"
    assert verdict([entry.finding for entry in settle([stuck("a")])], answered=True) == "degraded"
    sound = [Logprob(" ca", -0.1 - n / 100) for n in range(8)]
    told = settle([stuck("a"), stuck("b", logprobs=sound)])
    assert verdict([entry.finding for entry in told], answered=True) == "degraded"


def test_a_missing_done_is_a_fault_where_the_engine_sends_one() -> None:
    without = reply("2+2 equals 4.", done_seen=False)
    one = Judged("a", without, tuple(judge(without)))
    assert verdict([entry.finding for entry in settle([one])], answered=True) == "healthy"
    assert verdict([entry.finding for entry in settle([one], sends_done=True)], answered=True) == "degraded"


def test_numbers_that_json_forbids_are_read_as_nan() -> None:
    body = json.dumps(
        {"choices": [{"message": {"content": "a"}, "logprobs": {"content": [{"token": "a", "logprob": math.nan}]}}]}
    )
    assert kinds(judge(read_body(Reply(status=200), body.encode(), stream=False)), "nan") == {"null-logprob"}
