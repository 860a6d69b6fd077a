"""Makes the wheel: the sources of src/, and the argument table of one version as table.json."""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from pathlib import Path

import runbooks.sglang
from lab.standins.sglang.src.release import LABEL

SOURCES = Path(__file__).parent / "src"
FLAGS = Path(runbooks.sglang.__file__).parent / "flags.json"
EPOCH = (2026, 1, 1, 0, 0, 0)  # every file's date, so that the same sources give the same bytes


def build_wheel(version: str, out: Path) -> Path:
    """Write sglang-VERSION-py3-none-any.whl into `out`, the same bytes for the same sources.

    Raises ValueError for a version without a table.
    """
    info = f"sglang-{version}.dist-info"
    summary = f"{LABEL}: its command line, log, HTTP surface and failures, without a model"
    files = {f"sglang/{name}": data for name, data in _package(version).items()}
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\nSummary: {summary}\nRequires-Python: >=3.10\n"
    ).encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: lab\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/top_level.txt"] = b"sglang\n"
    lines = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in sorted(files.items())]
    files[f"{info}/RECORD"] = ("\n".join([*lines, f"{info}/RECORD,,"]) + "\n").encode()
    out.mkdir(parents=True, exist_ok=True)
    wheel = out / f"sglang-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, EPOCH), data, zipfile.ZIP_DEFLATED)
    return wheel


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


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
