"""SGLang's Python environment: pinned, immutable, one folder for each pinned set."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from runbooks.engine.facts import Facts
from runbooks.engine.step import Answers, Change, Diff, Question, Stage, Verdict, quote, shell
from runbooks.inventory.runtimes import runtime_path, runtime_paths
from runbooks.inventory.shape import GitSource, Inventory, PythonIndex, Runtime
from runbooks.provision.damage import FILES, Damage, read, repair, whole
from runbooks.provision.flash_attn import Wheel, max_jobs
from runbooks.provision.interpreter import interpreter
from runbooks.sglang.flags import table
from runbooks.steps import ask
from runbooks.steps.build import BuiltOnce, is_there
from runbooks.steps.explain import RUNTIME, explained
from runbooks.steps.python import env_lines, import_check, make_venv, pip


def stages(facts: Facts, inventory: Inventory, runtime: Runtime) -> list[Stage]:
    """Built once under its hash and never changed: a rollback brings back the software, not only the flags."""
    built, tags = Built(facts=facts, inventory=inventory, runtime=runtime), frozenset({"runtime"})
    deep_gemm = [DeepGemm(built=built)] if any(word.startswith("sgl-deep-gemm") for word in runtime.packages) else []
    cuda = CudaOfTorch(folders=built.folders, home=inventory.cuda.home)
    return [
        Stage("runtime", (built, FlagsAgree(built=built), *deep_gemm), tags),
        Stage("toolkit", (cuda,), tags, optional=True),
    ]


@dataclass(frozen=True, kw_only=True)
class Built:
    """The runtime with the flash-attn wheel, or, where that could not be built, under another name without it."""

    facts: Facts
    inventory: Inventory
    runtime: Runtime

    @property
    def id(self) -> str:
        return f"runtime sglang {self.runtime.sglang}"

    def questions(self) -> tuple[Question, ...]:
        wheel = (self._wheel.mark, self._wheel.failure) if self.inventory.flash_attn.enabled else ()
        kinds = (True, False) if self.inventory.flash_attn.enabled else (False,)
        builds = [self._build(with_wheel=kind) for kind in kinds]
        return (*wheel, *(question for build in builds for question in (*build.questions(), whole(build.folder))))

    def plan(self, answers: Answers) -> Change | Verdict | None:
        """What a server runs from is left alone, damaged or not: it goes on with what it has loaded."""
        build = self._build(with_wheel=self._wants_wheel(answers))
        change = build.plan(answers)
        damage = read(answers[whole(build.folder)])
        if change is None and damage.lost:
            change = self._mended(build, damage)
        if change is None or not damage.users:
            return change
        return Verdict(
            ok=False,
            line="the runtime is damaged, and a server runs from it: it is built again once that is stopped",
            details=(change.diff[0].line, f"{build.folder}, in use by pid {damage.users}"),
            next="systemctl stop sglang, then invoke provision --tags runtime and invoke deploy",
            page="deploy-failed",
        )

    def _mended(self, build: BuiltOnce, damage: Damage) -> Change:
        """Only the packages that lost something come again, where each comes from the index as it is."""
        others = " and others" if len(damage.lost) > 1 else ""
        why = f"{damage.lost[0]}{others} gone or changed"
        again = build.build(f"again: {why}")
        names = {package.partition("==")[0].lower(): package for package in damage.packages}
        special = {"pip", *(source.package.lower() for source in self.runtime.sources)}
        if not names or names.keys() & special or self.runtime.patches:
            return again
        wheel = names.pop("flash-attn", None)
        options, venv = ["--ignore-installed", "--no-deps"], '"$FOLDER/venv"'
        installs = []
        if names:
            pins = [*options, *names.values()]
            installs.append(pip(venv, "install", pins, self.runtime.index, proxy=self.inventory.proxy))
        if wheel:
            installs.append(
                f"{pip(venv, 'install', options, PythonIndex(only=True))} {quote(self._wheel.folder)}/*.whl"
            )
        install = " && ".join(installs)
        script = repair(build.folder, damage.packages, install, again.script)
        return replace(again, script=script, diff=(Diff(f"{why}: {', '.join(damage.packages)} again"),))

    def _wants_wheel(self, answers: Answers) -> bool:
        """Without the wheel only where its build was tried and failed: not built yet is no reason, nor lost since."""
        flash = self.inventory.flash_attn
        if not flash.enabled or flash.required or self._build(with_wheel=True).plan(answers) is None:
            return flash.enabled
        return is_there(answers[self._wheel.mark]) or not is_there(answers[self._wheel.failure])

    @property
    def _wheel(self) -> Wheel:
        return Wheel(facts=self.facts, inventory=self.inventory, runtime=self.runtime)

    def _build(self, *, with_wheel: bool) -> BuiltOnce:
        flash = self.inventory.flash_attn
        return BuiltOnce(
            name=self.id,
            folder=runtime_path(self.runtime, flash if with_wheel else None),
            recipe=self._recipe(with_wheel=with_wheel),
            shown=(*self.runtime.packages, self._extra(with_wheel)),
            keeps=("venv/bin/python", "env"),
            limit=2 * 3600,
            page="deploy-failed",
        )

    @property
    def folders(self) -> tuple[str, ...]:
        """Where it may stand, best first."""
        return runtime_paths(self.runtime, self.inventory.flash_attn)

    def _recipe(self, *, with_wheel: bool) -> str:
        runtime, venv, proxy = self.runtime, '"$FOLDER/venv"', self.inventory.proxy
        wheel = f"{quote(self._wheel.folder)}/*.whl"
        options = [] if runtime.dependencies else ["--no-deps"]
        install = pip(venv, "install", [*options, *runtime.packages], runtime.index, proxy=proxy)
        count = [] if runtime.dependencies else [f"echo 'Resolved: {len(runtime.packages)} packages'"]
        lines = [make_venv(venv, interpreter(self.facts, runtime)), *count, install]
        if runtime.overrides:
            lines.append(pip(venv, "install", ["--no-deps", *runtime.overrides], runtime.index, proxy=proxy))
        lines += [self._from_source(venv, source) for source in runtime.sources]
        if with_wheel:
            lines.append(f"""\
ls -- {wheel} >/dev/null || {{ echo 'its wheel is not built: invoke provision --tags flash-attn,runtime'; exit 1; }}
{pip(venv, "install", ["--no-deps"], PythonIndex(only=True))} {wheel}""")
        lines += [_patched(venv, number, patch) for number, patch in enumerate(runtime.patches, 1)]
        modules = [*runtime.imports, *(["flash_attn"] if with_wheel else [])]
        user = self.inventory.server.user
        lines += [
            _checked(venv, runtime),
            import_check(venv, modules),
            _flags_compared(venv, runtime.sglang),
            _deep_gemm_tried(venv),
            f'mkdir -- "$FOLDER/cache"\nchown {quote(user)}: "$FOLDER/cache"',
            f'printf %s {quote(self._why(with_wheel=with_wheel))} >"$FOLDER/why.txt"',
            f'printf %s {quote(env_lines(runtime.env))} >"$FOLDER/env"',
            f'(cd -- {venv} && {FILES}) >"$FOLDER/files.txt"',
        ]
        return explained("\n".join(lines), RUNTIME)

    def _from_source(self, venv: str, source: GitSource) -> str:
        """One commit, with the toolkit at hand: what is built so is kernels, most often."""
        place = f"#subdirectory={source.subdirectory}" if source.subdirectory else ""
        requirement = f"{source.package} @ git+{source.git}@{source.commit}{place}"
        cuda, proxy = self.inventory.cuda.home, self.inventory.proxy
        jobs = max_jobs(self.facts.cores, self.facts.memory_bytes)
        env = {"CUDA_HOME": cuda, "MAX_JOBS": str(jobs)} | ({"https_proxy": proxy} if proxy else {}) | dict(source.env)
        words = " ".join(quote(f"{key}={value}") for key, value in env.items())
        install = pip(venv, "install", ["--no-deps", "--force-reinstall", requirement], self.runtime.index, proxy=proxy)
        return f"""\
echo {quote(f"building {source.package} from {source.git} at {source.commit[:12]}")}
( export {words} PATH={quote(cuda + "/bin")}:"$PATH"; {install} )"""

    def _why(self, *, with_wheel: bool) -> str:
        runtime = self.runtime
        return "\n".join([f"SGLang {runtime.sglang}", runtime.why, *runtime.packages, self._extra(with_wheel), ""])

    def _extra(self, with_wheel: bool) -> str:
        return f"with flash-attn {self.inventory.flash_attn.version}" if with_wheel else "without flash-attn"


def _patched(venv: str, number: int, patch: str) -> str:
    """A patch that fits only roughly is refused: it was made for another version."""
    return f"""\
echo 'patch {number}'
printf %s {quote(patch)} | patch -p1 --fuzz=0 --forward --batch -d "$(echo {venv}/lib/python3*/site-packages)" ||
  {{ echo 'patch {number} of the runtime does not fit these packages'; exit 1; }}"""


def _checked(venv: str, runtime: Runtime) -> str:
    """`pip check`, and that no two packages hold one module. What an override replaces may be asked for otherwise."""
    replaced = "|".join(re.escape(word.partition("=")[0].partition("[")[0]) for word in runtime.overrides)
    allowed = f"has requirement ({replaced})[^a-z0-9-]" if replaced else "^No broken requirements"
    verdict = "exit 1" if runtime.dependencies else "echo 'a frozen list (dependencies: false): reported only'"
    return f"""\
{venv}/bin/python -m pip list --format=freeze --disable-pip-version-check >"$FOLDER/versions.txt"
if [ "$(grep -ciE '^(sgl-kernel|sglang-kernel)==' "$FOLDER/versions.txt")" -gt 1 ]; then
  echo 'sgl-kernel and sglang-kernel conflict: the old and the new name of one package are both installed'; exit 1
fi
if ! {venv}/bin/python -m pip check >"$FOLDER/check.txt" 2>&1; then
  if grep -vE {quote(allowed)} "$FOLDER/check.txt"; then {verdict}; fi
fi"""


_OPTIONS = """\
import argparse, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
there = {option for action in parser._actions for option in action.option_strings} - {"-h", "--help"}
ours = set(sys.argv[1].split())
print(len(there), "options")
for sign, names in (("+", there - ours), ("-", ours - there)):
    for name in sorted(names):
        print(sign + name)
"""
"""Of the parser itself: --help leaves out what is deprecated."""


def _flags_compared(venv: str, version: str) -> str:
    """What SGLang here takes, against our table of its version; a difference is told, and stops nothing."""
    ours = " ".join(sorted({option for argument in table(version).arguments for option in argument.options}))
    return f"""\
{venv}/bin/python -c {quote(_OPTIONS)} {quote(ours)} >"$FOLDER/flags.txt" 2>"$FOLDER/flags.err" ||
  {{ echo 'its parser cannot be asked:'; tail -n 1 "$FOLDER/flags.err"; }} >"$FOLDER/flags.txt"
sed 's/^/flags: /' "$FOLDER/flags.txt" | head -n 20"""


def _deep_gemm_tried(venv: str) -> str:
    """Its import decides at the start whether SGLang calls it, and fails on a card that it was not built for."""
    code = "import deep_gemm; print(getattr(deep_gemm, '__version__', 'loads'))"
    return f"""\
if grep -qi '^sgl-deep-gemm==' "$FOLDER/versions.txt"; then
  {venv}/bin/python -c {quote(code)} 2>&1 | tail -n 1 | cut -c 1-200 >"$FOLDER/deep_gemm.txt"
fi"""


def _there(built: Built) -> tuple[Question, ...]:
    return tuple(ask.path(folder) for folder in built.folders)


def _why_unsaid(built: Built, answers: Answers) -> str:
    """Why a runtime does not say of itself what one that is built today does."""
    there = any(answers[question].get("type") is not None for question in _there(built))
    return "this runtime was built before it was" if there else "there is no runtime here"


@dataclass(frozen=True, kw_only=True)
class DeepGemm:
    """DeepGEMM was imported, or the runtime's environment keeps SGLang from it: half of it ends in a NameError."""

    built: Built
    id: str = "DeepGEMM"

    def questions(self) -> tuple[Question, ...]:
        said = (ask.path(f"{folder}/deep_gemm.txt", wanted="*") for folder in self.built.folders)
        return (*said, *_there(self.built))

    def plan(self, answers: Answers) -> Verdict:
        texts = [str(answers[question].get("text") or "").strip() for question in self.questions()]
        said = next(filter(None, texts), "")
        if not said:
            return Verdict(ok=True, line=f"not tried: {_why_unsaid(self.built, answers)}")
        if "Error" not in said:
            return Verdict(ok=True, line=f"loads ({said})")
        if self.built.runtime.env.get(_SWITCH) == "0":
            return Verdict(ok=True, line=f"does not load, and {_SWITCH}=0 keeps SGLang from it")
        return Verdict(
            ok=False,
            line="DeepGEMM does not load, and SGLang would call it all the same",
            details=(said,),
            next=f"{_SWITCH}: '0' in `env` of the runtime, or a set whose DeepGEMM knows the card",
            page="deploy-failed",
        )


_SWITCH = "SGLANG_ENABLE_JIT_DEEPGEMM"


@dataclass(frozen=True, kw_only=True)
class FlagsAgree:
    """SGLang's own parser takes the options that our table of its version has: profiles are spelled by the table."""

    built: Built
    id: str = "flag table"

    def questions(self) -> tuple[Question, ...]:
        said = (ask.path(f"{folder}/flags.txt", wanted="*") for folder in self.built.folders)
        return (*said, *_there(self.built))

    def plan(self, answers: Answers) -> Verdict:
        texts = [str(answers[question].get("text") or "") for question in self.questions()]
        count, *differences = next((text.splitlines() for text in texts if text), [""])
        if not count:
            return Verdict(ok=True, line=f"not compared: {_why_unsaid(self.built, answers)}")
        if not count.endswith(" options"):
            return Verdict(ok=True, line=f"not compared: {' '.join([count, *differences])}"[:200])
        if not differences:
            return Verdict(ok=True, line=f"{count}, all as in our table of {self.built.runtime.sglang}")
        more = f" and {len(differences) - 6} more" if len(differences) > 6 else ""
        return Verdict(ok=True, line=f"{count}; differs from our table: {' '.join(differences[:6])}{more}")


@dataclass(frozen=True, kw_only=True)
class CudaOfTorch:
    """The toolkit is of the major version of CUDA that torch was built for.

    What is compiled on the host meets torch's libraries; a set whose kernels all come ready-made may go on without.
    """

    folders: tuple[str, ...]
    home: str
    id: str = "CUDA of torch"

    @property
    def _question(self) -> Question:
        files = " ".join(f"{quote(folder)}/venv/lib/python3*/site-packages/torch/version.py" for folder in self.folders)
        return shell(f"""\
cat -- {files} 2>/dev/null | sed -n "s/^cuda[^=]*= *['\\"]\\([0-9.]*\\).*/torch \\1/p" | head -n 1
{quote(self.home + "/bin/nvcc")} --version 2>/dev/null | sed -n 's/.*release \\([0-9.]*\\).*/nvcc \\1/p'""")

    def questions(self) -> tuple[Question, ...]:
        return (self._question,)

    def plan(self, answers: Answers) -> Verdict:
        rows = (line.split(" ") for line in str(answers[self._question].get("out") or "").splitlines())
        found = {row[0]: row[1] for row in rows if len(row) == 2}
        if found.keys() < {"torch", "nvcc"}:
            return Verdict(ok=True, line="not compared: no torch with CUDA, or no toolkit yet")
        line = f"torch is built for CUDA {found['torch']}, the toolkit is {found['nvcc']}"
        if found["torch"].partition(".")[0] == found["nvcc"].partition(".")[0]:
            return Verdict(ok=True, line=line)
        return Verdict(
            ok=False, line=line, next="cuda.package and cuda.home of the inventory: torch's major version",
            page="flash-attn-build",
        )  # fmt: skip
