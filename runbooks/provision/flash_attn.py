"""flash-attn, compiled on the host into a wheel. SGLang serves GLM-5 without it, so its failure is a warning."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from runbooks import paths
from runbooks.engine.facts import Facts
from runbooks.engine.step import Answers, Change, Question, Stage, Verdict, quote, shell
from runbooks.inventory.shape import Inventory, PythonIndex, Runtime
from runbooks.provision.interpreter import interpreter
from runbooks.steps import ask
from runbooks.steps.build import BuiltOnce, is_there
from runbooks.steps.downloads import NO_SSH, Ssh
from runbooks.steps.explain import BUILD, PIP, explain
from runbooks.steps.python import make_venv, pip

GB_A_COMPILER = 5.0  # of memory for each nvcc thread: the rule of flash-attention's own setup.py
NVCC_THREADS = 2
COMPILE = "compile"
FIRST_WITH_SM120 = (2, 8, 3, 1)  # 2.8.3.post1 (Wan2GP PR 2286)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"[0-9]+", version))


def stages(facts: Facts, inventory: Inventory, runtime: Runtime, ssh: Ssh = NO_SSH) -> list[Stage]:
    if not inventory.flash_attn.enabled:
        return []
    step = Wheel(facts=facts, inventory=inventory, runtime=runtime, ssh=ssh)
    return [Stage("flash-attn", (step,), frozenset({"flash-attn"}), optional=not inventory.flash_attn.required)]


def max_jobs(cores: int, memory_bytes: int) -> int:
    """Compilers side by side: half the cores, as long as each has 5 GB for each of its threads.

    More than that swaps, or is killed (flash-attention #1683); the whole machine's memory counts, because no server
    runs on a host that is still being built. Measured with 2.8.3.post2 and CUDA 13.0: the greediest compiler took 7 GB,
    16 of them 69 GB together at the worst moment, and 32 cores were done in 22 minutes.
    """
    return max(1, min(cores // 2, int(memory_bytes / (GB_A_COMPILER * 1e9 * NVCC_THREADS))))


def wheel_folder(facts: Facts, inventory: Inventory, runtime: Runtime) -> str:
    """Named by everything that decides the wheel's bytes: another torch, Python or CUDA is another folder.

    The C++ ABI is torch's, so torch's version stands for it; the system stands for glibc.
    """
    flash = inventory.flash_attn
    key = (
        flash.version, flash.archs, sorted(torch_pins(runtime)), inventory.cuda.package, facts.python,
        interpreter(facts, runtime), facts.arch, facts.os_id, facts.os_version,
    )  # fmt: skip
    return f"{paths.WHEELS}/flash-attn-{flash.version}-{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:12]}"


def torch_pins(runtime: Runtime) -> list[str]:
    return [package for package in runtime.packages if re.match(r"torch(\[.*\])?==", package)]


_TELLS = "error|fatal|killed|segmentation|signal|no space|no module|no matching|not found|not set|unsupported"
_SAYS_NOTHING = (
    "Can not execute|clear error message|except ImportError|sys.stderr|manifest_maker|originates from|"
    "exited-with-error|Failed (to build|building)|Building wheel|^ *raise "
)
_FAILED = f"""\
{{
  if grep -q 'Building wheel for flash-attn' "$JOB/log"; then echo {COMPILE}; else echo before; fi
  grep -iE '{_TELLS}' "$JOB/log" | grep -vE '{_SAYS_NOTHING}' | cut -c 1-300 | tail -n 20
}} >"$FOLDER/failed"
echo 'flash-attn did not build. What its log says of errors:'
sed 1d "$FOLDER/failed" | tail -n 9"""
"""pip ends a failed build with pages about itself: the lines that tell the cause are picked out, and said last."""

_CALL = """\
import torch
import flash_attn
if not torch.cuda.is_available() or not hasattr(torch, "randn"):
    print("flash-attn: imported; no GPU to call it on")
else:
    q, k, v = (torch.randn(2, 256, 4, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    said = flash_attn.flash_attn_func(q, k, v, causal=True).float()
    by = [x.transpose(1, 2).float() for x in (q, k, v)]
    right = torch.nn.functional.scaled_dot_product_attention(*by, is_causal=True).transpose(1, 2)
    error = (said - right).abs().max().item()
    print(f"flash-attn: called on {torch.cuda.get_device_name()}, largest difference from PyTorch's own {error:.4f}")
    assert error < 0.05, "flash-attn computes something else than PyTorch"
"""
"""A wheel without code for the card installs well, and says `no kernel image` at the first call only (#1638).

The tensors of the lab's torch do not exist, so there the import is all that can be tried."""


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """The wheel in its cache.

    A compile that failed is remembered and not begun again by itself: it takes from minutes to hours, and fails again.
    What failed before it, as an index that could not be reached, is tried anew by the next run.
    """

    facts: Facts
    inventory: Inventory
    runtime: Runtime
    ssh: Ssh = NO_SSH  # to the cache

    @property
    def id(self) -> str:
        return f"flash-attn {self.inventory.flash_attn.version} wheel"

    @property
    def folder(self) -> str:
        return wheel_folder(self.facts, self.inventory, self.runtime)

    @property
    def failure(self) -> Question:
        """There from the beginning of a build until its good end: how it failed, then its log's lines of errors."""
        return ask.path(f"{self.folder}/failed", wanted="*")

    @property
    def mark(self) -> Question:
        """There once the wheel is whole."""
        return self._build().mark

    def questions(self) -> tuple[Question, ...]:
        return (*self._build().questions(), self.failure, self._file)

    @property
    def _file(self) -> Question:
        """Its name tells Python, ABI and platform, so it is not known before it is built."""
        return shell(f"ls -- {quote(self.folder)}/*.whl 2>/dev/null")

    def plan(self, answers: Answers) -> Change | Verdict | None:
        flash = self.inventory.flash_attn
        if "120" in flash.archs.split(";") and _release(flash.version) < FIRST_WITH_SM120:
            return Verdict(
                ok=False,
                line=f"flash-attn {flash.version} has no code for sm_120, which its first call would say",
                next="flash_attn.version: 2.8.3.post1 or newer",
                page="flash-attn-build",
            )
        failure = answers[self.failure]
        how, *log = str(failure.get("text") or "").splitlines() or [""]
        if how == COMPILE and not is_there(answers[self.mark]) and not flash.required:
            return Verdict(
                ok=False,
                line=f"flash-attn {flash.version} did not build on this host before: {cause(log)}",
                details=tuple(log[-5:]),
                next=f"to try again: rm -r {self.folder}, then invoke provision --tags flash-attn,runtime",
                page="flash-attn-build",
            )
        is_lost = is_there(answers[self.mark]) and not answers[self._file].get("out")
        change = self._build().build("again: its file is gone") if is_lost else self._build().plan(answers)
        return change and replace(change, uploads=self.ssh.uploads() if self._is_remote else {})

    def _build(self) -> BuiltOnce:
        jobs = self.inventory.flash_attn.max_jobs or max_jobs(self.facts.cores, self.facts.memory_bytes)
        return BuiltOnce(
            name=self.id,
            folder=self.folder,
            recipe=self._recipe(jobs),
            shown=(f"for sm_{self.inventory.flash_attn.archs}, {_side_by_side(jobs)}",),
            limit=4 * 3600,
            page="flash-attn-build",
        )

    @property
    def _is_remote(self) -> bool:
        return (self.inventory.flash_attn.cache or "").startswith("ssh:")

    def _from_cache(self) -> str:
        """Shell text that succeeds where the cache has this very wheel, and it lies in `$FOLDER` then."""
        if self.inventory.flash_attn.cache is None:
            return "false"
        place = f"{self.inventory.flash_attn.cache.rstrip('/')}/{posixpath.basename(self.folder)}"
        if not self._is_remote:
            return f'[ -e {quote(place)}/built ] && cp -- {quote(place)}/*.whl {quote(place)}/sums "$FOLDER"'
        url = urlsplit(place)
        port = f"-p {url.port} " if url.port else ""
        login = f"{url.username}@{url.hostname}" if url.username else str(url.hostname)
        remote = f"cd -- {quote(url.path)} && [ -e built ] && exec tar -c -- *.whl sums"
        return f'$FETCH_SSH {port}-- {quote(login)} {quote(remote)} | tar -x -C "$FOLDER"'

    def _recipe(self, jobs: int) -> str:
        """From the cache, where it was tried already; or compiled in an environment of its own with the runtime's
        torch: the runtime itself is never changed for a build.

        No build isolation, so the build sees that torch; `-v`, so that ninja's `[37/73]` reaches the log.
        """
        flash, cuda = self.inventory.flash_attn, self.inventory.cuda.home
        index = flash.index if flash.index != PythonIndex() else self.runtime.index
        proxy = self.inventory.proxy
        venv = '"$FOLDER/build"'
        needs = [*torch_pins(self.runtime), *flash.build_needs]
        wheel = ["--no-build-isolation", "--no-deps", "--no-cache-dir", "-v", "--wheel-dir"]
        return f"""\
echo unfinished >"$FOLDER/failed"
{self.ssh.shell() if self._is_remote else ""}\
if {self._from_cache()} && (cd -- "$FOLDER" && sha256sum -c --quiet sums); then echo 'taken from flash_attn.cache'
else
rm -f -- "$FOLDER"/*.whl
trap {quote(_FAILED)} EXIT
{make_venv(venv, interpreter(self.facts, self.runtime))}
{pip(venv, "install", needs, index, proxy=proxy)}
export PATH={quote(cuda + "/bin")}:"$FOLDER/build/bin":"$PATH" CUDA_HOME={quote(cuda)}
export FLASH_ATTN_CUDA_ARCHS={quote(flash.archs)} FLASH_ATTENTION_FORCE_BUILD=TRUE
export MAX_JOBS={jobs} NVCC_THREADS={NVCC_THREADS} NINJA_STATUS='[%f/%t] %e s '
{pip(venv, "wheel", wheel, index, proxy=proxy)} "$FOLDER" {quote(f"flash-attn=={flash.version}")}
{pip(venv, "install", ["--no-deps", "--no-index"], PythonIndex())} "$FOLDER"/*.whl
{venv}/bin/python -c {quote(_CALL)}
(cd -- "$FOLDER" && sha256sum -- *.whl >sums)
trap - EXIT
rm -rf -- {venv}
fi
rm -f -- "$FOLDER/failed\""""


def _side_by_side(jobs: int) -> str:
    return f"{jobs} compilers side by side" if jobs > 1 else "one compiler after the other"


def cause(log: list[str]) -> str:
    """What the end of a failed build says, in a few words."""
    found = explain("\n".join(log), (*BUILD, *PIP))
    return found.says if found else "see its last lines"
