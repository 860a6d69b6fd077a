"""The lab stand-in of flash-attn's build: its environment variables and messages, with plain C++ for kernels."""
# torch and wheel are there only where it is built:
# mypy: disable-error-code="import-not-found, import-untyped, misc, unused-ignore"

from __future__ import annotations

import ast
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import psutil
import torch
from packaging.version import Version, parse
from setuptools import find_packages, setup
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CUDAExtension
from wheel.bdist_wheel import bdist_wheel

HERE = Path(__file__).resolve().parent
RELEASES = "https://github.com/Dao-AILab/flash-attention/releases/download"
FORCE_BUILD = os.getenv("FLASH_ATTENTION_FORCE_BUILD", "FALSE") == "TRUE"
SKIP_CUDA_BUILD = os.getenv("FLASH_ATTENTION_SKIP_CUDA_BUILD", "FALSE") == "TRUE"
NVCC_THREADS = os.getenv("NVCC_THREADS") or "4"
ARCHS = os.getenv("FLASH_ATTN_CUDA_ARCHS", "80;90;100;110;120").split(";")
GB_A_THREAD = 5.0  # of memory, as the real build reckons


def version() -> str:
    text = (HERE / "flash_attn" / "__init__.py").read_text()
    found = re.search(r"^__version__\s*=\s*(.*)$", text, re.MULTILINE)
    assert found is not None
    return str(ast.literal_eval(found[1]))


def cuda_version() -> Version:
    said = subprocess.check_output([f"{CUDA_HOME}/bin/nvcc", "-V"], text=True)
    return parse(re.search(r"release ([\d.]+)", said)[1])  # type: ignore[index]


def arch_flags(cuda: Version) -> list[str]:
    """One -gencode an architecture; 100 and later need a toolkit that knows them."""
    flags = []
    for arch in ARCHS:
        needs = {"90": "11.8", "100": "12.8", "110": "13.0", "120": "12.8"}.get(arch, "11.7")
        if cuda < Version(needs):
            continue
        family = "f" if arch in ("100", "110", "120") and cuda >= Version("12.9") else ""
        flags += ["-gencode", f"arch=compute_{arch}{family},code=sm_{arch}"]
    return flags


def extensions() -> list[object]:
    if SKIP_CUDA_BUILD:
        return []
    print(f"\n\ntorch.__version__  = {torch.__version__}\n\n")
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
    sources = [str(path.relative_to(HERE)) for path in sorted((HERE / "csrc").rglob("*.c*")) if path.suffix != ".h"]
    flags = ["-O3", "-std=c++17", "--use_fast_math", abi, *arch_flags(cuda_version()), "--threads", NVCC_THREADS]
    arguments = {"cxx": ["-O0", "-std=c++17", abi], "nvcc": flags}
    return [
        CUDAExtension("flash_attn_2_cuda", sources, extra_compile_args=arguments, include_dirs=[str(HERE / "csrc")])
    ]


class CachedWheel(bdist_wheel):
    """Asks for a finished wheel first, unless the build is forced. The lab has none, so it builds."""

    def run(self) -> None:
        if not FORCE_BUILD:
            print("Guessing wheel URL: ", wheel_url())
            print("Precompiled wheel not found. Building from source...")
        super().run()


def wheel_url() -> str:
    major = (torch.version.cuda or "0").split(".")[0]
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    abi = str(torch._C._GLIBCXX_USE_CXX11_ABI).upper()
    release = ".".join(torch.__version__.split("+")[0].split(".")[:2])
    name = f"flash_attn-{version()}+cu{major}torch{release}cxx11abi{abi}-{tag}-{tag}-linux_{platform.machine()}.whl"
    return f"{RELEASES}/v{version()}/{name}"


class NinjaBuild(BuildExtension):
    def __init__(self, *arguments: object, **options: object) -> None:
        if not os.environ.get("MAX_JOBS"):
            memory = psutil.virtual_memory().available / 1e9
            cores = max(1, (os.cpu_count() or 1) // 2)
            jobs = max(1, min(cores, int(memory / (GB_A_THREAD * int(NVCC_THREADS)))))
            os.environ["MAX_JOBS"] = str(jobs)
            print(
                f"Auto set MAX_JOBS to `{jobs}`, NVCC_THREADS to `{NVCC_THREADS}`. If you see memory pressure, ", end=""
            )
            print("please use a lower `MAX_JOBS=N` or `NVCC_THREADS=N` value.")
        super().__init__(*arguments, **options)


setup(
    name="flash_attn",
    version=version(),
    description="lab stand-in of Flash Attention: it compiles, and computes nothing",
    packages=find_packages(include=["flash_attn", "flash_attn.*"]),
    ext_modules=extensions(),
    cmdclass={"bdist_wheel": CachedWheel, "build_ext": NinjaBuild},
    python_requires=">=3.9",
    install_requires=["torch"],
)
