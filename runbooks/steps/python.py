"""Shell text for virtual environments and pip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runbooks.engine.step import Answers, Change, Diff, Question, Verdict, quote, shell
from runbooks.inventory.shape import PythonIndex

PIP_DEFAULT = PythonIndex()
"""pip's own configuration on the host."""


_BAR = "import pip; print('raw' if tuple(map(int, pip.__version__.split('.')[:2])) >= (24, 1) else 'off')"
"""Lines with bytes, which pip 24.1 learned."""


def make_venv(folder: str, python: str) -> str:
    """Exactly a path as a shell word in `folder`: `"$FOLDER/venv"` is passed quoted already."""
    return f"{quote(python)} -m venv -- {folder}"


def pip(venv: str, verb: str, what: Sequence[str], index: PythonIndex, *, proxy: str | None = None) -> str:
    """A pip call that asks nothing, and looks where the inventory says."""
    options = ["--no-input", "--disable-pip-version-check", "--retries=5", "--timeout=60"]
    options += [f"--index-url={index.url}"] if index.url else []
    options += [f"--extra-index-url={url}" for url in index.extra_urls]
    options += [f"--find-links={place}" for place in index.find_links]
    options += [f"--trusted-host={host}" for host in index.trusted_hosts]
    options += ["--no-index"] if index.only else []
    options += [f"--proxy={proxy}"] if proxy else []
    words = " ".join(map(quote, [*options, *what]))
    bar = f'PIP_PROGRESS_BAR="$({venv}/bin/python -c {quote(_BAR)})"'
    return f"PIP_ROOT_USER_ACTION=ignore {bar} {venv}/bin/python -m pip {verb} {words}"


def import_check(venv: str, modules: Sequence[str]) -> str:
    """Each module by itself, so that the one that fails is the one that is named."""
    lines = [
        f"{venv}/bin/python -c {quote(f'import {name}')} || {{ echo {quote(f'import {name} failed')}; exit 1; }}"
        for name in modules
    ]
    return "\n".join(lines)


def env_lines(env: Mapping[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in env.items())


@dataclass(frozen=True, kw_only=True)
class Venv:
    """A virtual environment of this interpreter, which still starts."""

    path: str
    python: str = "python3"

    @property
    def id(self) -> str:
        return f"venv {self.path}"

    @property
    def _question(self) -> Question:
        return shell(f"{quote(self.path + '/bin/python')} -c 'import sys; sys.exit(sys.prefix == sys.base_prefix)'")

    def questions(self) -> tuple[Question, ...]:
        return (self._question,)

    def plan(self, answers: Answers) -> Change | None:
        if answers[self._question].get("rc") == 0:
            return None
        folder = quote(self.path)
        script = f"rm -rf -- {folder}\n{make_venv(folder, self.python)}"
        return Change(script=script, diff=(Diff(f"new, {self.python}"),), limit=300)


@dataclass(frozen=True, kw_only=True)
class PipInstall:
    """Exact requirements (`name==version`) in a virtual environment."""

    venv: str
    requirements: tuple[str, ...]
    index: PythonIndex = PIP_DEFAULT
    proxy: str | None = None

    @property
    def id(self) -> str:
        return f"pip {self.venv}"

    @property
    def _question(self) -> Question:
        """Asks the environment itself, which is quicker by far than `pip list`."""
        code = "import importlib.metadata as m\nfor d in m.distributions(): print(d.name + '==' + d.version)"
        return shell(f"{quote(self.venv + '/bin/python')} -c {quote(code)}")

    def questions(self) -> tuple[Question, ...]:
        return (self._question,)

    def plan(self, answers: Answers) -> Change | Verdict | None:
        installed = {_canonical(line) for line in str(answers[self._question].get("out") or "").splitlines()}
        missing = [wanted for wanted in self.requirements if _canonical(wanted) not in installed]
        if not missing:
            return None
        script = pip(quote(self.venv), "install", missing, self.index, proxy=self.proxy)
        return Change(script=script, diff=tuple(map(Diff, missing)), limit=3600)


def _canonical(requirement: str) -> str:
    """`FlashInfer_Python[cu13]==1` -> `flashinfer-python==1`."""
    name, _, version = requirement.partition("==")
    return f"{name.partition('[')[0].strip().lower().replace('_', '-').replace('.', '-')}=={version.strip()}"
