"""Every way in which an answer can show that its numbers are broken, on three servers that are unlike SGLang."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from runbooks.canary.probe.client import Endpoint
from runbooks.canary.probe.run import Canary
from runbooks.canary.probe.server import look
from tests.canary.foreign_engines import FLAT, FOREIGN, NAN_WORD, NULL, SOUND, Sick
from tests.canary.other_engines import SHAPES, Body, Engine, Http, error, events
from tests.canary.scripted_server import right_answer

pytestmark = pytest.mark.served


def right(body: Body) -> str:
    return right_answer(body["messages"][-1]["content"])


def always(text: str) -> Callable[[Body], str]:
    return lambda _body: text


def strewn(body: Body) -> str:
    """Token 0 at single positions, as where one expert of many is broken."""
    return right(body).replace(". ", ".!.! ", 1).replace(" the ", " the! ") + ".!.!.! How"


@dataclass(frozen=True)
class Poison:
    """`answer` is the text; `numbers` what stands behind it; `breaks` what the HTTP layer makes of some answers.
    `hidden`: only logprobs tell, so that a server without any cannot show it."""

    verdict: str
    answer: Callable[[Body], str] = right
    numbers: Sick = SOUND
    breaks: Callable[[Body, Http], Http | None] = lambda _body, http: http
    hidden: bool = False


def sampled(body: Body) -> bool:
    return bool(body.get("temperature"))


def _fails(words: str) -> Callable[[Body, Http], Http | None]:
    return lambda _body, _http: error(500, words)


def _cut(_body: Body, http: Http) -> Http | None:
    """The stream ends in the middle of an event, and HTTP says that this was all."""
    status, kind, text = http
    return (status, kind, text[: len(text) * 2 // 3]) if kind == "text/event-stream" else http


def _fails_inside(_body: Body, http: Http) -> Http | None:
    first = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "2"}}]}
    return events(
        [first, {"error": {"code": 500, "message": "llama_decode() failed, ret = -3", "type": "server_error"}}]
    )


def _fails_inside_flat(_body: Body, http: Http) -> Http | None:
    """Without `data:` before it, as older servers of llama.cpp wrote it."""
    line = 'error: {"code":500,"message":"Invalid output: the logits contain NaN","type":"server_error"}\n\n'
    return 200, "text/event-stream", line


def _ended_by_error(_body: Body, http: Http) -> Http | None:
    return events(
        [{"choices": [{"index": 0, "delta": {"content": "2"}}]}, {"choices": [{"delta": {}, "finish_reason": "error"}]}]
    )


POISONS: dict[str, Poison] = {
    "token zero is '!'": Poison("nan", always("!" * 60)),
    "token zero is '!', in words": Poison("nan", always(" ".join(["!" * 4] * 20))),
    "token zero is <unk>": Poison("nan", always("<unk>" * 30)),
    "token zero is <pad>, a word each": Poison("nan", always(" ".join(["<pad>"] * 30)), Sick(NULL)),
    "token zero is the sentencepiece of the unknown": Poison("nan", always(" \u2047 " * 30), Sick(NULL)),
    "one letter, as halves that overflow give": Poison("nan", always("G" * 120), Sick(NULL)),
    "one letter, a token each": Poison("nan", always(" ".join("@" * 40)), Sick(NULL)),
    "token zero strewn over a good answer": Poison("nan", strewn),
    "logprobs null": Poison("nan", numbers=Sick(NULL), hidden=True),
    "logprobs NaN": Poison("nan", numbers=Sick(NAN_WORD), hidden=True),
    "logprobs all the least there is": Poison("nan", numbers=Sick(FLAT), hidden=True),
    "HTTP 500 of the encoder": Poison("nan", breaks=_fails("Out of range float values are not JSON compliant")),
    "HTTP 500 of the sampler": Poison("nan", breaks=_fails("probability tensor contains inf, nan or element < 0")),
    "HTTP 500 without a word, to everything": Poison("dead", breaks=_fails("Internal Server Error")),
    "an error inside the stream": Poison("degraded", breaks=_fails_inside),
    "an error as an event of its own": Poison("nan", breaks=_fails_inside_flat),
    "the request ended by an error": Poison("degraded", breaks=_ended_by_error),
    "a stream that is cut": Poison("degraded", breaks=_cut),
    "nothing at all": Poison("degraded", always("")),
    "white space": Poison("degraded", always("\n" * 20)),
    "one token": Poison("degraded", always("The")),
    "a loop of words": Poison("degraded", always("the cat sat on " * 30)),
    "words of no language": Poison("degraded", always("приhello мирworld 北京 ثقافة שלום kettle ไทย обедlamp " * 3)),
    "broken bytes": Poison("degraded", always("\ufffd\ufffd is \ufffd\ufffd\ufffd of \ufffd " * 6)),
    "right words, wrong answers": Poison("degraded", always("The harbour lies north of the old town, near the mill.")),
    "sampling ends the server's process": Poison("dead", breaks=lambda body, http: None if sampled(body) else http),
}  # fmt: skip


def run(name: str, poison: Poison, battery: str = "quick") -> tuple[str, list[dict[str, Any]]]:
    made, found = FOREIGN[name], list[dict[str, Any]]()

    def shape(body: Body, text: str) -> Http | None:
        http: Http = made.chat(body, text, poison.numbers)
        return http if http[0] != 200 else poison.breaks(body, http)

    weigh = lambda body: made.completions(body, poison.numbers)  # noqa: E731
    with Engine(shape, poison.answer, pages=made.pages, weigh=weigh) as server:
        canary = Canary(Endpoint(server.url, "glm-5", silence=5.0), battery, lambda event: None)
        verdict = canary.run()
        found += canary.conclusion["findings"]
    return verdict, found


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("battery", ["quick", "gate", "full"])
def test_a_sound_one_is_healthy(name: str, battery: str) -> None:
    verdict, found = run(name, Poison("healthy"), battery)
    assert (verdict, [one for one in found if one["grade"] != "note"]) == ("healthy", [])


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("what", POISONS)
def test_each_poison_is_called_what_it_is(name: str, what: str) -> None:
    poison = POISONS[what]
    seen = "healthy" if poison.hidden and not FOREIGN[name].logprobs else poison.verdict
    verdict, found = run(name, poison)
    assert verdict == seen, found


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("what", [what for what in POISONS if POISONS[what].answer is not right])
def test_no_text_that_is_poisoned_is_called_healthy_in_any_dialect(name: str, what: str) -> None:
    models = ("llama3:8b",) if name == "ollama" else ("glm-5",)
    with Engine(SHAPES[name], POISONS[what].answer, models=models) as server:
        canary = Canary(Endpoint(server.url, "glm-5", silence=5.0), "quick", lambda event: None)
        verdict = canary.run()
    sense_first = name.startswith(("thinks", "wordy"))  # what comes after a sound thought may be a collapse as well
    assert verdict in (POISONS[what].verdict, "nan", *(["degraded"] if sense_first else [])), canary.conclusion


@pytest.mark.parametrize("name", ["llama.cpp", "vllm"])
def test_numbers_that_are_in_order_make_one_letter_a_kernels_fault_and_no_nan(name: str) -> None:
    assert run(name, Poison("degraded", always(" ".join("@" * 40))))[0] == "degraded"


def test_how_busy_vllm_is() -> None:
    with Engine(lambda body, text: None, right, pages=FOREIGN["vllm"].pages) as server:
        about = look(Endpoint(server.url, "glm-5"))
    assert (about.running, about.queued, about.kv_use) == (1, 0, 0.12)
