# ruff: noqa: E501  (texts as they were published)
"""The texts of real failures (as published), each recognised; and the same by the host's grep and by Python."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from runbooks.steps.explain import APT, BUILD, PIP, RUNTIME, Failure, explain, explained

SETS = {"apt": APT, "build": (*BUILD, *PIP), "runtime": RUNTIME}
CASES = [
    ("apt", "apt lock", "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 4750 (unattended-upgr)\n"
     "E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), is another process using it?"),
    ("apt", "held or mixed packages", "The following packages have unmet dependencies:\n nvidia-driver-580-open : Depends: "
     "libnvidia-gl-580 (= 580.95.05-0ubuntu1)\nE: Unable to correct problems, you have held broken packages."),
    ("apt", "dkms build", "Error! Bad return status for module build on kernel: 6.17.9-76061709-generic (x86_64)\n"
     "Consult /var/lib/dkms/nvidia/580.119.02/build/make.log for more information.\n"
     "dpkg: error processing package nvidia-dkms-580-open (--configure):\n installed nvidia-dkms-580-open package "
     "post-installation script subprocess returned error exit status 10"),
    ("apt", "kernel compiler", "Error! Bad return status for module build on kernel: 6.4.6-76060406-generic (x86_64)\n"
     "Consult /var/lib/dkms/nvidia/535.98/build/make.log for more information.\n"
     "make.log: gcc: error: unrecognized command-line option ‘-ftrivial-auto-var-init=zero’"),
    ("apt", "kernel headers", "Error! Your kernel headers for kernel 6.8.0-63-generic cannot be found.\nPlease install the "
     "linux-headers-6.8.0-63-generic package or use the --kernelsourcedir option to tell DKMS where it's located."),
    ("apt", "kernel headers", "E: Unable to locate package linux-headers-6.8.0-63-generic"),
    ("apt", "module rejected", "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"),
    ("apt", "module rejected", "modprobe: ERROR: could not insert 'nvidia': Required key not available"),
    ("apt", "rival driver", "NVRM: GPU 0000:01:00.0 is already bound to NovaCore.\nNVRM: No NVIDIA devices probed."),
    ("apt", "proprietary modules", "NVRM: installed in this system requires use of the NVIDIA open kernel modules."),
    ("apt", "version mismatch", "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.158"),
    ("apt", "dpkg interrupted", "E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem."),
    ("apt", "no such version", "E: Version '580.126.20*' for 'nvidia-open' was not found"),
    ("apt", "no such version", "E: Unable to locate package cuda-toolkit-13-0"),
    ("apt", "repository key", "W: GPG error: http://x InRelease: The following signatures couldn't be verified because the "
     "public key is not available: NO_PUBKEY A4B469963BF863CC\nE: The repository 'http://x InRelease' is not signed."),
    ("apt", "two keys for a source", "E: Conflicting values set for option Signed-By regarding source http://x/ /: "
     "/usr/share/keyrings/cuda-archive-keyring.gpg != /etc/apt/keyrings/nvidia.gpg"),
    ("apt", "clock", "E: Release file for http://x/InRelease is not valid yet (invalid for another 3h 2min 1s)."),
    ("apt", "half a mirror", "E: Failed to fetch http://x/Packages.gz  Hash Sum mismatch"),
    ("apt", "no network", "Err:1 http://x bookworm InRelease\n  Temporary failure resolving 'x'"),
    ("apt", "no space", "dpkg: error processing archive x.deb (--unpack):\n cannot copy extracted data for './usr/x' to "
     "'/usr/x.dpkg-new': failed to write (No space left on device)"),
    ("build", "torch is missing", "    ModuleNotFoundError: No module named 'torch'"),
    ("build", "ninja is missing", "RuntimeError: Ninja is required to load C++ extensions (pip install ninja to get it)"),
    ("build", "build need is missing", "ModuleNotFoundError: No module named 'packaging'"),
    ("build", "nvcc crashed", "Segmentation fault (core dumped)\nnvcc error   : 'cicc' died due to signal 11 (Invalid memory "
     "reference)\nninja: build stopped: subcommand failed."),
    ("build", "out of memory", "FAILED: [code=137] flash_bwd_hdim256_bf16_sm80.o\nKilled\nninja: build stopped"),
    ("build", "out of memory", "c++: fatal error: Killed signal terminated program cc1plus"),
    ("build", "CUDA of another torch", "RuntimeError: \nThe detected CUDA version (12.4) mismatches the version that was used "
     "to compile\nPyTorch (13.0). Please make sure to use the same CUDA versions."),
    ("build", "no nvcc", "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root."),
    ("build", "no nvcc", "FileNotFoundError: [Errno 2] No such file or directory: '/usr/local/cuda/bin/nvcc'"),
    ("build", "CUDA too old", "nvcc fatal   : Unsupported gpu architecture 'compute_120'"),
    ("build", "CUDA too old", "ptxas fatal   : Value 'sm_120' is not defined for option 'gpu-name'"),
    ("build", "no code for the card", "RuntimeError: CUDA error: no kernel image is available for execution on the device"),
    ("build", "another torch's ABI", "ImportError: flash_attn_2_cuda.so: undefined symbol: _ZNK3c106SymInt6sym_neERKS0_"),
    ("build", "another torch's ABI", "ImportError: x.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112"),
    ("build", "Python's headers", "x.cpp:1:10: fatal error: Python.h: No such file or directory"),
    ("build", "no such version", "ERROR: No matching distribution found for flash-attn==9"),
    ("runtime", "another Python", "ERROR: Ignored the following versions that require a different python version: 0.5.23 "
     "Requires-Python >=3.11\nERROR: No matching distribution found for sglang==0.5.23"),
    ("runtime", "pins exclude each other", "ERROR: ResolutionImpossible: for help visit https://pip.pypa.io/"),
    ("runtime", "another content", "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE."),
    ("runtime", "certificate", "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify"),
    ("runtime", "index out of reach", "WARNING: Retrying after connection broken by 'NewConnectionError('<...>: Failed to "
     "establish a new connection: [Errno 111] Connection refused')'"),
    ("runtime", "no venv module", "The virtual environment was not created successfully because ensurepip is not available."),
    ("runtime", "DeepGEMM on SM120", "AttributeError: 'ImportError' object has no attribute 'get_num_sms'"),
    ("runtime", "DeepGEMM on SM120", "NameError: name 'deep_gemm' is not defined"),
    ("runtime", "model unknown", "KeyError: 'glm_moe_dsa'"),
    ("runtime", "no driver library", "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory"),
    ("runtime", "CUDA library", "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory"),
    ("apt", "driver too old", "NVRM: in this system is not supported by the 280.13 NVIDIA Linux"),
    ("apt", "module rejected", "kernel: Loading of unsigned module is rejected"),
    ("apt", "rival driver", "NVRM: The NVIDIA probe routine was not called for 3 device(s)."),
    ("apt", "held or mixed packages", "E: Unmet dependencies. Try 'apt --fix-broken install' with no packages"),
    ("apt", "held or mixed packages", "dpkg: error processing archive libnvidia-gl-580.deb (--unpack):\n trying to overwrite "
     "'/usr/share/egl/10_nvidia.json', which is also in package libnvidia-egl-wayland1"),
    ("build", "host compiler", "crt/host_config.h:143:2: error: #error -- unsupported GNU version! gcc versions later than 13"),
    ("build", "CUDA too old", "ptxas x.ptx, line 15870; error   : Instruction 'cvt with .e2m1x2' not supported on .target 'sm_120'"),
    ("runtime", "pins exclude each other", "  x No solution found when resolving dependencies:"),
    ("runtime", "driver too old", "ImportError: sgl_kernel/spatial_ops.abi3.so: undefined symbol: cuGreenCtxDestroy"),
    ("runtime", "system too old", "ImportError: libc.so.6: version `GLIBC_2.38' not found (required by common_ops.abi3.so)"),
    ("runtime", "packages of two releases", "ImportError: cannot import name 'LayerRepository' from 'kernels'"),
]  # fmt: skip


@pytest.mark.parametrize(("among", "name", "log"), CASES, ids=[f"{name}-{n}" for n, (_, name, _) in enumerate(CASES)])
def test_a_published_failure_has_its_cause(among: str, name: str, log: str) -> None:
    found = explain(f"Reading package lists...\n{log}\n", SETS[among])
    assert found is not None
    assert found.name == name


def test_grep_finds_what_python_finds(tmp_path: Path) -> None:
    """One awk-free pass: every pattern over every text, on both sides."""
    failures = list(dict.fromkeys((*APT, *BUILD, *RUNTIME)))
    texts = [log.replace("\n", " ") for _, _, log in CASES]
    (tmp_path / "texts").write_text("\n".join(texts) + "\n")
    for failure in failures:
        argv = ["grep", "-niE", "--", failure.pattern, str(tmp_path / "texts")]
        said = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
        lines = {int(line.partition(":")[0]) - 1 for line in said.splitlines()}
        assert lines == {number for number, text in enumerate(texts) if failure.found_in(text)}, failure.name


def test_no_cause_in_a_healthy_log() -> None:
    """Logs of jobs that ended well, as a lab host wrote them."""
    logs = sorted((Path(__file__).parent / "data/healthy").glob("*.log"))
    assert len(logs) >= 20
    for log in logs:
        for failures in SETS.values():
            found = explain(log.read_text(), failures)
            assert found is None, f"{log.name}: {found}"


def run(script: str, job: Path, failures: tuple[Failure, ...]) -> tuple[int, list[str]]:
    """As the job's supervisor runs it: the output is the log that the script itself may read."""
    with (job / "log").open("a") as log:
        argv = ["sh", "-e", "-c", explained(script, failures)]
        rc = subprocess.run(
            argv, stdout=log, stderr=log, env={"JOB": str(job), "PATH": "/usr/bin:/bin"}, check=False
        ).returncode
    return rc, (job / "log").read_text().splitlines()


def test_a_failed_script_ends_with_its_cause(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("::rb:: begin 0\nKey was rejected by service\n::rb:: begin 1\n")
    rc, said = run("echo 'E: Unable to locate package x'; false; echo never", tmp_path, APT)
    assert rc == 1
    assert said[-1].startswith("why: no source of this host has that package")
    assert "never" not in said


def test_a_failure_keeps_its_exit_code_and_success_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("::rb:: begin 0\n")
    assert run("exit 100", tmp_path, APT) == (100, ["::rb:: begin 0"])
    assert run("echo fine", tmp_path, APT) == (0, ["::rb:: begin 0", "fine"])
