"""What each client says of a server that misleads it, held against the truth that the server knows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.clients.peers import Client, Told, Work
from lab.traps import TRAPS

REQUESTS, STREAMS, TOKENS, STEP_MS = 12, 2, 48, 5.0

COUNTED = {
    "": TOKENS,
    "lumps": TOKENS,
    "flood": TOKENS,
    "spaces": TOKENS,
    "swallow": TOKENS,
    "reasoning": TOKENS,
    "thinking": TOKENS,
    "no-role": TOKENS,
    "strict": TOKENS,
}
"""Trap -> tokens of each answer: a right client counts them, and fails nothing."""
SPOILED = ("short", "nan", "bang", "echo", "error", "cut", "some-refuse", "silent", "cached", "graphs")
"""Traps whose numbers must not be used: a right client says so, or fails the requests."""

Ask = Callable[[Client, Work, float], Told | str]
"""What a client says of some work, within so many seconds."""
FIRST, MORE, TIMES = 240.0, 30.0, 3.0
"""Seconds for the plain server, and for a trap: so many more than so many times what the plain one took."""


def table(
    clients: Sequence[Client], ask: Ask, url: str, tokenizer: Path, chosen: Sequence[str] = ()
) -> dict[str, dict[str, str]]:
    """Client -> trap -> `right`, or what is wrong. Printed as it grows. Who hangs on the plain server hangs.

    `chosen`: these alone, and the plain server.
    """
    found: dict[str, dict[str, str]] = {client.name: {} for client in clients}
    limits: dict[str, float] = {}
    for trap in (one for one in (*COUNTED, *SPOILED) if not chosen or one in ("", *chosen)):
        streams = 40 if trap == "graphs" else STREAMS
        requests = 80 if trap == "graphs" else REQUESTS
        work = Work(f"{url}/{trap}".rstrip("/"), requests, streams, 64, TOKENS, tokenizer)
        print(f"{trap or 'plain'}: {TRAPS[trap]}")
        for client in clients:
            plain, began = found[client.name].get("plain", ""), time.monotonic()
            told = plain if plain.startswith("hangs") else ask(client, work, limits.get(client.name, FIRST))
            limits.setdefault(client.name, MORE + TIMES * (time.monotonic() - began))
            found[client.name][trap or "plain"] = verdict = judge(trap, told, work)
            print(f"    {client.name:<22} {verdict}", flush=True)
    return found


def judge(trap: str, told: Told | str, work: Work) -> str:
    if isinstance(told, str):
        return told if trap in COUNTED or "hangs" in told else f"right: {told}"
    if trap in SPOILED:
        if told.refused:
            return f"right: {told.refused[:100]}"
        # Half of the requests are refused: who says so, or counts the others alone, is right, too.
        if told.failed or (told.ok is not None and told.ok < work.requests):
            return f"right: {told.failed or work.requests - (told.ok or 0):g} failed"
        return f"WRONG: {told.ok or 0:g} of {work.requests} successful, {told.tok_s or 0:.0f} tok/s, nothing said"
    if told.refused:
        return f"WRONG: refused, {told.refused[:90]}"
    wanted = COUNTED[trap] * work.requests
    if told.ok != work.requests:
        return f"WRONG: {told.ok or 0:g} of {work.requests} successful"
    if told.tokens is None or abs(told.tokens / wanted - 1) > 0.06:
        return f"WRONG: {told.tokens or 0:g} tokens, not {wanted}"
    # The truth is two or three steps; what the machine adds is no fault of the client's.
    if trap != "flood" and (told.ttft_ms is None or not 0 < told.ttft_ms < 50 * STEP_MS):
        return f"WRONG: TTFT {told.ttft_ms or 0:.1f} ms"
    if trap not in ("flood", "lumps", "swallow") and (told.tpot_ms or 0) < 0.5 * STEP_MS:
        return f"WRONG: {told.tpot_ms or 0:.2f} ms a token, a step takes {STEP_MS:g}"
    return "right"
