"""What installers say when they fail, in the words of the person who has to act on it. Pure, and as shell text.

A pattern is a POSIX extended expression that means the same to `grep -iE` on the host and to Python, so that one table
serves both: the host ends a failed log with its cause, and tests hold every entry against the texts of real failures.
The first entry that matches wins: causes stand before their echoes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runbooks.engine.step import quote


@dataclass(frozen=True)
class Failure:
    """`says`: the cause, then what to do. `source`: where such a log was published."""

    name: str
    pattern: str
    says: str
    source: str

    def found_in(self, text: str) -> bool:
        return re.search(self.pattern, text, re.IGNORECASE) is not None


ROOM = (
    Failure(
        "no space",
        r"No space left on device|You don't have enough free space in|Disk quota exceeded",
        "the disk is full: df -h shows which; invoke runbook disk-full",
        "nccl #290; apt",
    ),
    Failure(
        "read-only disk",
        r"Read-only file system",
        "the disk was mounted read-only, as the kernel does after an I/O error: journalctl -k -p err",
        "ext4(5), errors=remount-ro",
    ),
)
APT = (
    *ROOM,
    Failure(
        "module rejected",
        r"Key was rejected by service|Required key not available"
        r"|Loading of (module with unavailable key|unsigned module) is rejected|Lockdown: .*unsigned module",
        "Secure Boot is on, and the firmware does not know the key that DKMS signed the module with: "
        "switch Secure Boot off in the VM, or enrol /var/lib/dkms/mok.pub with mokutil and reboot at the console",
        "fixwikihub; kernel Documentation/admin-guide/module-signing.rst",
    ),
    Failure(
        "kernel headers",
        r"kernel headers? (for|of) .*cannot be found|Module build for kernel .* was skipped since the kernel headers"
        r"|Please install the linux-headers-|Unable to find the kernel source tree"
        r"|Unable to locate package linux-headers-|linux-headers-[^ ]* has no installation candidate",
        "the headers of a kernel are missing, so DKMS builds no module for it: its archive may have dropped them; "
        "upgrade the kernel and reboot, then the same command again",
        "linux-surface #1909; dkms(8)",
    ),
    Failure(
        "kernel compiler",
        r"error: unrecognized command-line option",
        "the kernel was built by a newer C compiler than the one that is installed: make.log names it in its line "
        "'The kernel was built by'; install that gcc, then the same command again",
        "pop-os/pop #3117; open-gpu-kernel-modules PR 951",
    ),
    Failure(
        "dkms build",
        r"Bad return status for module build|Could not locate dkms\.conf"
        r"|Consult /var/lib/dkms|nvidia-(kernel-open-)?dkms.*\(--configure\)"
        r"|dkms.*returned error exit status 10",
        "the driver's module does not compile for this kernel: a kernel that is newer than the driver, most often; "
        "take a newer driver.version, or boot the previous kernel",
        "pop-os/pop #3811; linux-surface #1909",
    ),
    Failure(
        "driver too old",
        r"in this system (is|are) not supported by|does not include the required GPU",
        "this driver does not know the card: take a newer driver.version",
        "open-gpu-kernel-modules #322, #393",
    ),
    Failure(
        "proprietary modules",
        r"requires use of the NVIDIA open kernel modules",
        "these are the proprietary modules, and Blackwell needs the open ones: driver.packages names the flavour",
        "open-gpu-kernel-modules #862, #872",
    ),
    Failure(
        "rival driver",
        r"already bound to (nouveau|NovaCore)|No NVIDIA devices probed|NVIDIA probe routine was not called",
        "another driver has the cards: reboot once, nouveau and nova are kept off from then on",
        "Olares #3963",
    ),
    Failure(
        "version mismatch",
        r"Driver/library version mismatch",
        "the library was upgraded under the loaded module: invoke provision --tags driver reboots into the new one",
        "canonical PR 78; pando85/homelab PR 4110",
    ),
    Failure(
        "apt lock",
        r"(E|Error): (Could not get lock /var/(lib|cache)/(dpkg|apt)"
        r"|Unable to (acquire the dpkg frontend lock|lock dir))",
        "another process holds apt's lock, and did not let go in a quarter of an hour: the line above names it; "
        "on a fresh cloud image it is unattended-upgrades: wait for it, then the same command again",
        "FogROS2 #20; servo/ci-runners #57; Azure/aks-engine PR 1538; xnvme #634",
    ),
    Failure(
        "dpkg interrupted",
        r"dpkg was interrupted, you must manually run",
        "an earlier installation was cut off in the middle: dpkg --configure -a, then the same command again",
        "dpkg(1)",
    ),
    Failure(
        "held or mixed packages",
        r"you have held broken packages|Held packages were changed and -y|packages have unmet dependencies"
        r"|E: Unmet dependencies|trying to overwrite .*which is also in package",
        "packages of two repositories, or of two driver branches, exclude each other: "
        "dpkg -l '*nvidia*' and apt-mark showhold show them; purge what is not of driver.repository",
        "open-gpu-kernel-modules #537; NVIDIA/ansible-role-nvidia-driver PR 28, PR 33",
    ),
    Failure(
        "no such version",
        r"Version '.*' for '.*' was not found|Unable to locate package|has no installation candidate",
        "no source of this host has that package or version: apt-cache policy shows what there is; "
        "old driver versions are taken out of NVIDIA's repository from time to time",
        "apt-get(8)",
    ),
    Failure(
        "repository key",
        r"NO_PUBKEY|EXPKEYSIG|KEYEXPIRED|is (not|no longer) signed|signatures (couldn't|were invalid)"
        r"|invalid signature",
        "the repository is signed by another key than the one that is installed, or by none: key_url and key_sha256",
        "apt-secure(8)",
    ),
    Failure(
        "two keys for a source",
        r"Conflicting values set for option Signed-By",
        "two files of /etc/apt/sources.list.d name the same repository with different keys: remove one of them",
        "NVIDIA's cuda-keyring beside another entry",
    ),
    Failure(
        "clock",
        r"Release file for .* is (not valid yet|expired)|certificate is not yet valid",
        "the clock of this host is wrong: timedatectl; a VM that was paused needs time synchronisation",
        "apt-secure(8)",
    ),
    Failure(
        "half a mirror",
        r"Hash Sum mismatch|File has unexpected size|Mirror sync in progress",
        "the mirror is being updated, or a proxy gave an old list: try again in some minutes, or past the proxy",
        "apt(8)",
    ),
    Failure(
        "no network",
        r"Temporary failure resolving|Could not resolve|Failed to fetch|Cannot initiate the connection"
        r"|Could not connect to",
        "the package sources cannot be reached: name resolution, the way out, or `proxy` of the inventory",
        "apt(8)",
    ),
)  # fmt: skip
BUILD = (
    *ROOM,
    Failure(
        "torch is missing",
        r"No module named '?torch'?",
        "torch was not there when it was built: build isolation hides it, and build_needs does not bring it",
        "flash-attention #246, #1421, #1920",
    ),
    Failure(
        "ninja is missing",
        r"ninja.*(not found|required to load)|No module named '?ninja'?|Could not find ninja",
        "ninja is missing; it belongs in build_needs (without it the build takes hours)",
        "flash-attention README",
    ),
    Failure(
        "build need is missing",
        r"No module named '?(packaging|psutil|wheel|setuptools)'?",
        "a module that setup.py imports is missing; it belongs in build_needs",
        "flash-attention README",
    ),
    Failure(
        "nvcc crashed",
        r"(nvcc|cicc|ptxas).*(Segmentation fault|signal 11|core dumped)|Segmentation fault.*(nvcc|cicc|ptxas)",
        "nvcc crashed; try another CUDA, or fewer jobs",
        "flash-attention #2361",
    ),
    Failure(
        "out of memory",
        r"Killed|signal 9|signal: 9|exit status 137|out of memory|Cannot allocate memory|virtual memory exhausted",
        "out of memory; set flash_attn.max_jobs lower (5 GB for each compiler and each of its two threads)",
        "flash-attention #1683",
    ),
    Failure(
        "CUDA of another torch",
        r"detected CUDA version .* mismatches the version that was used to compile",
        "the toolkit is of another CUDA than torch: cuda.package must be of torch's major version",
        "torch.utils.cpp_extension",
    ),
    Failure(
        "no nvcc",
        r"nvcc.*(not found|No such file)|(not found|No such file).*nvcc"
        r"|CUDA_HOME (environment variable is not set|.*does not exist)",
        "no nvcc: no CUDA toolkit at cuda.home",
        "torch.utils.cpp_extension",
    ),
    Failure(
        "host compiler",
        r"unsupported GNU version",
        "this CUDA does not take the system's g++: a newer cuda.package, or an older g++ in CUDAHOSTCXX",
        "CUDA's crt/host_config.h",
    ),
    Failure(
        "CUDA too old",
        r"Unsupported gpu architecture|is not defined for option 'gpu-name'|not supported on .target"
        r"|FlashAttention is only supported on CUDA",
        "CUDA too old for the card; sm_120 needs 12.8, and in practice 12.9",
        "triton #8539; vllm #50705",
    ),
    Failure(
        "no code for the card",
        r"no kernel image is available",
        "the wheel has no code for this card: `archs` of flash_attn chooses it, from 2.8.3.post1 on for sm_120",
        "flash-attention #1638, #1563, #1785; Wan2GP PR 2286",
    ),
    Failure(
        "another torch's ABI",
        r"undefined symbol: _ZN?[A-Za-z0-9]*(c10|at|torch)|undefined symbol: .*(c10|at[0-9]|torch)"
        r"|cannot import name .* from 'sgl_kernel'",
        "the wheel was compiled against another torch: rm -r its folder, then the same command again",
        "flash-attention #1644, #1832, #1783, #975",
    ),
    Failure(
        "Python's headers",
        r"Python\.h: No such file",
        "the headers of this Python are missing: python3-dev (or that of `python`)",
        "setuptools",
    ),
)  # fmt: skip
PIP = (
    *ROOM,
    Failure(
        "another Python",
        r"Requires-Python|requires a different Python|requires Python",
        "the packages are not for this Python: SGLang 0.5.23 needs 3.11; `python` of the runtime names another",
        "pip",
    ),
    Failure(
        "no such version",
        r"No matching distribution found|Could not find a version",
        "no such version at the index of the inventory (or not for this Python and this glibc)",
        "pip",
    ),
    Failure(
        "pins exclude each other",
        r"ResolutionImpossible|conflicting dependencies|No solution found when resolving"
        r"|requirements are unsatisfiable",
        "the pins exclude each other: a package of the list asks for another version of a second one; "
        "what SGLang pins too old goes in `overrides`",
        "sglang #19408",
    ),
    Failure(
        "another content",
        r"DO NOT MATCH THE HASHES|hash mismatch",
        "a package has another content than its index says: a mirror or proxy that serves old files",
        "pip",
    ),
    Failure(
        "certificate",
        r"certificate verify failed|CERTIFICATE_VERIFY_FAILED",
        "the index's certificate is not trusted: index.trusted_hosts, or a CA in /usr/local/share/ca-certificates",
        "pip",
    ),
    Failure(
        "index out of reach",
        r"[Cc]onnection (refused|reset|broken|timed out|aborted)|timed out|NewConnectionError|Name or service not known"
        r"|Temporary failure in name resolution|ProxyError",
        "the index could not be reached: the way out, or `proxy` of the inventory",
        "pip",
    ),
    Failure(
        "no venv module",
        r"ensurepip is not available|No module named '?(venv|ensurepip)'?",
        "this Python has no venv module: invoke provision --tags base",
        "Debian's python3-venv",
    ),
)  # fmt: skip
RUNTIME = (
    *PIP,
    Failure(
        "DeepGEMM on SM120",
        r"has no attribute 'get_num_sms'|name 'deep_gemm' is not defined",
        "DeepGEMM did not load, as on SM120, and SGLang uses it all the same: SGLANG_ENABLE_JIT_DEEPGEMM=0 in `env` "
        "of the runtime, or a set with a DeepGEMM that knows SM120",
        "rtx6kpro wiki, common-issues; sglang #37105",
    ),
    Failure(
        "two kernel packages",
        r"(sgl-kernel|sglang-kernel).*(conflict|incompatible)|partially initialized module 'sgl_kernel'",
        "sgl-kernel and sglang-kernel, the old and the new name, are both there and overwrite each other: pin one",
        "sglang pyproject.toml, 2026-04",
    ),
    Failure(
        "model unknown",
        r"KeyError: '?glm_moe_dsa|does not recognize this architecture",
        "this transformers does not know GLM-5: 5.2 or newer, as an override where SGLang pins an older one",
        "sglang #19408; zai-org/GLM-5 #22",
    ),
    Failure(
        "no driver library",
        r"libcuda\.so\.1: cannot open shared object|libnvidia-ml\.so\.1: cannot open",
        "the driver's libraries are not installed: invoke provision --tags driver",
        "glibc ld.so",
    ),
    Failure(
        "driver too old",
        r"undefined symbol: cu[A-Z]|NVIDIA driver on your system is too old",
        "the driver is older than the CUDA of these packages: a newer driver.version, or packages for an older CUDA",
        "sglang #8654",
    ),
    Failure(
        "system too old",
        r"version .GLIBC[A-Z]*_[0-9.]+. not found",
        "a wheel is for a newer system than this one: another version of it, or a newer distribution",
        "glibc ld.so",
    ),
    Failure(
        "packages of two releases",
        r"ImportError: cannot import name",
        "two packages of the list do not belong together: the line above names them; pin both as SGLang's wheel does",
        "sglang #27654",
    ),
    Failure(
        "CUDA library",
        r"lib(cudart|nvrtc|cublas|cudnn|nccl)[A-Za-z_]*\.so[.0-9]*: cannot open",
        "a CUDA library of another major version is asked for than the one that torch brought: pin both of one CUDA",
        "pytorch wheels",
    ),
    *BUILD[len(ROOM) :],
)  # fmt: skip


def explain(log: str, failures: Iterable[Failure]) -> Failure | None:
    """The cause that the end of a failed log tells."""
    return next((failure for failure in failures if failure.found_in(log)), None)


_WHY = """\
rb_why() {{
  rb_rc=${{1-$?}}
  trap - EXIT
  [ "$rb_rc" -ne 0 ] || exit 0
  awk '/^::rb:: begin /{{n=0}} {{l[n++]=$0}} END{{for(i=(n>400?n-400:0);i<n;i++)print l[i]}}' "$JOB/log" >"$JOB/end"
  make_log=$(grep -oE '/var/lib/dkms/[^ ]*/make\\.log' "$JOB/end" | tail -n 1)
  [ -z "$make_log" ] || grep -E ' error: |fatal error|No rule to make|[*]{{3}} .*Error' "$make_log" |
    head -n 3 | cut -c 1-300 | sed 's/^/make.log: /' | tee -a "$JOB/end"
  rb_if() {{ if grep -qiE -- "$1" "$JOB/end"; then printf 'why: %s\\n' "$2"; exit "$rb_rc"; fi; }}
  {causes}
  exit "$rb_rc"
}}
trap rb_why EXIT
"""


def explained(script: str, failures: Sequence[Failure]) -> str:
    """The script, which ends a failure with the line `why: …` where the cause is known.

    It reads what this step has written to the job's log.
    """
    causes = "\n  ".join(f"rb_if {quote(failure.pattern)} {quote(failure.says)}" for failure in failures)
    return _WHY.format(causes=causes) + script
