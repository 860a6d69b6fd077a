"""VALID or INVALID, point by point, with the reasons. A number not to be believed is never shown as one that is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runbooks.bench.ceiling import Ceiling
from runbooks.bench.loadgen.lateness import CPU_SHARE, FAILED_SHARE, late
from runbooks.bench.loadgen.records import EVENTS

DISAGREEMENT = 0.01  # client tokens against the server's own counter
CACHED_SHARE = 0.05  # of prompt tokens
TEMPLATE = 24  # tokens a prompt that may be cached all the same: the chat template and the prompts' first word
RANDOM_SHARE = 0.1  # of the answers
LENGTH_OFF = 0.02  # prompt tokens against those asked for
IN_FLIGHT = 0.95  # of the concurrency, mean over the window
QUEUED_SHARE = 0.1  # of the concurrency, at both ends of the window
SPLIT_GAIN = 0.02  # what a second client process may find more, beyond the noise
PASSES_APART = 0.05  # between two passes over the sweep, beyond the noise
KEPT_UP = 0.90  # requests that ended against those that were due, in an open loop
LONG, WARMUP = 2.5, 10.0  # answers that a proposed window is long, and seconds before it: a short one has a short one
HEADROOM = 2.0  # times what a point needs, that a client which fell behind the null server must have read of it
CAUGHT = 0.995  # of the null server's chunks


@dataclass(frozen=True)
class Limits:
    """What the server says of its own limits; None: it does not say."""

    max_running: int | None = None
    graph_max: int | None = None
    graphs_off: bool | None = None

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Limits:
        """From /server_info. Names moved between versions, and some stand in `internal_states`."""
        states = info.get("internal_states")
        state: Mapping[str, Any] = (
            states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
        )
        running = [
            value
            for source in (info, state)
            for name in ("max_running_requests", "effective_max_running_requests_per_dp")
            if isinstance(value := source.get(name), int) and value > 0
        ]
        # Seen in 0.5.23: what was resolved stands in cuda_graph_config, and the arguments are null beside it.
        resolved = info.get("cuda_graph_config")
        decode: Mapping[str, Any] = (resolved.get("decode") or {}) if isinstance(resolved, dict) else {}
        captured = decode.get("bs") or info.get("cuda_graph_bs_decode") or info.get("cuda_graph_bs") or [None]
        graphs = (
            decode.get("max_bs")
            or info.get("cuda_graph_max_bs_decode")
            or info.get("cuda_graph_max_bs")
            or captured[-1]
        )
        off = True if decode.get("backend") == "disabled" else info.get("disable_cuda_graph")
        return cls(
            min(running, default=None),
            graphs if isinstance(graphs, int) else None,
            off if isinstance(off, bool) else None,
        )


def faults(
    point: Mapping[str, Any], limits: Limits, ceiling: Ceiling | None, check: Mapping[str, Any] | None = None
) -> list[str]:
    """Why this point is INVALID; an empty list: it is VALID. Of one that was interrupted nothing else can be told.

    `check` is what the null server says of the client.
    """
    if point["interrupted"]:
        return _requests(point)
    return [
        *_requests(point),
        *_inputs(point),
        *_server(point, limits),
        *_client(point),
        *_headroom(point, check),
        *_passes(point),
        *_open(point),
        *_roofline(point, ceiling),
    ]


def _requests(point: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    requests = point["requests"]
    if point["interrupted"]:
        found.append("interrupted before its window was over")
    elif point.get("given_up"):
        found.append("given up early: nearly every request failed")
    elif not requests["sent"] or not point["tok_s"]:
        found.append("no tokens came within the window")
    if requests["failed"] > FAILED_SHARE * requests["sent"]:
        kinds = ", ".join(f"{count} x {kind}" for kind, count in list(requests["failures"].items())[:3])
        found.append(f"{requests['failed']} of {requests['sent']} requests failed: {kinds}")
    return found


def cached_of(point: Mapping[str, Any]) -> float:
    """Prompt tokens that came from the prefix cache: as usage says, or the server's own counter, whichever is more.

    SGLang's usage tells them with --enable-cache-report alone, vLLM's with --enable-prompt-tokens-details.
    """
    return float(max(point["tokens"]["cached"], point["server"].get("cached_tokens") or 0))


def without_sense(point: Mapping[str, Any], canary: Mapping[str, Any] | None) -> list[str]:
    """What says that the numbers inside the model are broken: then the speed is none of a model's.

    A sweep of random weights makes such text too: one that says what it is is not asked.
    """
    found: list[str] = []
    garbled, sent = point["requests"]["random"], point["requests"]["sent"]
    if garbled > RANDOM_SHARE * sent:
        found.append(
            f"garbage: hardly a token comes twice in {garbled} of {sent} answers, which is no language: "
            "NaN that became equal chances reads like this"
        )
    if canary and canary["verdict"] == "nan":
        said = f": {canary['found'][0]}" if canary["found"] else ""
        found.append(f"NaN, as the canary found after the sweep{said}")
    return found


def _inputs(point: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    tokens = point["tokens"]
    if tokens["source"].startswith("events"):
        cut = "where an answer was cut, no usage had come yet"
        told = point["requests"]["cut"] and (tokens["source"] != EVENTS or not point["requests"]["ok"])
        found.append(f"{cut if told else 'the server sent no usage'}: events are not tokens")
    sent = point["requests"]["sent"]
    prompt, cached = tokens["prompt"] or point["input_len"] * sent, cached_of(point)
    meant = point.get("shared_len", 0) * sent  # a shared prefix is there to be cached
    if cached - meant > max(CACHED_SHARE * prompt, TEMPLATE * sent):
        found.append(f"prefix cache: {cached / prompt:.0%} of the prompt tokens were cached")
    off = tokens.get("prompt_off")
    if off is not None and off > max(4, LENGTH_OFF * point["input_len"]):
        low, high = tokens["prompt_min"], tokens["prompt_max"]
        found.append(f"prompts had {low} to {high} tokens, up to {off} off what was asked ({point['lengths']})")
    return found


def _server(point: Mapping[str, Any], limits: Limits) -> list[str]:
    found: list[str] = []
    b, server = point["concurrency"], point["server"]
    if limits.max_running is not None and b > limits.max_running:
        found.append(f"max_running_requests is {limits.max_running}: the rest waited in the queue")
    if limits.graph_max is not None and not limits.graphs_off and b > limits.graph_max:
        found.append(f"CUDA graphs end at {limits.graph_max} streams: above that decode runs without")
    if (server.get("queued") or 0) > QUEUED_SHARE * b:
        found.append(f"{server['queued']:.0f} or more requests stood in the server's queue")
    if point["tok_s"] and not point.get("open") and point["in_flight"] < IN_FLIGHT * b:
        found.append(f"only {point['in_flight']:.1f} of {b} streams were in flight")
    difference = server.get("difference")
    if difference is not None:
        # Over a window, each stream may hold one chunk back at either end.
        slack = 0.0 if "whole" in server["counter"] else 2 * b / max(1.0, server["server_tokens"])
        if abs(difference) > DISAGREEMENT + slack:
            ours, theirs = server["client_tokens"], server["server_tokens"]
            others = ", likely for others: users, or a canary's timer" if theirs > ours else ""
            found.append(f"we count {ours:.0f} tokens, the server {theirs:.0f} ({difference:+.1%}){others}")
    return found


def _client(point: Mapping[str, Any]) -> list[str]:
    client = point["client"]
    found: list[str] = []
    if client["cpu_share"] > CPU_SHARE:
        found.append(f"the client was near its limit: {client['cpu_share']:.0%} of a core in one process")
    return found + late(point)


def _headroom(point: Mapping[str, Any], check: Mapping[str, Any] | None) -> list[str]:
    """Where the client did not keep up with the null server: whether it could have read what this point needs."""
    if not check or check["ok"]:
        return []
    if check["caught"] < CAUGHT * check["expected"]:
        return [f"the client lost chunks of the null server: {check['caught']} of {check['expected']} came"]
    if check["seen_rate"] < HEADROOM * point["tok_s"]:
        return [f"the client reads {check['seen_rate']:,.0f} chunks/s at most, and {point['tok_s']:,.0f} came"]
    return []


def _passes(point: Mapping[str, Any]) -> list[str]:
    """What the passes over the sweep say of each other."""
    found: list[str] = []
    split = point.get("split")
    if split and split["gain"] is not None and split["gain"] > max(SPLIT_GAIN, split["noise"]):
        few, many = split["processes"]
        found.append(f"split test: {many} client processes found {split['gain']:.1%} more than {few}")
    rates = [(one["tok_s"], one.get("tok_s_ci") or 0.0) for one in point.get("repeats") or [point]]
    (low, low_ci), (high, high_ci) = min(rates), max(rates)
    if low and high / low - 1 > max(PASSES_APART, math.hypot(low_ci, high_ci) / low):
        found.append(f"its passes differ by {high / low - 1:.1%}: the machine drifts, or something else ran")
    return found


def _open(point: Mapping[str, Any]) -> list[str]:
    told = point.get("open")
    if not told or point["interrupted"]:
        return []
    due = KEPT_UP * told["offered"]
    if told["ended"] >= due or told["started"] < due:
        return []
    window, answer = point["window_s"] / max(1, len(point["windows"])), _answer_s(point)
    warmup = point["timeline"]["window"][0]
    unended = max(0.0, answer - warmup)  # of the window: until then not even the first had ended
    if answer > window or (unended and told["ended"] >= due * (1 - unended / window)):
        short = "is shorter than an answer" if answer > window else "began before the first answers had ended"
        lost = 1.2 * (answer - max(warmup, WARMUP)) / (1 - KEPT_UP)
        enough = math.ceil(round(max(LONG * answer, lost), 3) / 10) * 10
        return [f"the window of {window:.0f} s {short} ({answer:.0f} s): --window {enough}"]
    return [f"the server fell behind: {told['offered']:g} requests a second came, {told['ended']:.2f} ended"]


def _answer_s(point: Mapping[str, Any]) -> float:
    """Seconds that an answer takes: of those that ended, else by how fast those under way came; 0: nothing came."""
    if point["e2e_ms"]:
        return float(point["e2e_ms"]["p50"]) / 1e3
    return float(point["output_len"] * point["in_flight"] / point["tok_s"]) if point["tok_s"] else 0.0


def _roofline(point: Mapping[str, Any], ceiling: Ceiling | None) -> list[str]:
    if ceiling is None or not point["decode_tok_s"]:
        return []
    rate, roof = point["decode_tok_s"], ceiling.tok_s(point["concurrency"])
    if rate > 1.02 * roof:
        return [f"{rate:.0f} tok/s is above the roofline of {roof:.0f}: weights cannot be read that fast"]
    return []
