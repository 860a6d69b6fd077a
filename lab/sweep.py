"""Labs of tests: named for the process that made them, so that what killed ones left can be told and ended.

`python -m lab.sweep PREFIX` takes down the labs with such names.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from lab.lab import Lab

PREFIX = os.environ.get("RUNBOOKS_TEST_LAB", "test")


def own(part: str = "") -> Lab:
    """A lab of this process. `part` tells it from another one of the same process."""
    return Lab.open("-".join(filter(None, (PREFIX, part, str(os.getpid())))))


def orphans() -> list[Lab]:
    """Labs of test processes that are no more."""
    named = [lab for lab in Lab.all() if lab.name.startswith(f"{PREFIX}-")]
    return [lab for lab in named if not Path("/proc", lab.name.rpartition("-")[2]).exists()]


def main(prefix: str) -> int:
    for lab in Lab.all() if os.geteuid() == 0 else []:
        if lab.name.startswith(prefix):
            print(f"lab {lab.name} was left; taking it down", file=sys.stderr)
            lab.down()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
