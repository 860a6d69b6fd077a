"""Why a server died at start, from the journal of its unit, the kernel's log and what systemd says.

Every death looks the same to systemd: SGLang kills its own process tree, so NaN, a lost worker, unreadable weights and
the kernel's OOM killer all end in `code=killed, status=9/KILL`. Only the lines tell them apart, and only in the right
order: the first of the table that is found is the cause, its consequences stand below it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    id: str
    pattern: re.Pattern[str]
    text: str
    page: str
    kernel: bool = False


def _cause(id: str, pattern: str, text: str, page: str = "server-down", *, kernel: bool = False) -> Cause:
    return Cause(id, re.compile(pattern), text, page, kernel)


CAUSES: tuple[Cause, ...] = (
    _cause(
        "oom-killer", r"[Oo]ut of memory: Killed process|oom-kill:", "the kernel's OOM killer ended it", kernel=True
    ),
    _cause("gpu-lost", r"NVRM: Xid .*: (?:79|119|120|154),", "a GPU was lost (Xid)", "gpu-lost", kernel=True),
    _cause(
        "bad-flag",
        r"error: (?:unrecognized arguments|argument --|ambiguous option|the following arguments)",
        "its argument parser refused the command line",
    ),
    _cause("port-taken", r"address already in use|Address already in use", "its port is taken by another process"),
    _cause(
        "gpu-memory",
        r"torch\.OutOfMemoryError|CUDA out of memory|Not enough memory\. Please try to",
        "it ran out of GPU memory: lower mem_fraction_static or the graphs' largest batch",
    ),
    _cause("gpu-occupied", r"memory capacity is unbalanced", "another process holds GPU memory"),
    _cause(
        "architecture",
        r"Unsupported architecture|no kernel image is available",
        "a kernel was chosen that does not exist for this GPU (SM120)",
        "nan-output",
    ),
    _cause(
        "nan",
        r"probability tensor contains either|NaN detected!|NaN in the logits|device-side assert triggered",
        "it computed NaN",
        "nan-output",
    ),
    _cause("mtp-missing", r"MTP .*weights missing|layer 78 weights missing", "the checkpoint has no MTP layer"),
    _cause(
        "model-type",
        r"KeyError: 'glm_moe_dsa'|does not recognize this architecture",
        "this transformers does not know the model: the runtime's versions do not fit it",
    ),
    _cause(
        "weights-truncated",
        r"HeaderTooLarge|MetadataIncompleteBuffer|SafetensorError",
        "a weights file is cut off or is not weights",
    ),
    _cause(
        "weights-unreadable",
        r"FileNotFoundError: No such file or directory.*safetensors|PermissionError.*safetensors",
        "a weights file is missing, or its owner's mode hides it from the server's user",
    ),
    _cause("watchdog", r"Scheduler watchdog timeout", "the scheduler hung until its watchdog ended it"),
    _cause(
        "nccl",
        r"NCCL error|ncclSystemError|ncclUnhandledCudaError|No space left on device.*shm",
        "NCCL failed between the cards",
        "slow-throughput",
    ),
    _cause("import", r"ModuleNotFoundError|ImportError: ", "a Python package of the runtime is missing or broken"),
    _cause("exec", r"status=203/EXEC|Failed to locate executable", "the runtime's Python could not be started"),
    _cause("user", r"status=217/USER", "the server's user does not exist"),
    _cause("credentials", r"status=243/CREDENTIALS", "the API key's file could not be read"),
    _cause(
        "worker",
        r"scheduler died during initialization|Received sigquit from a child|SIGQUIT received",
        "one of its worker processes died",
    ),
)

NOISE = re.compile(
    r"UserWarning|warnings\.warn|DeprecationWarning|Ignore import error|HTTP/1\.1\" \d|^\s*$|Scheduled restart job|"
    r"Consumed .* CPU time|Killing process|^(?:Stopped|Starting|Started) |blob data"
)


ENDED = re.compile(r"\.service: (?:Failed with result|Deactivated successfully)")


@dataclass(frozen=True)
class Death:
    cause: str
    text: str
    page: str
    lines: tuple[str, ...]


def explain(journal: Sequence[str], kernel: Sequence[str], unit: Mapping[str, str]) -> Death:
    """The cause, in words, with the lines that show it and the last ones before the end."""
    ends = [index for index, line in enumerate(journal) if ENDED.search(line)]
    journal = journal[: ends[0] + 1] if ends else journal  # what follows is systemd's next try
    for cause in CAUSES:
        lines = kernel if cause.kernel else journal
        shown = [line for line in lines if cause.pattern.search(line)]
        if shown:
            return Death(cause.id, cause.text, cause.page, _lines(shown[0], journal))
    status = f"{unit.get('Result', '?')}, status {unit.get('ExecMainStatus', '?')}"
    return Death("unknown", f"it ended ({status})", "server-down", _lines(None, journal))


def _lines(shown: str | None, journal: Sequence[str]) -> tuple[str, ...]:
    last = [_cut(line) for line in journal if not NOISE.search(line)][-6:]
    first = [] if shown is None or _cut(shown) in last else [_cut(shown)]
    return (*first, *last)


def _cut(line: str) -> str:
    return line if len(line) <= 200 else line[:197] + "..."
