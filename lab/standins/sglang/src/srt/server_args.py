"""`ServerArgs.add_cli_args` and `prepare_server_args`, for tools that parse a command line and start nothing."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from .. import arguments  # noqa: TID252  the package is `sglang` where it is installed


class ServerArgs(argparse.Namespace):
    """The arguments, as attributes."""

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        arguments.declare(parser)


def prepare_server_args(argv: Sequence[str]) -> ServerArgs:
    return ServerArgs(**arguments.parse(argv))
