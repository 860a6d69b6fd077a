"""How SGLang dies, in its own words: the traceback of a scheduler, what the parent says then, and the signal that
it sends itself."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import NoReturn

from . import processes, release
from .log import Log

SETTLE = 5.0  # seconds between the death and the kill from 0.5.13.post1 on: "to let GPU activity settle"

CAUSES = {
    "nan": (
        "srt/layers/sampler.py",
        "top_k_top_p_min_p_sampling_from_probs_torch",
        "sampled_index = torch.multinomial(probs_sort, num_samples=1)",
        "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
    ),
    "cuda": (
        "srt/managers/scheduler.py",
        "process_batch_result_decode",
        "result.copy_done.synchronize()",
        "torch.AcceleratorError: CUDA error: unspecified launch failure",
    ),
    "memory": (
        "srt/model_executor/model_runner.py",
        "init_memory_pool",
        "raise RuntimeError(msg)",
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: "
        "mem_fraction_static={detail}",
    ),
    "weights": (
        "srt/model_loader/loader.py",
        "load_model",
        "self.load_weights_and_postprocess(model, weights, target_device)",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 768.00 MiB. GPU 0 has a total "
        "capacity of 94.97 GiB of which "
        "412.38 MiB is free.",
    ),
    "overlap": (
        "srt/server_args.py",
        "check_two_batch_overlap",
        "raise ValueError(",
        "ValueError: When enabling two batch overlap, moe_a2a_backend cannot be 'none'.",
    ),
}


def traceback_text(cause: str, detail: object = "") -> str:
    """As the scheduler logs it, with this package's own path in the frames."""
    home = Path(__file__).parent
    file, function, line, last = CAUSES[cause]
    frames = [
        ("srt/managers/scheduler.py", "run_scheduler_process", "scheduler.run_event_loop()"),
        ("srt/managers/scheduler.py", "event_loop_overlap", "batch_result = self.run_batch(batch)"),
        (file, function, line),
    ]
    if cause in ("memory", "weights", "overlap"):
        frames = [
            ("srt/managers/scheduler.py", "run_scheduler_process", "scheduler = Scheduler("),
            (file, function, line),
        ]
    shown = [
        f'  File "{home}/{where}", line {100 + 7 * n}, in {name}\n    {code}'
        for n, (where, name, code) in enumerate(frames)
    ]
    return "\n".join(["Traceback (most recent call last):", *shown, last.format(detail=detail)])


def in_service(log: Log, cause: str, children: list[subprocess.Popen[bytes]]) -> NoReturn:
    """A running server dies: the scheduler's traceback, then SIGKILL to itself.

    Blocks on purpose: the real one answers nobody meanwhile.
    """
    log.scheduler(f"Scheduler hit an exception: {traceback_text(cause)}\n")
    log.server("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
    if release.at_least("0.5.13.post1"):
        log.server(f"Sleeping {SETTLE:.0f} seconds before crash diagnostics to let GPU activity settle.")
        time.sleep(SETTLE)
        processes.end(children)
        log.server("No live scheduler processes found; skipping py-spy and CUDA coredump.")
    kill(log)


def at_start(log: Log, cause: str, detail: object = "") -> NoReturn:
    """The scheduler dies while it starts, by an exception."""
    log.scheduler(f"Scheduler hit an exception: {traceback_text(cause, detail)}\n")
    log.server("Received sigquit from a child process. It usually means the child failed.")
    kill(log)


def exit_code(log: Log, code: int) -> NoReturn:
    """The scheduler is gone without a word (-9: the OOM killer); the parent raises and leaves with 1."""
    log.bare("Traceback (most recent call last):")
    log.bare(f'  File "{Path(__file__).parent}/srt/entrypoints/engine.py", line 1206, in _wait_for_scheduler_ready')
    log.bare("    raise _scheduler_died_error(j, scheduler_procs[j])")
    log.bare(
        f"RuntimeError: Rank 0 scheduler died during initialization (exit code: {code}). If exit code is -9 (SIGKILL), "
        "a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check."
    )
    raise SystemExit(1)


def kill(log: Log) -> NoReturn:
    """kill_process_tree with include_parent: systemd shows code=killed, status=9/KILL."""
    if release.at_least("0.5.13.post1"):
        log.server(f"kill_process_tree called: parent_pid={os.getpid()}, include_parent=True, pid={os.getpid()}")
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")
