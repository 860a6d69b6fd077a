"""How fast it is, whether to believe the number, and what bounds it.

Nothing is loaded before it is asked for: the load generator lies in here, starts by itself, and takes the stdlib alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runbooks.bench.asked import BenchOptions, rates_of, streams_of
    from runbooks.bench.between import collectives_hosts
    from runbooks.bench.compare import compare_runs, list_results
    from runbooks.bench.hosts import EXAMPLE, bench_hosts, recompute_run, report_only
    from runbooks.bench.remote import bench_url
    from runbooks.bench.results import BenchResult, Recomputed, assess, recompute
    from runbooks.bench.sweep import run_bench
    from runbooks.bench.whatif import ceiling_task

__all__ = [
    "EXAMPLE",
    "BenchOptions",
    "BenchResult",
    "Recomputed",
    "assess",
    "bench_hosts",
    "bench_url",
    "ceiling_task",
    "collectives_hosts",
    "compare_runs",
    "list_results",
    "rates_of",
    "recompute",
    "recompute_run",
    "report_only",
    "run_bench",
    "streams_of",
]

_PLACES = {
    "asked": ("BenchOptions", "rates_of", "streams_of"),
    "between": ("collectives_hosts",),
    "compare": ("compare_runs", "list_results"),
    "hosts": ("EXAMPLE", "bench_hosts", "recompute_run", "report_only"),
    "remote": ("bench_url",),
    "results": ("BenchResult", "Recomputed", "assess", "recompute"),
    "sweep": ("run_bench",),
    "whatif": ("ceiling_task",),
}


def __getattr__(name: str) -> Any:
    for module, names in _PLACES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
