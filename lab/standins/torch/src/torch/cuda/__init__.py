"""The lab stand-in of torch.cuda: what the driver answers, asked through nvidia-smi."""

from __future__ import annotations

import subprocess


def _cards(field: str) -> list[str]:
    argv = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return done.stdout.splitlines()


def is_available() -> bool:
    return device_count() > 0


def device_count() -> int:
    return len(_cards("index"))


def get_device_name(device: int = 0) -> str:
    return _cards("name")[device]


def get_device_capability(device: int = 0) -> tuple[int, int]:
    major, _, minor = _cards("compute_cap")[device].partition(".")
    return int(major), int(minor)
