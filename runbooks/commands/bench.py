"""The tasks that measure: `invoke bench`, `invoke bench.recompute`."""

from __future__ import annotations

from typing import Any

from invoke.context import Context

from runbooks.options import RESULTS, WHERE, open_session
from runbooks.surface import INTERRUPTED_LOOK, command


def interrupted(told: dict[str, Any]) -> str:
    """With an address there is no host. On a host the first Ctrl-C asks the job to end, and it may have."""
    if told.get("url"):
        return INTERRUPTED_LOOK
    return "interrupted; where `invoke jobs` lists it, the same command attaches to it; else it goes on with --resume"


@command(
    default=True,
    interrupted=interrupted,
    iterable=["hosts", "concurrency", "rate"],
    help={
        **WHERE,
        "concurrency": "streams at once; repeat it for more points (default: the inventory's sweep)",
        "rate": "instead: requests a second, whatever the server does; repeat it for more points",
        "workload": "prefill-heavy, decode-heavy or shared-prefix (default: the inventory's lengths)",
        "input_len": "prompt length in tokens, or a range: 256-1024",
        "output_len": "answer length in tokens, likewise",
        "lengths": "a JSON file of [prompt, answer] lengths to draw from",
        "api": "chat (default), completions, or generate, which is SGLang's own",
        "window": "seconds measured a point, at most",
        "precision": "end a window when tok/s is known to this part of itself: 0.02; 0: never before its time",
        "repeats": "passes over the sweep, each in the other direction",
        "resume": "keep the points of the same sweep that was broken off, and measure the rest",
        "out": "the folder for results",
        "force": "measure although other people's requests are running",
        "url": "any OpenAI-compatible server instead, from here; key: $RUNBOOKS_API_KEY, CA: $SSL_CERT_FILE",
    },
)
def sweep(
    context: Context,
    hosts: list[str],
    concurrency: list[str],
    rate: list[str],
    url: str = "",
    workload: str = "",
    input_len: str = "",
    output_len: str = "",
    lengths: str = "",
    api: str = "",
    window: float = 0.0,
    precision: str = "",
    repeats: int = 0,
    resume: bool = False,
    out: str = RESULTS,
    force: bool = False,
    inventory: str | None = None,
    json: bool = False,
    plain: bool = False,
) -> int:
    """Measure 1 to 64 streams; say what bounds them."""
    from runbooks.bench import asked, bench_hosts, bench_url
    from runbooks.engine.errors import UsageError
    from runbooks.engine.printers import printer
    from runbooks.engine.report import Reporter

    options = asked.options_of(
        concurrency=concurrency,
        rate=rate,
        workload=workload,
        input_len=input_len,
        output_len=output_len,
        lengths=lengths,
        api=api,
        window=window,
        precision=precision,
        repeats=repeats,
        resume=resume,
        force=force,
    )
    if url and (hosts or inventory):
        raise UsageError("url: it is asked from here; --hosts and --inventory are for servers of the inventory")
    if url:
        return bench_url(url, options, out=out, reporter=Reporter(printer(json_lines=json, plain=plain)))
    with open_session(inventory=inventory, hosts=hosts, json=json, plain=plain) as session:
        return bench_hosts(session, options, out=out)


@command(looks=True, word="run", help={"run": "a results folder, or a part of its name"})
def recompute(context: Context, run: str = "") -> int:
    """Recompute a run from its raw log, and compare."""
    from runbooks.bench import recompute_run

    return recompute_run(run)
