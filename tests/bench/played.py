"""Servers whose truth is known, played in virtual time: a results folder as a sweep against them would leave it.

The raw logs hold the bytes that such a server would have sent, so all that reads a run is tried: metrics, validity,
hardware samples, collectives, verdict. The physics here is written down again and shares nothing with the verdict.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from runbooks.bench.loadgen import rawlog
from runbooks.inventory.shape import ModelShape

STREAMS = (1, 2, 4, 8, 16, 32, 64)
MS = 1_000_000
PROMPT, ANSWER = 96, 48  # tokens
STEPS = 60  # of a window
GROUPS = 8
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

SHAPE = ModelShape(
    hidden=6144, layers=78, moe_layers=75, experts=256, experts_per_token=8, routed_expert_bytes=407.7e9,
    other_weight_bytes=31.1e9, active_params=40.8e9, kv_bytes_per_token=89_856, index_topk=2048,
)  # fmt: skip


def reading(b: int) -> float:
    """ms that eight cards need to read what a step of b tokens reads, at their full 1,792 GB/s each."""
    touched = 1 - (31 / 32) ** b
    return (touched * 407.7e9 + 31.1e9) / 8 / 1.792e9 + b * (PROMPT + ANSWER // 2) * 89_856 / 1.792e9


@dataclass
class Played:
    """What a server does. `step` is ms by streams, without noise."""

    step: Callable[[int], float]
    reduce_us: Callable[[int], float] | None = None  # None: nobody measured
    away_us: Callable[[int], float] = lambda b: 30.0 + b
    prefill_ms: float = 0.2
    info: dict[str, Any] = field(default_factory=dict)
    watts: float = 300.0
    sm_mhz: Callable[[int], float] = lambda b: 2400.0
    throttled: Mapping[int, float] = field(default_factory=dict)  # NVML's bit -> share of samples
    link: float = 1.0  # times what the model sends
    client_cpu: Callable[[int], float] = lambda b: 0.02 + b / 1000
    sent_each_token: float = 156 * 12_288 * 1.75  # bytes of each card

    def sweep(self, folder: Path, rng: random.Random) -> Path:
        (folder / "raw").mkdir(parents=True)
        at, samples = 10**12, []
        for number, b in enumerate(STREAMS):
            blocks, window, tokens = self._point(b, at, rng)
            rawlog.write(folder / "raw" / f"{number:02}-c{b}.bin", blocks)
            samples += self._samples(b, window, tokens, rng)
            at = window[1] + 10**9
        (folder / "hardware.jsonl").write_text("".join(json.dumps(row) + "\n" for row in samples))
        info = {"tp_size": 8, "cuda_graph_max_bs_decode": 64, "max_running_requests": 64, "disable_cuda_graph": False}
        loadgen = {
            "api": "chat",
            "input_len": PROMPT,
            "output_len": ANSWER,
            "sweep": STREAMS,
            "server_info_before": info | self.info,
        }
        run = {
            "format": 1, "host": "played", "release": {}, "loadgen": loadgen, "reference": {}, "canary": None,
            "gpus": {"name": "NVIDIA RTX PRO 6000 Blackwell Server Edition", "count": 8},
            "model": {"name": "played", "source": "played", "shape": msgspec.to_builtins(SHAPE)},
        }  # fmt: skip
        (folder / "run.json").write_text(json.dumps(run))
        if self.reduce_us:
            (folder / "collectives.json").write_text(json.dumps(self._collectives(rng)))
        return folder

    def _point(self, b: int, begin: int, rng: random.Random) -> tuple[list[rawlog.Block], tuple[int, int], int]:
        """All streams step together; a prompt that begins holds all of them up."""
        bias = rng.gauss(1.0, 0.004)
        now = float(begin)
        groups = min(b, GROUPS)  # of streams that end together: between two ends all of them decode
        slots = [_Stream(slot, round(now), 1 + ANSWER * (slot % groups + 1) // groups) for slot in range(b)]
        ended: list[rawlog.Block] = []
        first = last = round(now)
        counted = 0
        for step in range(ANSWER + STEPS):
            if step == ANSWER:  # every slot is in its second request or later: no ramp in the window
                first = round(now)
            now += self.step(b) * bias * rng.gauss(1.0, 0.01) * MS
            for place, stream in enumerate(slots):
                stream.token(round(now) + 20_000 * place)
                counted += step >= ANSWER
                if stream.left == 0:
                    ended.append(stream.end())
                    slots[place] = _Stream(place, round(now) + 20_000 * place + 1_000, ANSWER)
                    now += self.prefill_ms * MS
            last = round(now)
        blocks = [*ended, *(stream.end(cut=True) for stream in slots)]
        none = dict.fromkeys(("before", "after", "window_begin", "window_end"))
        point = {"kind": "point", "concurrency": b, "interrupted": False, "input_len": PROMPT, "output_len": ANSWER}
        point |= {"go": begin, "window": [first, last], "counters": none, "rate": 0.0, "repeat": 0}
        wall = last - begin
        worker: dict[str, Any] = {"kind": "worker", "wall_ns": wall, "cpu_ns": round(wall * self.client_cpu(b))}
        worker |= {"reads": 100, "switches": 0, "busy_log2_ns": [0] * 16 + [100] + [0] * 47, "busy_max_ns": 10**5}
        return [(point, []), (worker, []), *blocks], (first, last), counted

    def _samples(self, b: int, window: tuple[int, int], tokens: int, rng: random.Random) -> list[list[Any]]:
        seconds = (window[1] - window[0]) / 1e9
        link = self.sent_each_token * tokens * (1 + PROMPT / ANSWER) / seconds / 1e6 * self.link
        rows: list[list[Any]] = []
        for number in range(20):
            at = window[0] + (window[1] - window[0]) * (number + 1) // 21
            for card in range(8):
                mask = sum(bit for bit, share in self.throttled.items() if rng.random() < share)
                watts, clock = rng.gauss(self.watts, 5.0), rng.gauss(self.sm_mhz(b), 10.0)
                rows.append(["card", at, card, watts, clock, 12_481.0, 60.0, rng.uniform(97, 100), mask])
                rows.append(["link", at, card, rng.gauss(link, link / 20), rng.gauss(link, link / 20)])
        return rows

    def _collectives(self, rng: random.Random) -> dict[str, Any]:
        rows = []
        for b in STREAMS:
            assert self.reduce_us
            for op, us in (("all_reduce", self.reduce_us(b)), ("all_to_all", self.away_us(b))):
                seen = us * rng.gauss(1.0, 0.01)
                row = {"op": op, "b": b, "bytes": b * 12_288, "right": True, "bus_gb_s": 1.0}
                row |= {"us": seen, "us_low": seen * 0.98, "us_high": seen * 1.03}
                rows += [row | {"graph": True}, row | {"graph": False, "us": seen * 1.2}]
        ladder = {"word": "healthy", "why": []}
        return {"format": 1, "ranks": 8, "token_bytes": 12_288, "backend": "nccl", "collectives": rows} | {
            "ladder": ladder, "cards": ["NVIDIA RTX PRO 6000"] * 8, "errors": [],
        }  # fmt: skip


class _Stream:
    def __init__(self, slot: int, start: int, tokens: int) -> None:
        self.slot, self.start, self.asked, self.left = slot, start, tokens, tokens
        self.reads: list[tuple[int, bytes]] = [(start + 1_000, HEAD)]

    def token(self, at: int) -> None:
        self.left -= 1
        made = self.asked - self.left
        reason = b"null" if self.left else b'"length"'
        data = b'data: {"choices":[{"delta":{"content":"w%d-%d "},"finish_reason":%s}],' % (self.slot, made, reason)
        data += b'"usage":{"completion_tokens":%d,"prompt_tokens":%d}}\n\n' % (made, PROMPT)
        self.reads.append((at, b"%x\r\n%s\r\n" % (len(data), data)))

    def end(self, *, cut: bool = False) -> rawlog.Block:
        end = self.reads[-1][0] + 10
        if not cut:
            self.reads.append((end, b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"))
        meta = {"kind": "request", "slot": self.slot, "asked": self.asked, "start": self.start, "end": end}
        return meta | {"status": 200, "cut": cut, "first": self.asked != ANSWER}, self.reads
