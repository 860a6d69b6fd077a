"""The processes that SGLang shows beside its own: `sglang::scheduler_TP0` and so on, and `sglang::detokenizer`.

Each is a `sleep` under that name: what looks at process lists, cgroups or GPU holders finds the real picture, at half
a megabyte each.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


def names(tensor_parallel: int) -> list[str]:
    ranks = [f"scheduler_TP{rank}" for rank in range(tensor_parallel)] if tensor_parallel > 1 else ["scheduler"]
    return [f"sglang::{one}" for one in (*ranks, "detokenizer")]


def spawn(tensor_parallel: int) -> list[subprocess.Popen[bytes]]:
    """Start them. They end with this process however it ends; where the kernel cannot promise that, there are none."""
    sleep, bind = shutil.which("sleep"), _die_with_parent()
    if sleep is None or bind is None:
        return []
    quiet = subprocess.DEVNULL
    return [
        subprocess.Popen([name, "infinity"], executable=sleep, stdin=quiet, stdout=quiet, stderr=quiet, preexec_fn=bind)
        for name in names(tensor_parallel)
    ]


def end(children: list[subprocess.Popen[bytes]]) -> None:
    for child in children:
        with contextlib.suppress(OSError):
            child.kill()
    for child in children:
        child.wait()


def _die_with_parent() -> Callable[[], None] | None:
    """A hook for the child that asks the kernel for SIGKILL at the parent's death; None where ctypes is not there."""
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError, MemoryError):
        return None
    return lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
