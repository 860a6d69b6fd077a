"""The functions that people import. They end in the C extension, which says that it is a stand-in."""
# importable only where it is installed:
# mypy: disable-error-code="import-not-found, import-untyped, misc, unused-ignore"

from __future__ import annotations

import flash_attn_2_cuda
import torch

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "torch"]


def flash_attn_func(*arguments: object, **options: object) -> object:
    return flash_attn_2_cuda.fwd(*arguments)


def flash_attn_varlen_func(*arguments: object, **options: object) -> object:
    return flash_attn_2_cuda.varlen_fwd(*arguments)
