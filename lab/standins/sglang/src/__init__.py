"""A lab stand-in for SGLang: its command line, log, HTTP surface, speed and failures, without a model.

Standard library only.
"""

from __future__ import annotations


def __getattr__(name: str) -> str:
    """`sglang.__version__`, read from the table only when somebody asks."""
    if name == "__version__":
        from . import release

        return release.version()
    raise AttributeError(name)
