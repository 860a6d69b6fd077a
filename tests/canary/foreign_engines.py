"""Three servers in full, each unlike SGLang in all that it shows: llama.cpp's, TensorRT-LLM's, and vLLM's.

Routes, health, metrics, refusals, and how NaN comes out, as their own sources have it (tools/server of llama.cpp,
tensorrt_llm/serve/openai_server.py, vllm/entrypoints/openai), shortened. `Sick` is what a poison does to the numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.canary.other_engines import JSON, STOP, Body, Http, deltas, error, events, pieces, usage

NULL, NAN_WORD, FLAT = "null", "NaN", "-9999.0"


@dataclass(frozen=True)
class Sick:
    """What the numbers behind a text look like: None is sound, else how this engine writes a logprob that is none."""

    logprob: str | None = None


SOUND = Sick()


def _logprob(sick: Sick, piece: str) -> float | None:
    if sick.logprob is None:
        return -0.05 - len(piece) / 40
    return {NULL: None, NAN_WORD: float("nan"), FLAT: -9999.0}[sick.logprob]


def _chat_logprobs(body: Body, sick: Sick, piece: str) -> Any:
    if not body.get("logprobs"):
        return None
    entry = {"token": piece, "bytes": list(piece.encode()), "logprob": _logprob(sick, piece)}
    other = -4.0 if sick.logprob is None else entry["logprob"]
    return {"content": [{**entry, "top_logprobs": [entry, {"token": " x", "bytes": [32, 120], "logprob": other}]}]}


# --- llama.cpp: POST /v1/chat/completions; timings; errors as `error:` or `data:` events; no echo; health is a word


def llama_server(body: Body, text: str, sick: Sick = SOUND) -> Http:
    if body.get("logprobs") and sick.logprob is not None:
        return error(400, "[json.exception.type_error.302] type must be number, but is null", code=400)
    head = {"id": "chatcmpl-Q4", "object": "chat.completion.chunk", "created": 1, "system_fingerprint": "b6999-8f2"}
    chunks: list[Body] = [
        {"choices": [{"finish_reason": None, "index": 0, "delta": {"role": "assistant", "content": None}}]}
    ]
    for delta, piece in zip(deltas(body, text), pieces(body, text), strict=True):
        if (logprobs := _chat_logprobs(body, sick, piece)) is not None:
            delta["choices"][0]["logprobs"] = logprobs
        chunks.append(delta)
    chunks.append(STOP)
    counted = {**usage(body, text), "timings": {"prompt_n": 1, "predicted_n": 3, "predicted_per_second": 31.0}}
    return events([{**head, **chunk} for chunk in [*chunks, *([counted] if body.get("stream_options") else [])]])


def llama_completions(body: Body, sick: Sick = SOUND) -> Http:
    """`echo` is not known and not refused; logprobs come in the shape of chat."""
    logprobs = _chat_logprobs({"logprobs": 1}, sick, " and")
    choice = {"text": " and", "index": 0, "logprobs": logprobs, "finish_reason": "length"}
    return 200, JSON, json.dumps({"choices": [choice], "object": "text_completion", "usage": {"completion_tokens": 1}})


LLAMA_PAGES: Mapping[str, Http] = {
    "/health": (200, JSON, '{"status":"ok"}'),
    "/metrics": error(501, "This server does not support metrics endpoint. Start it with `--metrics`", code=501),
    "/props": (200, JSON, '{"total_slots":4,"chat_template":"{{ x }}"}'),
    "/slots": (200, JSON, '[{"id":0,"n_ctx":8192,"is_processing":false}]'),
}


# --- TensorRT-LLM: refuses every field that it does not know; errors flat; metrics are a list of JSON


def _flat_error(status: int, message: str) -> Http:
    document = {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": status}
    return status, JSON, json.dumps(document)


def trtllm_server(body: Body, text: str, sick: Sick = SOUND) -> Http:
    for name in ("chat_template_kwargs", "priority"):
        if name in body:
            why = f"[{{'type': 'extra_forbidden', 'loc': ('body', '{name}'), 'msg': 'Extra inputs are not permitted'}}]"
            return _flat_error(400, why)
    if body.get("top_logprobs"):
        return _flat_error(400, "top_logprobs is not supported")
    end: Body = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": None}]}
    named = deltas(body, text, reasoning_content=None, tool_calls=[])
    return events([*({"object": "chat.completion.chunk", **delta} for delta in named), end, usage(body, text)])


def trtllm_completions(body: Body, sick: Sick = SOUND) -> Http:
    return _flat_error(400, "echo is not supported")


TRTLLM_PAGES: Mapping[str, Http] = {
    "/health": (200, "text/plain", ""),
    "/version": (200, JSON, '{"version":"1.1.0"}'),
    "/metrics": (200, JSON, '[{"gpuMemUsage":76665782272,"iter":154,"numActiveRequests":1,"kvCacheStats":{}}]'),
    "/server_info": (200, JSON, '{"disaggregated_params":{}}'),
}


# --- vLLM: whole logprobs, echo of the prompt; NaN cannot be encoded: HTTP 500, or inside the stream


def vllm_server(body: Body, text: str, sick: Sick = SOUND) -> Http:
    if body.get("logprobs") and sick.logprob == NAN_WORD:
        message = "Out of range float values are not JSON compliant: nan"
        return events([{"error": {"message": message, "type": "InternalServerError", "code": 500}}])
    chunks = []
    for delta, piece in zip(deltas(body, text, reasoning=None), pieces(body, text), strict=True):
        delta["choices"][0]["logprobs"] = _chat_logprobs(body, sick, piece)
        chunks.append(delta)
    return events([*chunks, {**STOP, "prompt_token_ids": None}, usage(body, text)])


def vllm_completions(body: Body, sick: Sick = SOUND) -> Http:
    if sick.logprob == NAN_WORD:
        return error(500, "Out of range float values are not JSON compliant: nan", type="InternalServerError")
    words = [*body["prompt"].split(), "and"]
    values = [None, *(_logprob(sick, word) for word in words[1:])]
    tops = [None, *({word: value} for word, value in zip(words[1:], values[1:], strict=True))]
    logprobs = {"text_offset": [0] * len(words), "token_logprobs": values, "tokens": words, "top_logprobs": tops}
    choice = {"index": 0, "text": " ".join(words), "logprobs": logprobs, "finish_reason": "length", "stop_reason": None}
    counted = {"prompt_tokens": len(words) - 1, "completion_tokens": 1, "prompt_tokens_details": None}
    return 200, JSON, json.dumps({"id": "cmpl-1", "choices": [choice], "usage": counted})


VLLM_PAGES: Mapping[str, Http] = {
    "/health": (200, "text/plain", ""),
    "/version": (200, JSON, '{"version":"0.11.0"}'),
    "/metrics": (
        200,
        "text/plain",
        'vllm:num_requests_running{engine="0",model_name="glm-5"} 1.0\n'
        'vllm:num_requests_waiting{engine="0",model_name="glm-5"} 0.0\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="glm-5"} 0.12\n',
    ),
}


@dataclass(frozen=True)
class Foreign:
    chat: Any  # (body, text, sick) -> Http
    completions: Any  # (body, sick) -> Http
    pages: Mapping[str, Http]
    logprobs: bool  # shows them in chat


FOREIGN: Mapping[str, Foreign] = {
    "llama.cpp": Foreign(llama_server, llama_completions, LLAMA_PAGES, logprobs=True),
    "trtllm": Foreign(trtllm_server, trtllm_completions, TRTLLM_PAGES, logprobs=False),
    "vllm": Foreign(vllm_server, vllm_completions, VLLM_PAGES, logprobs=True),
}
