"""SGLang's Python environment: pinned, immutable, one folder for each pinned set."""

from __future__ import annotations

from dataclasses import dataclass

from runbooks.engine.facts import Facts
from runbooks.engine.step import Answers, Change, Question, Stage, quote
from runbooks.inventory.runtimes import runtime_path
from runbooks.inventory.shape import Inventory, Runtime
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
        wheel = (self._wheel().mark,) if self.inventory.flash_attn.enabled else ()
        return (*wheel, *self._build(with_wheel=True).questions(), *self._build(with_wheel=False).questions())

    def plan(self, answers: Answers) -> Change | None:
        flash = self.inventory.flash_attn
        with_wheel = flash.enabled and (flash.required or is_there(answers[self._wheel().mark]))
        return self._build(with_wheel=with_wheel).plan(answers)

    def _wheel(self) -> Wheel:
        return Wheel(facts=self.facts, inventory=self.inventory, runtime=self.runtime)

    def _build(self, *, with_wheel: bool) -> BuiltOnce:
        folder = runtime_path(self.runtime, self.inventory.flash_attn if with_wheel else None)
        flash = self.inventory.flash_attn
        extra = f"with flash-attn {flash.version}" if with_wheel and flash.enabled else "without flash-attn"
        return BuiltOnce(
            name=self.id,
            folder=folder,
            recipe=self._recipe(with_wheel=with_wheel and flash.enabled),
            shown=(*self.runtime.packages, extra),
            keeps=("venv/bin/python", "env"),
            limit=2 * 3600,
        )

    def _recipe(self, *, with_wheel: bool) -> str:
        runtime, venv = self.runtime, '"$FOLDER/venv"'
        options = [] if runtime.dependencies else ["--no-deps"]
        install = pip(venv, "install", [*options, *runtime.packages], runtime.index, proxy=self.inventory.proxy)
        lines = [make_venv(venv, runtime.python), install]
        if with_wheel:
            wheel = f"{quote(self._wheel().folder)}/*.whl"
            lines.append(
                f"{venv}/bin/python -m pip install --no-input --disable-pip-version-check --no-deps --no-index {wheel}"
            )
        modules = [*runtime.imports, *(["flash_attn"] if with_wheel else [])]
        user = self.inventory.server.user
        lines += [
            import_check(venv, modules),
            f'mkdir -- "$FOLDER/cache"\nchown {quote(user)}: "$FOLDER/cache"',
            f'printf %s {quote(self._why())} >"$FOLDER/why.txt"',
            f'printf %s {quote(env_lines(runtime.env))} >"$FOLDER/env"',
        ]
        return "\n".join(lines)

    def _why(self) -> str:
        return f"SGLang {self.runtime.sglang}\n{self.runtime.why}\n{chr(10).join(self.runtime.packages)}\n"
