"""`invoke tune`: profiles tried one after the other."""

from __future__ import annotations

from invoke.context import Context

from runbooks.options import RESULTS, WHERE, YES, open_session
from runbooks.surface import command


@command(
    iterable=["hosts", "profiles", "concurrency"],
    help={
        **WHERE,
        **YES,
        "profiles": "those to try against the one that serves: a,b,c",
        "concurrency": "streams at once; repeat it for more points (default: 1, 8 and 64)",
        "window": "seconds measured a point, at most",
        "out": "the folder for results; one that was broken off is gone on with",
    },
)
def tune(
    context: Context,
    hosts: list[str],
    profiles: list[str],
    concurrency: list[str],
    window: float = 20.0,
    out: str = RESULTS,
    inventory: str | None = None,
    yes: bool = False,
    json: bool = False,
    plain: bool = False,
) -> int:
    """Try profiles: predict, deploy, measure, restore."""
    from runbooks.bench import asked
    from runbooks.tune import tune_host

    streams = asked.options_of(concurrency=concurrency, window=window).concurrency
    with open_session(inventory=inventory, hosts=hosts, json=json, plain=plain, yes=yes) as session:
        return tune_host(session, profiles, concurrency=streams, window=window, out=out)
