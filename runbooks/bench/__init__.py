"""How fast it is, whether to believe the number, and what bounds it."""

from runbooks.bench.between import collectives_hosts
from runbooks.bench.hosts import EXAMPLE, bench_hosts, recompute_run, report_only
from runbooks.bench.results import BenchResult, Recomputed, assess, recompute
from runbooks.bench.sweep import BenchOptions, run_bench

__all__ = [
    "EXAMPLE",
    "BenchOptions",
    "BenchResult",
    "Recomputed",
    "assess",
    "bench_hosts",
    "collectives_hosts",
    "recompute",
    "recompute_run",
    "report_only",
    "run_bench",
]
