"""`python -m bench.oncall TABLE`: print it; exit code 1 where a row is wrong."""

from __future__ import annotations

import argparse
import sys

from bench.oncall import diagnosis, pages


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.oncall", description=__doc__)
    parser.add_argument("table", choices=["diagnosis", "pages"])
    parser.add_argument("pages", nargs="*", help="of the pages: only these")
    parser.add_argument("--lab", default="", help="the name of the lab that is made for the pages, and taken down")
    options = parser.parse_args()
    return diagnosis.show() if options.table == "diagnosis" else pages.show(options.lab, options.pages)


if __name__ == "__main__":
    sys.exit(main())
