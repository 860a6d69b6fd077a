"""/metrics: SGLang's families, labels and Prometheus text for what a scraper of this project reads.

The counters are exact to the token. Families that need parts the stand-in has not (speculation, disaggregation, sliding
windows, data parallelism) are left out rather than shown as zero: the real 0.5.23 has 82, this about 20.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from . import release
from .engine import Engine, Request

TTFT = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0)
E2E = (
    0.1,
    0.2,
    0.4,
    0.6,
    0.8,
    1.0,
    2.0,
    4.0,
    6.0,
    8.0,
    10.0,
    20.0,
    40.0,
    60.0,
    80.0,
    100.0,
    200.0,
    400.0,
    600.0,
    1200.0,
    1800.0,
    2400.0,
)
ITL = (
    0.002,
    0.004,
    0.006,
    0.008,
    0.01,
    0.015,
    0.02,
    0.025,
    0.03,
    0.035,
    0.04,
    0.06,
    0.08,
    0.1,
    0.2,
    0.4,
    0.6,
    0.8,
    1.0,
    2.0,
    4.0,
    6.0,
    8.0,
)
QUEUE = (
    0.0,
    0.001,
    0.005,
    0.01,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    3.0,
    4.0,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    70.0,
    80.0,
    90.0,
    100.0,
)

Labels = tuple[tuple[str, str], ...]


class Histogram:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def lines(self, name: str, labels: Labels) -> Iterator[str]:
        yield f"{name}_sum{_shown(labels)} {float(self.sum)}"
        total = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            yield f"{name}_bucket{_shown((*labels, ('le', bound)))} {float(total)}"
        yield f"{name}_count{_shown(labels)} {float(total)}"


@dataclass
class Board:
    """Counts finished requests and HTTP traffic; asks the engine for the rest."""

    model: str
    engine: Engine
    page_size: int
    context_length: int
    http_requests: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    http_responses: dict[tuple[str, str, str], int] = field(default_factory=lambda: defaultdict(int))
    http_active: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    gen_throughput: float = 0.0
    cache_hit_rate: float = 0.0
    _sums: dict[tuple[str, bool], int] = field(default_factory=lambda: defaultdict(int))
    _histograms: dict[tuple[str, bool], Histogram] = field(default_factory=dict)

    def finished(self, request: Request) -> None:
        """Count a request when it is over, as the real tokenizer manager does. Health checks are not counted."""
        if not request.counted:
            return
        kind = request.streaming and self._split
        for name, value in (
            ("prompt", len(request.prompt)),
            ("generation", len(request.ids)),
            ("requests", 1),
            ("cached", request.cached),
        ):
            self._sums[name, kind] += value
        if request.first is None or request.ended is None:
            return
        self._histogram("time_to_first_token_seconds", TTFT, kind).observe(request.first - request.arrived)
        self._histogram("e2e_request_latency_seconds", E2E, kind).observe(request.ended - request.arrived)
        self._histogram("queue_time_seconds", QUEUE, False).observe(
            (request.started or request.arrived) - request.arrived
        )

    def token(self, request: Request, gap: float) -> None:
        if request.counted and request.streaming:
            self._histogram("inter_token_latency_seconds", ITL, False).observe(gap)

    def total(self, name: str) -> int:
        """The sum of prompt, generation, requests or cached over both kinds of requests."""
        return self._sums[name, False] + self._sums[name, True]

    def _histogram(self, name: str, bounds: tuple[float, ...], kind: bool) -> Histogram:
        return self._histograms.setdefault((name, kind), Histogram(bounds))

    def text(self) -> str:
        lines = [
            *self._gauges(),
            *self._request_counters(),
            *self._scheduler_counters(),
            *self._request_histograms(),
            *self._http(),
        ]
        return "\n".join(lines) + "\n"

    def _rank(self, *more: tuple[str, str]) -> Labels:
        return tuple(
            sorted(
                (
                    ("engine_type", "unified"),
                    ("model_name", self.model),
                    ("moe_ep_rank", "0"),
                    ("pp_rank", "0"),
                    ("tp_rank", "0"),
                    *more,
                )
            )
        )

    @property
    def _split(self) -> bool:
        """Later releases count streamed and whole answers apart; 0.5.10 has one series and fewer labels."""
        return release.at_least("0.5.13.post1")

    def _by_kind(self, kind: bool) -> Labels:
        if self._split:
            return (
                ("engine_type", "unified"),
                ("is_streaming", "true" if kind else "false"),
                ("model_name", self.model),
            )
        return (("model_name", self.model),)

    def _gauges(self) -> Iterator[str]:
        engine = self.engine
        used = sum(one.length for one in engine.running)
        usage = used / engine.limits.max_tokens
        values: list[tuple[str, str, float]] = [
            ("max_total_num_tokens", "Maximum total number of tokens in the KV cache pool.", engine.limits.max_tokens),
            ("page_size", "KV cache page size in tokens.", self.page_size),
            ("context_len", "Maximum context length.", self.context_length),
            ("num_running_reqs", "The number of running requests.", len(engine.running)),
            ("num_queue_reqs", "The number of requests in the waiting queue.", len(engine.waiting)),
            ("num_grammar_queue_reqs", "The number of requests in the grammar waiting queue.", 0),
            ("gen_throughput", "The generation throughput (token/s).", self.gen_throughput),
            ("cache_hit_rate", "The prefix cache hit rate.", self.cache_hit_rate),
            ("token_usage", "The token usage.", usage),
            ("full_token_usage", "The token usage for full attention layers.", usage),
            ("num_used_tokens", "The number of used tokens.", used),
            (
                "spec_accept_length",
                "Mean acceptance length of speculative decoding (accepted drafts + bonus token per forward).",
                0,
            ),
            (
                "is_cuda_graph",
                "Whether the batch is using CUDA graph.",
                bool(engine.running) and engine.speed.graphed(len(engine.running)),
            ),
        ]
        if not self._split:
            values = [one for one in values if one[0] not in ("page_size", "context_len")]
        for name, help_text, value in values:
            yield from _family(name, help_text, "gauge")
            yield f"sglang:{name}{_shown(self._rank())} {float(value)}"

    def _request_counters(self) -> Iterator[str]:
        for name, key, help_text in (
            ("prompt_tokens_total", "prompt", "Number of prefill tokens processed."),
            ("generation_tokens_total", "generation", "Number of generation tokens processed."),
            ("num_requests_total", "requests", "Number of requests processed."),
        ):
            yield from _family(name, help_text, "counter")
            if self._split:
                for kind in (False, True):
                    yield f"sglang:{name}{_shown(self._by_kind(kind))} {float(self._sums[key, kind])}"
            else:
                yield f"sglang:{name}{_shown(self._by_kind(False))} {float(self.total(key))}"
        if self.total("cached"):
            yield from _family("cached_tokens_total", "Number of cached prompt tokens.", "counter")
            labels = tuple(one for one in self._by_kind(True) if one[0] != "is_streaming")
            cached = (("cache_source", "device"), *labels)
            yield f"sglang:cached_tokens_total{_shown(cached)} {float(self.total('cached'))}"
        if self.engine.totals.aborted:
            yield from _family("num_aborted_requests_total", "Number of requests aborted.", "counter")
            model = _shown((("model_name", self.model),))
            yield f"sglang:num_aborted_requests_total{model} {float(self.engine.totals.aborted)}"

    def _scheduler_counters(self) -> Iterator[str]:
        totals = self.engine.totals
        yield from _family(
            "cuda_graph_passes_total", "Total number of forward passes categorized by CUDA graph.", "counter"
        )
        passes = (
            ("prefill_none", totals.prefill_passes),
            ("decode_cuda_graph", totals.graphed_passes),
            ("decode_none", totals.decode_passes - totals.graphed_passes),
        )
        for mode, value in _seen(passes):
            yield f"sglang:cuda_graph_passes_total{_shown(self._rank(('mode', mode)))} {float(value)}"
        yield from _family(
            "realtime_tokens_total",
            "Total number of tokens processed (updated on each log interval). "
            "mode: prefill_compute, prefill_cache, decode.",
            "counter",
        )
        tokens = (
            ("prefill_compute", totals.prefill_tokens),
            ("prefill_cache", totals.cached_tokens),
            ("decode", totals.decode_tokens),
        )
        for mode, value in _seen(tokens):
            yield f"sglang:realtime_tokens_total{_shown(self._rank(('mode', mode)))} {float(value)}"

    def _request_histograms(self) -> Iterator[str]:
        helps = {
            "time_to_first_token_seconds": "Histogram of time to first token in seconds.",
            "e2e_request_latency_seconds": "Histogram of End-to-end request latency in seconds",
            "inter_token_latency_seconds": "Histogram of inter-token latency in seconds.",
            "queue_time_seconds": "Histogram of queueing time in seconds.",
        }
        for name, help_text in helps.items():
            found = [(kind, self._histograms[name, kind]) for kind in (False, True) if (name, kind) in self._histograms]
            if found:
                yield from _family(name, help_text, "histogram")
            for kind, histogram in found:
                labels = self._rank() if name.startswith("queue") else self._by_kind(kind)
                if name.startswith("inter"):
                    labels = tuple(one for one in labels if one[0] != "is_streaming")
                yield from histogram.lines(f"sglang:{name}", labels)

    def _http(self) -> Iterator[str]:
        yield from _family("http_requests_active", "Number of currently active HTTP requests", "gauge")
        for (endpoint, method), value in self.http_active.items():
            yield f"sglang:http_requests_active{_shown((('endpoint', endpoint), ('method', method)))} {float(value)}"
        yield from _family("http_requests_total", "Total number of HTTP requests by endpoint and method", "counter")
        for (endpoint, method), value in self.http_requests.items():
            yield f"sglang:http_requests_total{_shown((('endpoint', endpoint), ('method', method)))} {float(value)}"
        yield from _family(
            "http_responses_total", "Total number of HTTP responses by endpoint and status code", "counter"
        )
        for (endpoint, method, status), value in self.http_responses.items():
            labels: Labels = (("endpoint", endpoint), ("method", method), ("status_code", status))
            yield f"sglang:http_responses_total{_shown(labels)} {float(value)}"


def _family(name: str, help_text: str, kind: str) -> Iterator[str]:
    yield f"# HELP sglang:{name} {help_text}"
    yield f"# TYPE sglang:{name} {kind}"


def _shown(labels: Labels) -> str:
    return "{" + ",".join(f'{key}="{value}"' for key, value in sorted(labels)) + "}"


def _seen(modes: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """prometheus_client shows a label's series from its first count on."""
    return (one for one in modes if one[1])
