"""Bytes to requests: answers captured from real servers, and the ways in which a stream misleads."""

from __future__ import annotations

import json
import random
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from runbooks.bench.loadgen import rawlog
from runbooks.bench.loadgen.alike import alike
from runbooks.bench.loadgen.records import CONTINUOUS, EVENTS, FINAL, Request, garbage, is_random, request_of
from runbooks.bench.loadgen.server import Server, parse_metrics
from runbooks.bench.loadgen.wire import Shape, Target, cut, head_of, post

DATA = Path(__file__).parent / "data"
MS = 1_000_000


def parsed(data: bytes, *, asked: int = 7, step: int = 0, **meta: Any) -> Request:
    """The answer, read in pieces of `step` bytes a millisecond apart (0: chunk by chunk)."""
    pieces = [data[i : i + step] for i in range(0, len(data), step)] if step else chunks(data)
    reads = [((i + 1) * MS, piece) for i, piece in enumerate(pieces)]
    whole = {"slot": 0, "asked": asked, "start": 0, "end": len(reads) * MS} | meta
    return request_of(whole, reads)


def chunks(data: bytes) -> list[bytes]:
    head = data.index(b"\r\n\r\n") + 4
    return [data[:head], *re.findall(rb".+?\n\n\r\n|.+\Z", data[head:], re.S)]


def sse(*messages: dict[str, Any] | str, done: bool = True) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    lines = [m if isinstance(m, str) else json.dumps(m) for m in messages] + (["[DONE]"] if done else [])
    body = b""
    for line in lines:
        data = b"data: " + line.encode() + b"\n\n"
        body += b"%x\r\n%s\r\n" % (len(data), data)
    return head + body + b"0\r\n\r\n"


def delta(content: str = "", *, finish: str | None = None, used: int | None = None, **more: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"choices": [{"index": 0, "delta": {"content": content} | more, "finish_reason": finish}]}
    return message | ({"usage": {"completion_tokens": used, "prompt_tokens": 5}} if used is not None else {})


USED = {"choices": [], "usage": {"completion_tokens": 4, "prompt_tokens": 5}}

CAPTURED = [
    # file, tokens, prompt, text events' source, finish, done
    ("sglang0523-chat", 7, 12, FINAL, "stop", True),
    ("sglang0523-completions", 7, 12, FINAL, "stop", True),
    ("sglang059-chat", 7, 12, FINAL, "stop", True),
    ("router-chat", 7, 12, FINAL, "stop", True),
    ("transformers-chat", 7, 12, FINAL, "stop", False),
    ("sglang0523-lumped", 4, None, EVENTS, "stop", True),
]


@pytest.mark.parametrize(("name", "tokens", "prompt", "source", "finish", "done"), CAPTURED)
def test_captured_streams(name: str, tokens: int, prompt: int | None, source: str, finish: str, done: bool) -> None:
    data = (DATA / f"{name}.resp").read_bytes()
    for step in (0, 1, 7, 100_000):  # the same, however the network cuts it
        request = parsed(data, step=step)
        assert (request.tokens, request.prompt_tokens, request.source) == (tokens, prompt, source)
        assert (request.finish_reason, request.done, request.status, request.error) == (finish, done, 200, None)


def test_captured_failures() -> None:
    nan = parsed((DATA / "sglang0523-nan.resp").read_bytes(), asked=32)
    assert nan.tokens == 32
    assert nan.failure == "garbage: '!!!!'"
    assert parsed((DATA / "transformers-500.resp").read_bytes()).failure == "HTTP 500"


def test_a_stream_cut_within_is_a_failure_wherever_it_is_cut() -> None:
    data = (DATA / "sglang0523-chat.resp").read_bytes()
    for at in range(0, len(data) - 8, 97):
        assert parsed(data[:at], step=64).failure is not None


def test_role_chunk_is_no_token() -> None:
    request = parsed(sse(delta(role="assistant"), delta("a"), delta("b"), delta(finish="length"), USED), asked=4)
    assert request.first == 3 * MS  # the head, the role, then the first text
    assert request.tokens == 4
    assert request.failure is None


def test_usage_of_each_chunk_places_tokens_where_they_came() -> None:
    request = parsed(
        sse(delta("a", used=1), delta("", used=5), delta("bc", used=9), delta(finish="length", used=9)), asked=9
    )
    assert request.source == CONTINUOUS
    assert [tokens for _, tokens in request.arrivals] == [1, 5, 9]  # a step without text is a step all the same


def test_several_events_in_one_read_count_at_one_moment() -> None:
    data = sse(delta("a"), delta("b"), delta("c"), delta("d", finish="length"), USED)
    request = parsed(data, asked=4, step=len(data))
    assert request.arrivals == [(MS, 4)]


def test_several_tokens_in_one_event_are_counted_by_usage_not_events() -> None:
    request = parsed(
        sse(delta("aaaa"), delta("aa", finish="length"), {"choices": [], "usage": {"completion_tokens": 6}})
    )
    assert [tokens for _, tokens in request.arrivals] == [3, 6]


def test_reasoning_and_tools_are_tokens_too() -> None:
    request = parsed(
        sse(delta(reasoning_content="x"), delta(reasoning="y"), delta(tool_calls=[{}]), delta("z")), asked=4
    )
    assert request.tokens == 4
    assert request.source == EVENTS


@pytest.mark.parametrize(
    ("messages", "done", "failure"),
    [
        ([delta("a"), delta("b", finish="length")], False, None),  # no [DONE], but a reason to end
        ([delta("a"), delta("b")], False, "stream ended without finish_reason and [DONE]"),
        ([delta("a", finish="length")], True, "short output"),
        ([delta("a"), delta("b"), delta("c", finish="length")], True, "long output"),
        ([delta("a"), {"error": {"message": "out of memory"}}], False, "error in the stream: out of memory"),
        ([delta("a"), delta("b", finish="abort")], True, "aborted by the server"),
        (["{not json"], True, "an event that is not JSON"),
    ],
)
def test_endings(messages: list[Any], done: bool, failure: str | None) -> None:
    request = parsed(sse(*messages, done=done), asked=2)
    assert request.failure == failure
    assert request.done is done


def test_an_error_in_the_stream_is_named_before_the_lost_connection() -> None:
    data = sse(delta("a"), {"error": {"message": "boom"}}, done=False)[:-5]
    assert parsed(data, error="connection: closed by the server").failure == "error in the stream: boom"


def test_nan_stop_and_cut() -> None:
    stop = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "matched_stop": "NaN happened"}]}
    assert parsed(sse(delta("a"), stop), asked=2).failure == "NaN stop"
    assert parsed(sse(delta("a"))[:-20], asked=2, cut=True).failure is None


def test_native_stream_is_cumulative() -> None:
    def told(text: str, used: int, finish: Any = None) -> dict[str, Any]:
        return {"text": text, "meta_info": {"completion_tokens": used, "prompt_tokens": 3, "finish_reason": finish}}

    request = parsed(sse(told("a", 1), told("a b", 2), told("a b c", 3, {"type": "length", "length": 3})), asked=3)
    assert (request.tokens, request.failure, request.prompt_tokens) == (3, None, 3)


def test_garbage() -> None:
    words = [f"w{i} " for i in range(40)]
    assert garbage("".join(words), words, 40) is None
    assert garbage("!" * 30, ["!"] * 30, 30) == "'!!!!'"
    assert garbage("and " * 30, ["and "] * 30, 30) == "one token is most of the text: 'and'"
    assert garbage("?" * 15 + "abcdefghijklm", ["?"] * 15 + list("abcdefghijklm"), 28) is None
    assert garbage("", [], 12) == "tokens, but no text"
    assert garbage(" " * 64, [" "] * 64, 0) is None


def test_tokens_that_never_come_twice_are_no_language() -> None:
    """Equal chances of every token, which is what NaN becomes in some engines; beside it what people write."""
    draw = random.Random(4)
    for vocabulary, length in ((154_880, 100), (154_880, 512), (154_880, 40_000), (32_000, 512), (32_000, 8_000)):
        drawn = [f"{draw.randrange(vocabulary):05x}" for _ in range(length)]
        assert is_random(drawn, length), (vocabulary, length)
    assert not is_random(drawn[:99], 99)  # too short to tell
    assert not is_random(drawn[:200], 600)  # three tokens an event seldom come twice in any text
    assert parsed(sse(*(delta(one) for one in drawn[:120])), asked=120).is_random
    root = Path(__file__).parents[2]
    for page in (root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "runbooks" / "oncall").glob("*.md"))):
        pieces = re.findall(r" ?\w+|\s|[^\w\s]", page.read_text())
        for at in range(0, len(pieces) - 100, 50):
            assert not is_random(pieces[at : at + 100], 100), (page.name, at)


def test_heads() -> None:
    assert head_of(b"HTTP/1.1 200 OK\r\nTransfer-Enc") is None
    with pytest.raises(ValueError, match="not an HTTP answer"):
        head_of(b"SSH-2.0-OpenSSH\r\n\r\n")
    head = head_of(b"HTTP/1.1 503 x\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
    assert head is not None
    assert (head.status, head.length, head.keep, head.chunked) == (503, 2, False, False)
    assert cut([b"HTTP/1.0 200 OK\r\n\r\n", b"data: 1\n\n", b"data: 2"])[1][1].data == b"2"


def test_target_and_request() -> None:
    target = Target.parse("https://host.example/v1/")
    assert (target.host, target.port, target.tls, target.prefix) == ("host.example", 443, True, "")
    with pytest.raises(ValueError, match="not an"):
        Target.parse("ftp://x")
    shape = Shape("chat", "m", 1.0, 0.95)
    sent = post(target, "/v1/chat/completions", shape.body("hi", 3), "k")
    head, _, body = sent.partition(b"\r\n\r\n")
    assert b"Authorization: Bearer k" in head
    assert json.loads(body)["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert json.loads(body)["ignore_eos"] is True
    assert json.loads(body)["stream"] is True


def test_counters_are_summed_over_labels() -> None:
    text = (
        'sglang:generation_tokens_total{is_streaming="false"} 43.0\n'
        'sglang:generation_tokens_total{is_streaming="true"} 92.0\n'
        'sglang:realtime_tokens_total{mode="prefill_compute"} 9.0\nsglang:realtime_tokens_total{mode="decode"} 129.0\n'
    )
    assert parse_metrics(text) == {"generation_tokens": 135.0, "decode_tokens": 129.0}
    hits = 'cached_tokens_total{cache_source="device"} 5.0\nsglang:cached_tokens_total{cache_source="host"} 2.0\n'
    assert parse_metrics(f"sglang:{hits}vllm:num_requests_waiting 3\n") == {"cached_tokens": 7.0, "queued": 3.0}
    assert parse_metrics('vllm:prefix_cache_hits_total{engine="0"} 96.0\n') == {"cached_tokens": 96.0}
    assert Server(Target("127.0.0.1", 1, False, ""), None).counters() is None


def test_raw_log_survives_being_cut_off(tmp_path: Path) -> None:
    blocks: list[rawlog.Block] = [({"kind": "request", "n": n}, [(n, b"x" * n), (n + 1, b"")]) for n in range(3)]
    path = tmp_path / "a.bin"
    rawlog.write(path, blocks)
    data = path.read_bytes()
    assert list(rawlog.decode(data)) == blocks
    assert list(rawlog.decode(data[:-1])) == blocks[:2]
    rawlog.join(tmp_path / "b.bin", {"kind": "point"}, [path, tmp_path / "absent"])
    assert [meta["kind"] for meta, _ in rawlog.decode((tmp_path / "b.bin").read_bytes())] == ["point"] + ["request"] * 3
    assert not path.exists()
    with pytest.raises(ValueError, match="not a raw log"):
        list(rawlog.decode(b"PK"))


def answers(rng: random.Random) -> bytes:
    """A stream with all that makes one event unlike the one before: escapes, reasoning, a new second, no usage."""
    words = ("word", ' "quoted"', "\n", "é", " \u2028", "id", "data:", "{}", " a", "\\", "5", "名", "")
    field = rng.choice(("content", "reasoning_content"))
    told, stamp = b"", 100
    for number in range(1, rng.randint(2, 40)):
        stamp += rng.random() < 0.1
        if rng.random() < 0.1:
            field = rng.choice(("content", "reasoning_content"))
        delta = {"content": None, field: rng.choice(words)}
        message = {"id": "id", "created": stamp, "choices": [{"delta": delta, "finish_reason": None}]}
        if rng.random() < 0.9:
            message["usage"] = {"prompt_tokens": 7, "total_tokens": 7 + number, "completion_tokens": number}
        told += b"data: " + json.dumps(message, ensure_ascii=rng.random() < 0.5).encode() + b"\n\n"
    ending = {"choices": [{"delta": {"content": rng.choice(words)}, "finish_reason": "length"}]}
    return told + b"data: " + json.dumps(ending).encode() + b"\n\n" + rng.choice((b"data: [DONE]\n\n", b""))


def test_short_ways_end_where_the_long_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that are alike are not parsed, and whole chunks not searched: the same requests come out."""
    rng, taken = random.Random(8), 0
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    for _ in range(40):
        body = answers(rng)
        whole = [event + b"\n\n" for event in body.split(b"\n\n")[:-1]]
        raw = head + b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in whole) + b"0\r\n\r\n"
        borders = [at + 2 for at in range(len(raw)) if raw[at : at + 2] == b"\r\n"] if rng.random() < 0.5 else []
        borders = [at for at in borders if raw[at - 4 : at] == b"\n\n\r\n"]
        borders += rng.sample(range(1, len(raw)), rng.randint(0, 5))
        edges = [0, *sorted(set(borders)), len(raw)]
        reads = [(1000 + i, raw[a:b]) for i, (a, b) in enumerate(pairwise(edges)) if b > a]
        meta = {"slot": 0, "asked": 5, "start": 0, "end": 10**6}
        one = request_of(meta, reads)
        with monkeypatch.context() as slow:
            slow.setattr("runbooks.bench.loadgen.records.alike", lambda *_: None)
            assert request_of(meta, reads) == one
        events = cut([data for _, data in reads])[1]
        assert [event.data for event in events] == [event.data for event in cut([raw])[1]]
        for number, event in rng.sample(
            list(enumerate(events)), min(3, len(events))
        ):  # it was not there one read before
            assert len(cut([data for _, data in reads[: event.read]])[1]) <= number + 1
            assert len(cut([data for _, data in reads[: event.read + 1]])[1]) > number
        taken += sum(1 for e in events if (m := alike(e.data, "word")) and m.read(e.data))
    assert taken > 10  # the short way was gone
