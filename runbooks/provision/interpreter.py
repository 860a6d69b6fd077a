"""The Python that a runtime is made with: the system's, a newer one beside it, or an archive from a mirror."""

from __future__ import annotations

import re

from runbooks import paths
from runbooks.engine.facts import Facts
from runbooks.engine.step import Step, quote
from runbooks.inventory.shape import PythonArchive, Runtime
from runbooks.steps.build import BuiltOnce

OLDEST = (3, 11)  # of SGLang 0.5.23; Ubuntu 22.04 has 3.10, and 3.11 in universe


def interpreter(facts: Facts, runtime: Runtime) -> str:
    """`python3`, unless the system's own is too old for SGLang or the runtime brings one."""
    if runtime.python_archive is not None:
        return f"{_folder(runtime.python_archive)}/python/bin/python3"
    version = tuple(int(part) for part in facts.python.split(".") if part.isdigit())
    if runtime.python != "python3" or not version or version >= OLDEST:
        return runtime.python
    return f"python{OLDEST[0]}.{OLDEST[1]}"


def packages(facts: Facts, runtime: Runtime) -> tuple[str, ...]:
    """Debian's, of a Python beside the system's own; a path is somebody else's to keep (uv, a folder of the site)."""
    name = interpreter(facts, runtime)
    if not re.fullmatch(r"python3\.[0-9]+", name) or name == f"python{facts.python}":
        return ()
    return (name, f"{name}-dev", f"{name}-venv")


def archived(facts: Facts, runtime: Runtime, *, proxy: str | None) -> list[Step]:
    """The archive, fetched once, checked and unpacked; it stays, since environments point into it."""
    archive = runtime.python_archive
    if archive is None:
        return []
    url = archive.url.format(arch=facts.arch, os="")
    through = f"--proxy {quote(proxy)} " if proxy else ""
    recipe = f"""\
curl -fsSL --retry 3 --max-time 900 {through}-o "$FOLDER/archive" -- {quote(url)}
echo {quote(archive.sha256 + "  ")}"$FOLDER/archive" | sha256sum -c --quiet -
tar -xf "$FOLDER/archive" -C "$FOLDER"
rm -f -- "$FOLDER/archive"
"$FOLDER/python/bin/python3" -c 'import ensurepip, ssl, sys, venv; assert sys.version_info >= {OLDEST}, sys.version'"""
    step = BuiltOnce(
        name="python of the runtime",
        folder=_folder(archive),
        recipe=recipe,
        shown=(f"from {url}",),
        keeps=("python/bin/python3",),
        limit=1200,
    )
    return [step]


def _folder(archive: PythonArchive) -> str:
    return f"{paths.PYTHONS}/{archive.sha256[:12]}"
