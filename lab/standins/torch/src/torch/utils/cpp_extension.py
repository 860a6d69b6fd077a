"""The lab stand-in of torch.utils.cpp_extension: CUDA extensions compiled by ninja, with its messages."""
# setuptools has no types:
# mypy: disable-error-code="import-not-found, import-untyped, misc, unused-ignore"

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from setuptools import Extension
from setuptools.command.build_ext import build_ext


def _find_cuda_home() -> str | None:
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if named:
        return named
    nvcc = shutil.which("nvcc")
    if nvcc:
        return str(Path(nvcc).parent.parent)
    return "/usr/local/cuda" if Path("/usr/local/cuda").exists() else None


CUDA_HOME = _find_cuda_home()


def CUDAExtension(name: str, sources: list[str], **options: Any) -> Extension:
    if CUDA_HOME is None:
        raise OSError("CUDA_HOME environment variable is not set. Please set it to your CUDA install root.")
    arguments = options.pop("extra_compile_args", {})
    extension = Extension(name, sources, language="c++", **options)
    extension.extra_compile_args = arguments
    return extension


class BuildExtension(build_ext):
    """Compiles each extension's sources by ninja, then links as setuptools does."""

    def build_extension(self, ext: Extension) -> None:
        folder = Path(self.build_temp).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        objects = [str(folder / Path(source).with_suffix(".o")) for source in ext.sources]
        _write_ninja(folder / "build.ninja", ext, objects, self._includes(ext))
        print(f"Emitting ninja build file {folder}/build.ninja...", flush=True)
        print("Compiling objects...", flush=True)
        _run_ninja(folder)
        target = self.get_ext_fullpath(ext.name)
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["c++", "-shared", *objects, "-o", target], check=True)

    def _includes(self, ext: Extension) -> list[str]:
        return [f"-I{path}" for path in (*ext.include_dirs, sysconfig.get_paths()["include"])]


def _write_ninja(path: Path, ext: Extension, objects: list[str], includes: list[str]) -> None:
    arguments: dict[str, list[str]] = ext.extra_compile_args  # type: ignore[assignment]
    cxx = " ".join([*includes, "-fPIC", *arguments.get("cxx", [])])
    nvcc = " ".join([*includes, *arguments.get("nvcc", [])])
    dependencies = "--generate-dependencies-with-compile --dependency-output $out.d"
    lines = [
        "ninja_required_version = 1.3",
        "cxx = c++",
        f"nvcc = {CUDA_HOME}/bin/nvcc",
        "rule compile",
        f"  command = $cxx -MMD -MF $out.d {cxx} -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule cuda_compile",
        f"  command = $nvcc {dependencies} {nvcc} -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
    ]
    for source, target in zip(ext.sources, objects, strict=True):
        rule = "cuda_compile" if source.endswith(".cu") else "compile"
        lines.append(f"build {target}: {rule} {Path(source).resolve()}")
    path.write_text("\n".join(lines) + "\n")


def _run_ninja(folder: Path) -> None:
    ninja = shutil.which("ninja")
    if ninja is None:
        raise RuntimeError("Ninja is required to load C++ extensions (pip install ninja to get it)")
    argv = [ninja, "-v"]
    jobs = os.environ.get("MAX_JOBS")
    if jobs is not None and jobs.isdigit():
        print(f"Using envvar MAX_JOBS ({jobs}) as the number of workers...", flush=True)
        argv += ["-j", jobs]
    else:
        print("Allowing ninja to set a default number of workers... ", end="")
        print("(overridable by setting the environment variable MAX_JOBS=N)", flush=True)
    if subprocess.run(argv, cwd=folder, check=False).returncode != 0:
        raise RuntimeError("Error compiling objects for extension")
