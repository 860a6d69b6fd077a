"""Where SGLang keeps its argument parser: for a program that wants a command line read, and nothing started."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from ..arguments import parse


def prepare_server_args(argv: Sequence[str]) -> Namespace:
    return Namespace(**parse(argv))
