"""What the on-call tools promise, as tables; exit code 1 where a row is wrong.

python -m bench.tables                    all three
python -m bench.tables canary             real engines x poisoned weights: the verdict; half an hour on two cores
python -m bench.tables canary --engine sglang-0.5.23 --fault nan-expert
python -m bench.tables canary --healthy 100     so many healthy runs over all engines: false alarms
python -m bench.tables diagnosis          each case of the tests: the cause that was found, and its rank
python -m bench.tables pages [PAGE ...]   every block of every page, run in a lab against the page's fault
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from bench.canary import engines
from bench.oncall import diagnosis, pages
from lab.engine.prepared import FAULTS
from lab.engine.serve import ENGINES
from runbooks import oncall


def main(arguments: Sequence[str] | None = None) -> int:
    summary, _, usage = (__doc__ or "").partition("\n\n")
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m bench.tables", description=summary, epilog=usage, formatter_class=plain
    )
    tables = parser.add_subparsers(dest="table", metavar="canary | diagnosis | pages")
    canary = tables.add_parser("canary")
    canary.add_argument("--engine", action="append", choices=sorted(ENGINES), help="repeat it; default: all")
    canary.add_argument("--fault", action="append", choices=["healthy", *FAULTS], help="repeat it; default: all")
    canary.add_argument("--healthy", type=int, metavar="RUNS", help="only healthy engines, so many runs in all")
    tables.add_parser("diagnosis")
    walked = tables.add_parser("pages")
    walked.add_argument("pages", nargs="*", metavar="PAGE", help="only these; default: all")
    walked.add_argument("--lab", default="", help="the name of the lab that is made for them, and taken down")
    options = parser.parse_args(arguments)
    if options.table == "canary":
        return engines.show(options.engine, options.fault, options.healthy)
    if options.table == "diagnosis":
        return diagnosis.show()
    if options.table == "pages":
        unknown = sorted(set(options.pages) - set(oncall.names()))
        if unknown:
            walked.error(f"no such page: {', '.join(unknown)}; there are: {', '.join(oncall.names())}")
        return pages.show(options.lab, options.pages)
    return max([diagnosis.show(), pages.show(), engines.show()])


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that engine and lab end with us
    sys.exit(main())
