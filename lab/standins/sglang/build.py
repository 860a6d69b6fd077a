"""Makes the wheel: the sources of src/, and the argument table of one version as table.json."""

from __future__ import annotations

import json
from pathlib import Path

import runbooks.sglang
from lab.depot.wheel import write_wheel
from lab.standins.sglang.src.release import LABEL

SOURCES = Path(__file__).parent / "src"
FLAGS = Path(runbooks.sglang.__file__).parent / "flags.json"


def build_wheel(version: str, out: Path) -> Path:
    """Write sglang-VERSION-py3-none-any.whl into `out`, the same bytes for the same sources.

    Raises ValueError for a version without a table.
    """
    files = {f"sglang/{name}": data for name, data in _package(version).items()}
    out.mkdir(parents=True, exist_ok=True)
    return write_wheel(
        out, "sglang", version, f"{LABEL}: its command line, log, HTTP surface, failures; no model", files
    )


def stage(version: str, folder: Path) -> Path:
    """Put the importable package below `folder`, for a run from the checkout.

    Returns `folder`, to be put on PYTHONPATH.
    """
    package = folder / "sglang"
    package.mkdir(parents=True, exist_ok=True)
    for name, data in _package(version).items():
        (package / name).parent.mkdir(exist_ok=True)
        (package / name).write_bytes(data)
    return folder


def table(version: str) -> dict[str, object]:
    """The arguments of one version. Raises ValueError with the versions there are."""
    history = json.loads(FLAGS.read_text())
    order = {one: index for index, one in enumerate(history["versions"])}
    if version not in order:
        raise ValueError(f"no argument table for SGLang {version}; there are: {', '.join(order)}")
    at = order[version]
    known = [line for line in history["arguments"] if order[line["from"]] <= at <= order[line["to"]]]
    return {"version": version, "arguments": known}


def _package(version: str) -> dict[str, bytes]:
    paths = sorted((*SOURCES.rglob("*.py"), SOURCES / "words.txt"))
    files = {path.relative_to(SOURCES).as_posix(): path.read_bytes() for path in paths}
    files["table.json"] = json.dumps(table(version), separators=(",", ":")).encode()
    return files
