"""Signatures of installations and builds: apt, dpkg, dkms, pip, flash-attn, and the network that they need."""

from __future__ import annotations

from runbooks.diagnose.signature import Signature

_ERROR = r"(?:error|Fehler|erreur|错误|ошибка)"  # as compilers say it in other languages
_MODULE = r"scripts/Makefile\.(?:build|mod\w+)|DKMS make\.log"  # of Linux' own build, which modules use
_NVIDIA_SOURCE = r"(?:/var/lib/dkms/nvidia\S*|\bnvidia(?:-\w+)?/[\w-]+|\bcommon/inc/\S+)\.[ch]"


def apt() -> tuple[Signature, ...]:
    return (
        Signature(
            "kernel-compiler",
            r"\b(?:gcc|cc|clang)(?:-\d+)?: error: unrecognized command-line option",
            "the kernel was built by a newer C compiler than the one that is installed here",
            "the compiler that the line 'The kernel was built by' of make.log names: apt-get install gcc-VERSION",
            "driver-mismatch",
            "pop-os/pop #3117; NVIDIA/open-gpu-kernel-modules PR 951",
            rank=0,
            where="any",
            needs=_MODULE,
        ),
        Signature(
            "dkms-build",
            r"Bad return status for module build|dkms.*\(--configure\)|dkms.*returned error exit status"
            r"|Consult /var/lib/dkms|Unable to locate package linux-headers"
            r"|kernel headers for .* (?:cannot|could not) be found"
            r"|dkms.*(?:build|autoinstall).*fail|DKMS module .* failed|module_symvers_sanity_check|dkms apport"
            r"|Failed to run .*\bdkms\b|kernel module through DKMS|Could not locate dkms\.conf"
            r"|modules?[^/]*\(bad exit status: \d|^\.+\(bad exit status: \d"
            rf"|{_MODULE}.*\.k?o\] {_ERROR} \d|{_NVIDIA_SOURCE}:\d+(?::\d+)?: (?:fatal )?{_ERROR}"
            r"|step: .Building kernel modules|Could not resolve Linux kernel version"
            r"|Unable to find the kernel source tree",
            "the driver's module does not build for this kernel",
            "the headers of the running kernel, or a newer driver: invoke provision --tags driver",
            "driver-mismatch",
            "pop-os/pop #3811; linux-surface #1884, #1909; NVIDIA/open-gpu-kernel-modules #840, #1112",
            rank=1,
            where="any",
        ),
        Signature(
            "apt-held",
            r"held broken packages|[Hh]eld packages were changed|have unmet dependencies|E: Unmet dependencies"
            r"|caused by held packages"
            r"|but \S+ is to be installed|but it is not (?:going to be installed|installable)"
            r"|trying to overwrite .*which is also in package",
            "packages of two repositories or branches exclude each other",
            "invoke provision --tags driver --check --diff shows the pins",
            "driver-mismatch",
            "NVIDIA/open-gpu-kernel-modules #537; NVIDIA/ansible-role-nvidia-driver PR 28, 33",
            rank=2,
        ),
        Signature(
            "apt-lock",
            r"(?<!cache lock: )Could not get lock /var/|Unable to (?:acquire the dpkg frontend )?lock",
            "another process installs packages",
            "wait until it is done, then the same command again",
            "deploy-failed",
            "Azure/aks-engine PR 1538; xnvme #634; FogROS2 #20",
            rank=1,
        ),
        Signature(
            "apt-waits",
            r"^Waiting for cache lock",
            "it waits for another process that installs packages, which the line names",
            "wait, or look at that process: ps -fp PID",
            "deploy-failed",
            "apt(8), DPkg::Lock::Timeout",
            rank=6,
            last=True,
        ),
        Signature(
            "dpkg-interrupted",
            r"dpkg was interrupted|dpkg --configure -a|package is in a very bad inconsistent state",
            "an installation was cut off in the middle",
            "dpkg --configure -a on the host, then the same command again",
            "deploy-failed",
            "dpkg(1)",
            rank=1,
        ),
        Signature(
            "apt-signature",
            r"NO_PUBKEY|EXPKEYSIG|signatures (?:couldn't be verified|were invalid)|is (?:not|no longer) signed\b"
            r"|repository .* (?:no longer has|does not have) a Release file|Hash Sum mismatch|File has unexpected size",
            "apt does not trust what the repository sent, or the mirror is in the middle of an update",
            "a mirror: again in some minutes; a key: invoke provision --tags driver writes it anew",
            "deploy-failed",
            "apt-secure(8)",
            rank=2,
        ),
        Signature(
            "apt-sources",
            r"Conflicting values set for option Signed-By|list of sources could not be read"
            r"|Malformed (?:entry|line|stanza) \d",
            "a repository stands twice among apt's sources, with different keys, or an entry cannot be read",
            "invoke provision --tags driver sets a second entry of NVIDIA's aside; others: the file that apt names",
            "driver-mismatch",
            "NVIDIA/libnvidia-container #194; NVIDIA/cuda-repo-management #4",
            rank=1,
        ),
        Signature(
            "package-broken",
            r"Sub-process /usr/bin/dpkg returned an error|dpkg: error processing|subprocess returned error exit status"
            r"|dependency problems (?:prevent configuration|- leaving unconfigured)|Package \S+ is not configured yet",
            "a package could not be set up; the first error above names it",
            "/var/log/apt/term.log on the host; then invoke provision, which finishes what dpkg began",
            "deploy-failed",
            "dpkg(1)",
            rank=4,
        ),
        Signature(
            "apt-missing",
            r"Unable to locate package|has no installation candidate|Version '.*' for '.*' was not found",
            "a package, or the pinned version of it, is in no repository of this host",
            "driver.version and driver.repository in the inventory",
            "driver-mismatch",
            "apt-get(8)",
            rank=3,
        ),
    )


def pip() -> tuple[Signature, ...]:
    return (
        Signature(
            "flash-attn-isolation",
            r"No module named '(?:torch|packaging|psutil|ninja|wheel|setuptools)'",
            "a package was built in isolation, where torch is not installed",
            "no build isolation, and torch first: invoke provision --tags flash-attn does both",
            "flash-attn-build",
            "flash-attention #246, #1421, #1920",
            rank=1,
            needs=r"build wheel|subprocess-exited-with-error|flash[-_ ]attn|get_requires_for_build|setup\.py",
        ),
        Signature(
            "nvcc-killed",
            r"nvcc.*(?:Segmentation fault|Killed)|(?:Segmentation fault|Killed).*\bnvcc|(?:cicc|ptxas).*(?:Killed|died)"
            r"|fatal error: Killed signal"
            r"|cc1plus: out of memory|internal compiler error|died due to signal|nvcc error"
            r"|\bmake\S*: \*\*\* .*Error 137\b|FAILED: \[code=137\]",
            "the CUDA compiler was killed, or crashed: too many jobs for the memory, or a CUDA version with a bug",
            "flash_attn.max_jobs in the inventory",
            "flash-attn-build",
            "flash-attention #1683, #2361, #1038",
            rank=1,
        ),
        Signature(
            "build-killed",
            r"^Killed$",
            "something was killed while it compiled: there was not enough memory for all that ran side by side",
            "flash_attn.max_jobs in the inventory",
            "flash-attn-build",
            "flash-attention #575, #1549, #1683",
            rank=2,
            needs=r"\bnvcc\b|\bninja\b|cc1plus|Building wheel",
        ),
        Signature(
            "host-compiler",
            r"unsupported GNU version|#error -- unsupported (?:clang|Microsoft)|host compiler .* is not supported",
            "this CUDA does not take the system's C++ compiler",
            "a newer cuda.package, or an older g++ in CUDAHOSTCXX",
            "flash-attn-build",
            "CUDA's crt/host_config.h",
            rank=1,
        ),
        Signature(
            "no-compiler",
            r"\b(?:g\+\+|gcc|cc|nvcc|ninja|make): (?:command )?not found|nvcc was not found|Could not find nvcc"
            r"|CUDA_HOME environment variable is not set|Failed to find C compiler|Ninja is required"
            r"|Python\.h: No such file",
            "a compiler, its headers or ninja are not installed where something has to be compiled",
            "invoke provision --tags base,cuda,runtime installs them; CUDA_HOME in the runtime's env",
            "flash-attn-build",
            "flash-attention #447; NVIDIA/open-gpu-kernel-modules #805; torch.utils.cpp_extension",
            rank=1,
        ),
        Signature(
            "build-failed",
            r"ninja: build stopped|nvcc fatal|CMake Error at|Build backend failed"
            r"|Failed to prepare distributions|Failed building wheel for|Could not build wheels for|Ninja build failed"
            r"|Failed to build \S+ wheels|Failed to build .\S+(?:==| @ )|build backend returned an error"
            r"|Command .{0,4}'ninja.*non-zero|mismatches the version that was used to compile|FAILED: .*\.(?:o|so)\b"
            r"|command '.*(?:ninja|gcc|nvcc|g\+\+)' failed",
            "a build from source failed; the first error stands above this line",
            "the page has the usual reasons in order",
            "flash-attn-build",
            "flash-attention #246, #1421, #1920, #1683",
            rank=4,
        ),
        Signature(
            "pip-missing",
            r"No matching distribution found for (\S+)|Could not find a version that satisfies the requirement (\S+)"
            r"|ResolutionImpossible|conflicting dependencies|DO NOT MATCH THE HASHES|externally-managed-environment"
            r"|No solution found when resolving dependencies|requirements are unsatisfiable"
            r"|not a supported wheel on this platform|no wheels? with a matching",
            "pip cannot have what the runtime pins ({0})",
            "runtimes in the inventory: the pin, the index, and Python's version",
            "deploy-failed",
            "pip",
            rank=2,
        ),
    )


def network() -> tuple[Signature, ...]:
    return (
        Signature(
            "ssh",
            r"ssh: connect to host|Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED"
            r"|(?<!error: )kex_exchange_identification|Permission denied \(publickey",
            "the host does not let us in, or is not the one that it was",
            "the page tells which, before anything is overwritten",
            "host-unreachable",
            "ssh(1)",
            rank=2,
        ),
        Signature(
            "tls",
            r"certificate verify failed|SSL certificate problem|certificate (?:has expired|is not yet valid)"
            r"|CERTIFICATE_VERIFY_FAILED|\bSSLError\(|\bSSLCertVerificationError\b",
            "TLS fails, or a certificate is not accepted: a proxy in between, or this host's clock is wrong",
            "timedatectl; then the proxy's certificate authority",
            "host-unreachable",
            "openssl-verify(1)",
            rank=3,
        ),
        Signature(
            "network",
            r"Temporary failure (?:in name resolution|resolving)|Could not resolve host|Name or service not known"
            r"|Network is unreachable|No route to host|NameResolutionError|Failed to fetch .*(?:timed out|Could not)"
            r"|Could not install packages due to an OSError: HTTP|Max retries exceeded"
            r"|error sending request for url(?! \(http://[^)]*/(?:v1/|health))",  # a router says that of its workers
            "the host cannot reach what it downloads from",
            "its name server and route, and `proxy` in the inventory",
            "host-unreachable",
            "resolver and routes",
            rank=3,
        ),
        Signature(
            "download-failed",
            r"LocalEntryNotFoundError|IncompleteRead|ReadTimeoutError|HTTPSConnectionPool.*(?:timed out|refused)"
            r"|CAS service error|Connection broken:|ChunkedEncodingError|ContentTooShortError",
            "a download broke off, or its source does not answer",
            "the same command again: it goes on where it was; then the route, and `proxy` in the inventory",
            "model-download",
            "huggingface_hub #1498, #1718, #3457",
            rank=3,
        ),
    )
