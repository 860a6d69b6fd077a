"""Raw answers of real engines, as they came over the socket: data/<engine>-<model>/<case>.resp.

`healthy` models answer rightly; `nan-*` and `inf-*` are the same tiny models with broken weights; `hf` is
transformers serve, which sends
neither [DONE] nor logprobs; `llmock` and `guidellm-mock` are other people's mock servers; `nandetect` runs with
--enable-nan-detection.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from runbooks.canary.probe.judge import Expect, judge
from runbooks.canary.probe.reply import Reply, read_body
from runbooks.canary.probe.verdict import Judged, settle, verdict

DATA = Path(__file__).parent / "data"

EXPECTED = {
    "guidellm-mock": "healthy",
    "hf-healthy": "healthy",
    "hf-inf-layer": "nan",
    "hf-nan-expert": "nan",
    "hf-nan-headrow": "nan",
    "hf-nan-layer": "nan",
    "hf-nan-one": "nan",
    "hf-random": "degraded",
    "hf-sample-cb-nan-expert": "dead",  # every request ends in a bare HTTP 500: nothing says NaN
    "hf-sample-cb-nan-layer": "dead",
    "hf-sample-plain-nan-expert": "nan",
    "hf-sample-plain-nan-layer": "nan",
    "llmock": "healthy",
    "router-2workers": "healthy",
    "sglang0523-glm4moe-healthy": "healthy",
    "sglang0523-glm4moe-inf-layer": "nan",
    "sglang0523-glm4moe-nan-expert": "nan",
    "sglang0523-glm4moe-nan-headrow": "nan",
    "sglang0523-glm4moe-nan-layer": "nan",
    "sglang0523-glm4moe-nan-one": "nan",
    "sglang0523-llama-healthy": "healthy",
    "sglang059-glm4moe-healthy": "healthy",
    "sglang059-glm4moe-nan-layer": "nan",
    "sglang059-nandetect-glm4moe-nan-headrow": "healthy",  # hidden by the server itself: only its journal tells
    "sglang059-nandetect-glm4moe-nan-layer": "nan",
}

ANSWERS = {"chat2": Expect(answer=("Paris",), wanted="Paris", fluent=False)}
SUM = Expect(answer=(r"(?<!\d)4(?!\d)",), wanted="4", fluent=False)
FREE = Expect(fluent=False)
UNTAUGHT = Expect(fluent=False, known=False)


def read_capture(path: Path) -> Reply:
    """A reply from the raw bytes of one connection."""
    raw, case = path.read_bytes(), path.stem
    reply = Reply(asked_logprobs="logprobs" in case)
    head, found, body = raw.partition(b"\r\n\r\n")
    if not found:
        reply.failure = "dropped"
        return reply
    reply.status = int(head.split()[1])
    if b"chunked" in head.lower():
        body = b"".join(_chunks(body))
    return read_body(reply, body, stream="stream" in case)


def _chunks(body: bytes) -> Iterator[bytes]:
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            return
        yield rest[:length]
        body = rest[length + 2 :]


def expect(engine: str, case: str) -> Expect:
    if "mock" in engine or "story" in case or "long" in case:
        return UNTAUGHT if case == "chat_too_long" else FREE
    return ANSWERS.get(case, SUM)


WRONGLY_ASKED = ("chat_bad_json", "chat_bad_model", "chat_too_long")
"""Requests that no canary sends, but for one that is too long."""
NOT_THERE = {("llmock", "cmpl"), ("llmock", "cmpl_stream_usage")}  # it has no /v1/completions


def answers(engine: str) -> list[Path]:
    """What the battery could have got, in the order in which it asks: greedy, logprobs, long, sampled."""
    cases = [path for path in (DATA / engine).glob("*.resp") if not path.stem.startswith(("get_", *WRONGLY_ASKED))]
    there = [path for path in cases if (engine, path.stem) not in NOT_THERE]
    return sorted(there, key=lambda path: ("sampled" in path.stem, path.stem))


def judged(engine: str) -> list[Judged]:
    """The captured answers of one engine, judged."""
    cases = answers(engine)
    replies = [(path.stem, read_capture(path)) for path in cases]
    return [Judged(case, reply, tuple(judge(reply, expect(engine, case)))) for case, reply in replies]


def verdict_of(engine: str) -> str:
    one_by_one = judged(engine)
    findings = [entry.finding for entry in settle(one_by_one, sends_done=engine.startswith("sglang"))]
    return verdict(findings, answered=any(one.reply.status == 200 for one in one_by_one))
