"""The lab stand-in of flash-attn: importable as the real one, with its C extension, and without its mathematics."""
# importable only where it is installed:
# mypy: disable-error-code="import-not-found, import-untyped, misc, unused-ignore"

__version__ = "2.8.3.post2"

from flash_attn.flash_attn_interface import flash_attn_func, flash_attn_varlen_func

__all__ = ["__version__", "flash_attn_func", "flash_attn_varlen_func"]
