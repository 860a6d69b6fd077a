"""Lets the real SGLang resolve a command line as if it stood on eight RTX PRO 6000 (SM120): which kernels it picks.

Real: server_args and all that it consults, of the published wheel. Stand-ins: torch.cuda says what such a machine
would, nvidia-smi prints its memory, and packages that need CUDA are inert, so a branch that looks into them may decide
otherwise on a true host. Nothing is computed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.engine.flags import ask

_CARD = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
_SMI = """#!/bin/sh
# lab stand-in: memory of eight cards
case "$*" in *compute_cap*) line=12.0 ;; *) line=97887 ;; esac
for card in 0 1 2 3 4 5 6 7; do echo $line; done
"""
_RESOLVE = """\
import json, os, sys, types
import torch
import torch.library

card = types.SimpleNamespace(name=NAME, major=12, minor=0, total_memory=97887 * 2**20, multi_processor_count=188,
                             warp_size=32)
cuda = torch.cuda
torch.version.cuda = "13.0"
cuda.is_available, cuda.device_count, cuda.current_device = (lambda: True), (lambda: 8), (lambda: 0)
cuda.get_device_capability = lambda device=None: (12, 0)
cuda.get_device_name = lambda device=None: card.name
cuda.get_device_properties = lambda device=None: card
cuda.mem_get_info = lambda device=None: (97000 * 2**20, 97887 * 2**20)
cuda.is_initialized = lambda: False
registers = torch.library.register_fake

def register_fake(op, *args, **kwargs):
    # An operator of a package that is not there has nothing to be a fake of.
    try:
        made = registers(op, *args, **kwargs)
    except RuntimeError:
        return args[0] if args else lambda function: function
    def decorate(function):
        try:
            return made(function)
        except RuntimeError:
            return function
    return decorate if callable(made) else made

torch.library.register_fake = register_fake
from sglang.srt.server_args import prepare_server_args

WANTED = ("attention_backend", "nsa_prefill_backend", "nsa_decode_backend", "dsa_prefill_backend",
          "dsa_decode_backend", "kv_cache_dtype", "page_size", "moe_runner_backend", "fp4_gemm_runner_backend")

def resolved(words):
    args = prepare_server_args(words)
    get = lambda name: getattr(args, name, None)
    if hasattr(args, "resolve_once"):
        args.resolve_once()
        from sglang.srt.arg_groups.overrides import resolution_result
        get = lambda name: resolution_result(args, name) if hasattr(args, name) else None
    return {name: get(name) for name in WANTED if get(name) is not None}

answers = []
for words in json.load(sys.stdin):
    read, write = os.pipe()
    if os.fork() == 0:  # what one resolution leaves behind must not reach the next
        try:
            said = {"resolved": resolved(words)}
        except BaseException as error:
            said = {"refused": f"{type(error).__name__}: {error}"[:400]}
        os.write(write, json.dumps(said, default=str).encode())
        os._exit(0)
    os.close(write)
    answers.append(json.loads(os.fdopen(read).read()))
    os.wait()
print("\\n" + json.dumps(answers))
"""


def resolve(version: str, command_lines: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """For each: {"resolved": the settings by this version's names} or {"refused": what it said}."""
    with tempfile.TemporaryDirectory() as folder:
        smi = Path(folder) / "nvidia-smi"
        smi.write_text(_SMI)
        smi.chmod(0o755)
        environment = {"HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1", "PATH": f"{folder}:{os.environ['PATH']}"}
        code = _RESOLVE.replace("NAME", repr(_CARD))
        answers: list[dict[str, Any]] = ask(
            version, code, command_lines, what="SGLang", environment=environment, timeout=1200
        )
    return answers
