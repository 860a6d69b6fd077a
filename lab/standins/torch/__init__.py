"""The stand-in of PyTorch's wheel."""

from __future__ import annotations

from pathlib import Path

from lab.depot.wheel import write_wheel

VERSION = "2.13.0"
SOURCES = Path(__file__).parent / "src"


def build_wheel(out: Path) -> Path:
    files = {str(path.relative_to(SOURCES)): path.read_bytes() for path in sorted(SOURCES.rglob("*.py"))}
    files["torch/version.py"] = files["torch/version.py"].replace(b"@VERSION@", VERSION.encode())
    return write_wheel(out, "torch", VERSION, "lab stand-in of PyTorch: builds extensions, holds no tensors", files)
