"""The lab's depot: an apt repository, a package index and a model hub, built from the stand-ins and served over HTTP.

prepare(root, print)                                   build what is missing or has changed below root
python -m lab.depot --bind 127.0.0.1 --root DIR        serve it: /apt, /simple, /models, a hub
"""

from __future__ import annotations

from pathlib import Path

from lab.depot.part import Progress


def prepare(root: Path, progress: Progress) -> None:
    """Build what is missing below `root`, or was built from other sources. A second call only looks.

    One at a time for a root: whoever calls holds a lock.
    """
    from lab.depot import parts  # here, because the stand-ins' builders use modules of this package

    parts.ensure(root, progress)
