"""A runtime: what it is built of besides wheels, and what becomes of one that is damaged."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runbooks.engine.step import Change, Question, State, Verdict
from runbooks.inventory import Loaded, load
from runbooks.inventory.runtimes import runtime_path
from runbooks.inventory.shape import GitSource, PythonArchive, Runtime
from runbooks.provision import stages
from runbooks.provision.damage import FILES, read, repair, whole
from runbooks.provision.interpreter import archived, interpreter
from runbooks.provision.runtime import CudaOfTorch, _patched
from runbooks.steps import ask
from tests.provision.test_provision_stages import UBUNTU, every_step

COMMIT = "15a2459" + "0" * 33
SOURCE = GitSource(
    package="flashinfer-python", git="https://git.example/flashinfer", commit=COMMIT, env={"FLASHINFER_ARCH": "12.0"}
)
PATCH = "--- a/sglang/x.py\n+++ b/sglang/x.py\n@@ -1 +1 @@\n-old\n+new\n"
PLAIN = Runtime(sglang="0.5.23", why="w", packages=("sglang==0.5.23",))


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load(Path(__file__).parents[2] / "inventory.yaml")


def built(loaded: Loaded, **more: Any) -> tuple[Any, dict[str, Any]]:
    """The step of a runtime with `more`, and all steps of its host."""
    spec = msgspec.structs.replace(loaded.runtime_for("glm5-a"), **more)
    inventory = msgspec.structs.replace(loaded.inventory, runtimes={"sglang-0.5.23": spec})
    found = every_step(stages(UBUNTU, replace(loaded, inventory=inventory), "glm5-a"))
    return found["runtime sglang 0.5.23"], dict(found)


def answers(step: Any, said: str, *, mark: bool) -> dict[Question, State]:
    """Of a host whose runtime is built (or not), and on which the look at its files said this."""
    there: dict[Question, State] = {}
    for question in step.questions():
        there[question] = {"type": "file"} if mark and question.kind.name == "paths" else {}
    return there | {whole(folder): {"out": said} for folder in step.folders}


def test_what_is_built_from_a_commit_and_patched(loaded: Loaded) -> None:
    step, found = built(loaded, sources=(SOURCE,), patches=(PATCH,))
    change = step.plan(answers(step, "", mark=False))
    assert f"'flashinfer-python @ git+https://git.example/flashinfer@{COMMIT}'" in change.script
    assert "export CUDA_HOME=/usr/local/cuda MAX_JOBS=64 FLASHINFER_ARCH=12.0" in change.script
    assert change.script.index("git+https") < change.script.index("patch -p1") < change.script.index("import sglang")
    assert subprocess.run(["sh", "-n"], input=change.script, text=True, check=False).returncode == 0
    names = next(step.names for name, step in found.items() if name.startswith("packages ca-certificates"))
    assert {"git", "patch"} <= set(names)


def test_a_source_and_a_patch_are_part_of_the_name() -> None:
    archive = PythonArchive(url="https://x.example/p.tar.gz", sha256="a" * 64)
    kinds: list[dict[str, Any]] = [{}, {"sources": (SOURCE,)}, {"patches": (PATCH,)}, {"python_archive": archive}]
    assert len({runtime_path(msgspec.structs.replace(PLAIN, **kind), None) for kind in kinds}) == 4


def test_a_patch_fits_exactly_or_stops_the_build(tmp_path: Path) -> None:
    package = tmp_path / "lib" / "python3.11" / "site-packages" / "sglang"
    package.mkdir(parents=True)
    (package / "x.py").write_text("old\n")
    script = _patched(str(tmp_path), 1, PATCH)
    assert subprocess.run(["sh", "-ec", script], capture_output=True, check=False).returncode == 0
    assert (package / "x.py").read_text() == "new\n"
    again = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, check=False)
    assert (again.returncode, "patch 1 of the runtime does not fit" in again.stdout) == (1, True)


def look(folder: Path) -> list[str]:
    done = subprocess.run(["sh", "-c", whole(str(folder)).key], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_a_file_that_is_gone_is_found(tmp_path: Path) -> None:
    """The real script: what was built before files were listed, or not at all, is no damage; nor is a __pycache__."""
    assert look(tmp_path / "absent") == []
    folder = tmp_path / "runtime"
    (folder / "venv" / "torch").mkdir(parents=True)
    for name in ("a.py", "torch/b.so"):
        (folder / "venv" / name).write_text("12345")
    assert look(folder) == [""]
    (folder / "files.txt").write_text("5 a.py\n5 torch/b.so\n")
    (folder / "venv" / "__pycache__").mkdir()
    (folder / "venv" / "__pycache__" / "a.pyc").write_text("x")
    assert look(folder) == []
    (folder / "venv" / "torch" / "b.so").write_text("123")
    (folder / "venv" / "a.py").unlink()
    assert look(folder)[:4] == ["", "a.py", "torch/b.so", ""]
    python = folder / "venv" / "bin" / "python"
    python.parent.mkdir()
    shutil.copy("/bin/sleep", python)
    with (
        subprocess.Popen([python, "60"]) as server,
        subprocess.Popen(["/usr/bin/tail", "-f", "/dev/null", python], stderr=-3) as looks,
    ):
        assert look(folder)[:3] == [f"{server.pid} ", "a.py", "torch/b.so"]
        server.kill()
        looks.kill()


def test_a_damaged_runtime_is_built_again_unless_a_server_runs_from_it(loaded: Loaded) -> None:
    step, _ = built(loaded)
    assert step.plan(answers(step, "", mark=True)) is None
    change = step.plan(answers(step, "\na.py\ntorch/b.so", mark=True))
    assert isinstance(change, Change)
    assert change.diff[0].line == "again: a.py and others gone or changed"
    verdict = step.plan(answers(step, "4711 4712\na.py", mark=True))
    assert isinstance(verdict, Verdict)
    assert not verdict.ok
    assert "in use by pid 4711 4712" in verdict.details[1]
    assert step.plan(answers(step, "4711 4712", mark=True)) is None  # built before files were listed


def a_venv(folder: Path) -> Path:
    """Two packages and a file of nobody, listed."""
    site = folder / "venv" / "lib" / "python3.11" / "site-packages"
    for name, version, others in (("torch", "2.13.0+cu130", ["../../../bin/torchrun"]), ("sgl_kernel", "0.4", [])):
        files = [f"{name}/a.py", f"{name}/b.so", *others, f"{name}-{version}.dist-info/METADATA"]
        for file in files:
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            (site / file).write_text(file)
        (site / f"{name}-{version}.dist-info" / "RECORD").write_text("".join(f"{file},sha256=x,9\n" for file in files))
    (folder / "venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    listed = subprocess.run(["sh", "-c", FILES], cwd=folder / "venv", capture_output=True, text=True, check=True)
    (folder / "files.txt").write_text(listed.stdout)
    return site


@pytest.mark.parametrize(
    ("lost", "packages"),
    [
        (["torch"], ["torch==2.13.0+cu130"]),
        (["torch/b.so", "sgl_kernel/a.py"], ["sgl-kernel==0.4", "torch==2.13.0+cu130"]),
        (["../../../bin/torchrun"], ["torch==2.13.0+cu130"]),
        (["sgl_kernel-0.4.dist-info/METADATA"], ["sgl-kernel==0.4"]),
        (["torch-2.13.0+cu130.dist-info"], ["torch==2.13.0+cu130"]),
        (["../../../pyvenv.cfg"], []),
        (["torch/a.py", "../../../pyvenv.cfg"], []),
        (["torch", "torch-2.13.0+cu130.dist-info"], []),
    ],
)
def test_whose_the_lost_files_are(tmp_path: Path, lost: list[str], packages: list[str]) -> None:
    site = a_venv(tmp_path)
    for name in lost:
        subprocess.run(["rm", "-r", site / name], check=True)
    damage = read({"out": "\n".join(look(tmp_path))})
    assert (damage.users, list(damage.packages)) == ("", packages)
    assert damage.lost


@pytest.mark.parametrize(
    ("install", "instead"),
    [
        ("printf torch/b.so >$SITE/torch/b.so", False),
        ("{ printf torch/b.so >$SITE/torch/b.so; touch $SITE/torch-2.13.0+cu130.dist-info/REQUESTED; }", False),
        ("printf other >$SITE/torch/b.so", True),
        ("false", True),
    ],
)
def test_a_repair_is_judged_by_the_list_of_files(tmp_path: Path, install: str, instead: bool) -> None:
    site = a_venv(tmp_path)
    (site / "torch/b.so").write_text("torn")
    install = install.replace("$SITE", str(site))
    script = repair(str(tmp_path), ["torch==2.13.0+cu130"], install, "echo INSTEAD")
    done = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, check=True)
    assert ("INSTEAD" in done.stdout) == instead
    assert bool(look(tmp_path)) == instead


def test_only_the_packages_that_lost_something_come_again(loaded: Loaded) -> None:
    said = "\na.py\ntorch/b.so\n\nflash_attn-2.8.3.post2\ntorch-2.13.0"
    step, _ = built(loaded)
    change = step.plan(answers(step, said, mark=True))
    assert change.diff[0].line == "a.py and others gone or changed: flash-attn==2.8.3.post2, torch==2.13.0 again"
    assert re.search(r"--ignore-installed --no-deps torch==2.13.0 && .* --no-index .*/\*\.whl && ", change.script)
    assert subprocess.run(["sh", "-n"], input=change.script, text=True, check=False).returncode == 0
    for special in ({"patches": (PATCH,)}, {"sources": (msgspec.structs.replace(SOURCE, package="torch"),)}):
        step, _ = built(loaded, **special)
        assert step.plan(answers(step, said, mark=True)).diff[0].line.startswith("again: ")


def test_a_python_from_a_mirror(loaded: Loaded, tmp_path: Path) -> None:
    """The archive is checked and unpacked where the runtime then looks for its interpreter."""
    home = tmp_path / "python" / "bin"
    home.mkdir(parents=True)
    (home / "python3").write_text('#!/bin/sh\nexec /usr/bin/env python3 "$@"\n')
    (home / "python3").chmod(0o755)
    archive = tmp_path / "python-x86_64.tar.gz"
    subprocess.run(["tar", "-czf", archive, "-C", tmp_path, "python"], check=True)
    digest = subprocess.run(["sha256sum", archive], capture_output=True, text=True, check=True).stdout.split()[0]
    spec = PythonArchive(url=f"file://{tmp_path}/python-{{arch}}.tar.gz", sha256=digest)
    runtime = msgspec.structs.replace(PLAIN, python_archive=spec)
    place = f"/opt/runbooks/pythons/{digest[:12]}"
    assert interpreter(UBUNTU, runtime) == f"{place}/python/bin/python3"
    (step,) = archived(UBUNTU, runtime, proxy=None)
    change = step.plan({question: {} for question in step.questions()})
    assert isinstance(change, Change)
    script = re.sub("/opt/runbooks", str(tmp_path / "opt"), change.script)
    done = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "opt" / "pythons" / digest[:12] / "built").exists()
    step, found = built(loaded, python_archive=spec)
    assert f"{place}/python/bin/python3 -m venv" in step.plan(answers(step, "", mark=False)).script
    assert "python of the runtime" in found


@pytest.mark.parametrize(
    ("torch", "nvcc", "ok", "line"),
    [
        ("cuda: Optional[str] = '13.0'", "13.0", True, "torch is built for CUDA 13.0, the toolkit is 13.0"),
        ('cuda: _Optional[str] = "13.0"', "12.9", False, "torch is built for CUDA 13.0, the toolkit is 12.9"),
        ("cuda: Optional[str] = None", "13.0", True, "not compared"),
        ("cuda = '13.0'", "", True, "not compared"),
    ],
)
def test_the_toolkit_is_of_torchs_cuda(tmp_path: Path, torch: str, nvcc: str, ok: bool, line: str) -> None:
    """Asked by the real script, of the file as torch's wheels have it."""
    site = tmp_path / "runtime/venv/lib/python3.12/site-packages/torch"
    site.mkdir(parents=True)
    (site / "version.py").write_text(f"__version__ = '2.14.1'\n{torch}\ngit_version = 'x'\n")
    if nvcc:
        (tmp_path / "bin").mkdir()
        said = f"Cuda compilation tools, release {nvcc}, V{nvcc}.88"
        (tmp_path / "bin/nvcc").write_text(f"#!/bin/sh\necho '{said}'\n")
        (tmp_path / "bin/nvcc").chmod(0o755)
    step = CudaOfTorch(folders=(str(tmp_path / "none"), str(tmp_path / "runtime")), home=str(tmp_path))
    (question,) = step.questions()
    done = subprocess.run(["sh", "-c", question.key], capture_output=True, text=True, check=False)
    verdict = step.plan({question: {"out": done.stdout}})
    assert (verdict.ok, line in verdict.line) == (ok, True)


NO_DEEP_GEMM = "AttributeError: 'ImportError' object has no attribute 'get_num_sms'"


@pytest.mark.parametrize(
    ("said", "env", "ok", "line"),
    [
        ("", {}, True, "not tried"),
        ("0.2.3\n", {}, True, "loads (0.2.3)"),
        (NO_DEEP_GEMM, {"SGLANG_ENABLE_JIT_DEEPGEMM": "0"}, True, "keeps SGLang from it"),
        (NO_DEEP_GEMM, {}, False, "SGLang would call it all the same"),
    ],
)
def test_deep_gemm_loads_or_is_switched_off(
    loaded: Loaded, said: str, env: dict[str, str], ok: bool, line: str
) -> None:
    _, found = built(loaded, env=env)
    step = found["DeepGEMM"]
    verdict = step.plan({question: {"text": said} for question in step.questions()})
    assert (verdict.ok, line in verdict.line) == (ok, True)


@pytest.mark.parametrize("name", ["flag table", "DeepGEMM"])
def test_a_runtime_that_is_not_there_was_not_built_before(loaded: Loaded, name: str) -> None:
    _, found = built(loaded, packages=(*loaded.runtime_for("glm5-a").packages, "sgl-deep-gemm==1"))
    check = found[name]
    gone: dict[Question, State] = {question: {} for question in check.questions()}
    assert check.plan(gone).line.endswith(": there is no runtime here")
    old = gone | {ask.path(check.built.folders[-1]): {"type": "directory"}}
    assert check.plan(old).line.endswith(": this runtime was built before it was")
