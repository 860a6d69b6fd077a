"""Our own programs on the host: a stdlib-only package as one executable file, named by its content."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import zipfile
from pathlib import Path

from runbooks import paths
from runbooks.engine.errors import StepFailed
from runbooks.engine.step import quote
from runbooks.engine.transport import Connection

# While it loads, Ctrl-C ends it without a traceback; afterwards it is the program's own.
_MAIN = """\
import signal, sys
before = signal.signal(signal.SIGINT, signal.SIG_DFL)
from {module} import {function}
signal.signal(signal.SIGINT, before)
sys.exit({function}())
"""
_EPOCH = (2020, 1, 1, 0, 0, 0)  # the same sources give the same bytes


def build_zipapp(package: str, main: str) -> bytes:
    """A zipapp of `package` (dotted name; only its own folder), started at `main` ("module:function" inside it).

    Inside, the package goes by the last part of its name, so it must use relative imports and the stdlib alone.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(package)
    folder, name = Path(spec.submodule_search_locations[0]), package.rpartition(".")[2]
    module, _, function = main.partition(":")
    files = {f"{name}/{path.relative_to(folder).as_posix()}": path.read_bytes() for path in folder.rglob("*.py")}
    files["__main__.py"] = _MAIN.format(module=f"{name}.{module}", function=function).encode()
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(path, _EPOCH), content, zipfile.ZIP_DEFLATED)
    return b"#!/usr/bin/env python3\n" + whole.getvalue()


def push_zipapp(connection: Connection, package: str, main: str) -> str:
    """Put the package on the host unless it is there, and return its path. Run it with `python3 PATH`."""
    data = build_zipapp(package, main)
    digest = hashlib.sha256(data).hexdigest()
    path = f"{paths.TOOLS}/{package.rpartition('.')[2]}-{digest[:12]}.pyz"
    there = connection.ask(f"sha256sum -- {quote(path)} 2>/dev/null; command -v python3")
    if "python3" not in there.out:
        raise StepFailed(
            "python3 is not installed on this host",
            host=connection.name,
            next=f"invoke provision --hosts {connection.name} --tags base",
        )
    if digest not in there.out:
        connection.put(data, path, mode=0o755)
    return path
