"""How fast it is, whether to believe the number, and what bounds it."""

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
