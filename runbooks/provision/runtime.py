"""SGLang's Python environment: pinned, immutable, one folder for each pinned set."""

from __future__ import annotations

from dataclasses import dataclass

from runbooks.engine.facts import Facts
from runbooks.engine.step import Answers, Change, Question, Stage, quote
from runbooks.inventory.runtimes import runtime_path
from runbooks.inventory.shape import Inventory, PythonIndex, Runtime
from runbooks.provision.flash_attn import Wheel
from runbooks.steps.build import BuiltOnce, is_there
from runbooks.steps.python import env_lines, import_check, make_venv, pip


def stages(facts: Facts, inventory: Inventory, runtime: Runtime) -> list[Stage]:
    """Built once under its hash and never changed: a rollback brings back the software, not only the flags."""
    return [Stage("runtime", (Built(facts=facts, inventory=inventory, runtime=runtime),), frozenset({"runtime"}))]


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
        if not self.inventory.flash_attn.enabled:
            return self._build(with_wheel=False).questions()
        builds = (self._build(with_wheel=True), self._build(with_wheel=False))
        return (
            self._wheel.mark,
            self._wheel.failure,
            *(question for build in builds for question in build.questions()),
        )

    def plan(self, answers: Answers) -> Change | None:
        return self._build(with_wheel=self._wants_wheel(answers)).plan(answers)

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
        )

    def _recipe(self, *, with_wheel: bool) -> str:
        runtime, venv = self.runtime, '"$FOLDER/venv"'
        wheel = f"{quote(self._wheel.folder)}/*.whl"
        options = [] if runtime.dependencies else ["--no-deps"]
        install = pip(venv, "install", [*options, *runtime.packages], runtime.index, proxy=self.inventory.proxy)
        lines = [make_venv(venv, runtime.python), install]
        if with_wheel:
            lines.append(f"""\
ls -- {wheel} >/dev/null || {{ echo 'its wheel is not built: invoke provision --tags flash-attn,runtime'; exit 1; }}
{pip(venv, "install", ["--no-deps"], PythonIndex(only=True))} {wheel}""")
        modules = [*runtime.imports, *(["flash_attn"] if with_wheel else [])]
        user = self.inventory.server.user
        lines += [
            import_check(venv, modules),
            f'mkdir -- "$FOLDER/cache"\nchown {quote(user)}: "$FOLDER/cache"',
            f'printf %s {quote(self._why(with_wheel=with_wheel))} >"$FOLDER/why.txt"',
            f'printf %s {quote(env_lines(runtime.env))} >"$FOLDER/env"',
        ]
        return "\n".join(lines)

    def _why(self, *, with_wheel: bool) -> str:
        runtime = self.runtime
        return "\n".join([f"SGLang {runtime.sglang}", runtime.why, *runtime.packages, self._extra(with_wheel), ""])

    def _extra(self, with_wheel: bool) -> str:
        return f"with flash-attn {self.inventory.flash_attn.version}" if with_wheel else "without flash-attn"
