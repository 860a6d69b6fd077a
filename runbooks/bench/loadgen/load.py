"""What one process of the load sends, and when: requests made ahead, shortened first ones, arrivals of an open loop."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator

from .lengths import Lengths
from .loop import Made
from .prompts import Prompts, TokenIds
from .server import Server
from .wire import APIS, Shape, post

APART = 16  # steps between the ends of two groups of slots


def first_length(slot: int, slots: int, length: int) -> int:
    """Output tokens of a slot's first request.

    It is shortened so that slots end in groups, spread over one length and never closer than APART steps: they are not
    in step with each other, and between two groups there is time in which all decode.
    """
    groups = max(1, min(slots, length // APART))
    return -(-length * (slot % groups + 1) // groups)


def maker(
    server: Server, shape: Shape, prompts: Prompts | TokenIds, lengths: Lengths, slots: int
) -> Callable[[int | None], Made]:
    """Makes requests that nobody else makes: its random numbers begin with the system's."""
    path, rng = APIS[shape.api], fresh()

    def request(slot: int | None) -> Made:
        tokens_in, tokens_out = lengths.draw(rng)
        if slot is not None:
            tokens_out = first_length(slot, slots, tokens_out)
        body = shape.body(prompts.new(rng, tokens_in), tokens_out)
        return Made(post(server.target, path, body, server.key), tokens_out, tokens_in)

    return request


def arrivals(rate: float, index: int, processes: int, *, steady: bool) -> Iterator[float]:
    """Seconds after the start at which this process's requests are due: `rate` requests/s over all processes.

    Poisson, or `steady`: the same distance between any two. A sum of distances never drifts with the clock that
    waits for them.
    """
    rng, at = fresh(), index / rate if steady else 0.0
    while True:
        yield at
        at += processes / rate if steady else rng.expovariate(rate / processes)


def fresh() -> random.Random:
    return random.Random(int.from_bytes(os.urandom(8), "big"))
