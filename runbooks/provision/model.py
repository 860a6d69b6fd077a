"""The weights: downloaded, whole, of the model that the inventory describes, and small enough for the cards."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runbooks.engine.secret import Secret
from runbooks.engine.step import Answers, Question, Stage, Verdict, quote, shell
from runbooks.inventory.memory import arguments, plan, would_fit
from runbooks.inventory.runtimes import runtime_paths
from runbooks.inventory.shape import Inventory, Model, Runtime
from runbooks.steps.downloads import Download, Ssh
from runbooks.steps.packages import Packages


def stages(
    inventory: Inventory, runtime: Runtime, model: Model, token: Callable[[], Secret] | None, ssh: Ssh
) -> list[Stage]:
    """Room for it first, then every file by size and digest; once whole, a later run costs one stat.

    A repository of the hub comes by the CLI of the runtime, which transformers brought there.
    """
    download = Download(
        source=model.source,
        revision=model.revision or "main",
        path=model.path,
        size=model.size_gb * 1e9,
        token=token,
        ssh=ssh,
        proxy=inventory.proxy,
        endpoint=model.endpoint,
        hub_cli=tuple(f"{folder}/venv/bin/hf" for folder in runtime_paths(runtime, inventory.flash_attn)),
    )
    tags = frozenset({"model"})
    fits = MemoryPlan(inventory=inventory, model=model)
    client = [Packages(names=("openssh-client",))] if model.source.startswith("ssh:") else []
    return [Stage("model", (fits, *client, download, ConfigAgrees(model=model)), tags)]


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """A profile of the inventory that this model fits the cards with; computed before anything is downloaded."""

    inventory: Inventory
    model: Model
    id: str = "memory of the cards"

    def questions(self) -> tuple[Question, ...]:
        return ()

    def plan(self, answers: Answers) -> Verdict:
        """Fails only where no profile fits: each by itself is judged when it is deployed."""
        told = {name: plan(self.inventory, self.model, self._arguments(name)) for name in self.inventory.profiles}
        good = [name for name, one in told.items() if one.fits]
        name = "final" if "final" in told else next(iter(told), "")
        if not told or good:
            name = name if name in good or not good else good[0]
            line = f"{name}: {told[name].say()}" if told else "no profile to compute it for"
            small = len(told) - len(good)
            return Verdict(ok=True, line=line + (f"; {small} profiles hold no whole context" if small else ""))
        return Verdict(
            ok=False,
            line="the model does not fit these cards with any profile",
            details=(f"{name}: {told[name].say()}", would_fit(self.inventory, self.model, self._arguments(name))),
            next="mem_fraction_static, kv_cache_dtype and context_length of the profile, and size_gb of the model",
            page="deploy-failed",
        )

    def _arguments(self, name: str) -> dict[str, Any]:
        return arguments(self.inventory, name)


_KEYS = {  # of config.json -> what the inventory says
    "num_hidden_layers": "layers",
    "hidden_size": "hidden",
    "n_routed_experts": "experts",
    "num_experts_per_tok": "experts_per_token",
    "index_topk": "index_topk",
}


@dataclass(frozen=True, kw_only=True)
class ConfigAgrees:
    """config.json and the index of the weights say what the inventory's `shape` says.

    The MTP layer is looked for in the index, not in config.json, which names it in checkpoints without it as well.
    """

    model: Model
    id: str = "config.json"

    @property
    def _question(self) -> Question:
        """The index has a line for each of 200,000 tensors, so only the layer behind the last one is looked for."""
        layer = f'"model.layers.{self.model.shape.layers}.'
        return shell(f"""\
cd -- {quote(self.model.path)} 2>/dev/null || exit 0
grep -qsF {quote(layer)} model.safetensors.index.json && echo mtp || echo no-mtp
cat .runbooks/commit 2>/dev/null || echo
head -c 60000 config.json 2>/dev/null""")

    def questions(self) -> tuple[Question, ...]:
        return (self._question,)

    def plan(self, answers: Answers) -> Verdict:
        mtp, commit, text = (*str(answers[self._question].get("out") or "").split("\n", 2), "", "", "")[:3]
        try:
            config: dict[str, Any] = json.loads(text)
        except ValueError:
            return self._no(f"{self.model.path}/config.json is not there, or is no JSON", ())
        wrong = self._differences(config, has_mtp=mtp == "mtp")
        if wrong:
            return self._no("the downloaded model is another one than the inventory describes", tuple(wrong))
        kind = (config.get("architectures") or ["?"])[0]
        number = self.model.shape.layers
        layer = f"layer {number} for speculative decoding" if mtp == "mtp" else "no layer for speculative decoding"
        of = f", commit {commit[:12]}" if commit else ""
        return Verdict(ok=True, line=f"{kind}, {number} layers, {_quantisation(config)}, {layer}{of}")

    def _differences(self, config: dict[str, Any], *, has_mtp: bool) -> list[str]:
        shape = self.model.shape
        pairs = [(name, config.get(name), getattr(shape, ours), f"shape.{ours}") for name, ours in _KEYS.items()]
        dense = config.get("first_k_dense_replace")
        if isinstance(dense, int):
            pairs.append(("layers with experts", shape.layers - dense, shape.moe_layers, "shape.moe_layers"))
        told = [f"{name} is {has}, {ours} says {says}" for name, has, says, ours in pairs if says != has and has]
        longest = config.get("max_position_embeddings")
        if isinstance(longest, int) and longest < self.model.context_length:
            told.append(f"max_position_embeddings is {longest}, context_length says {self.model.context_length}")
        if has_mtp != shape.has_mtp_layer:
            there = "has" if has_mtp else "has no"
            says = str(shape.has_mtp_layer).lower()
            told.append(f"the checkpoint {there} layer {shape.layers} (MTP), shape.has_mtp_layer says {says}")
        return told

    def _no(self, line: str, details: tuple[str, ...]) -> Verdict:
        return Verdict(
            ok=False,
            line=line,
            details=details,
            next="correct `source` or `shape` of the model in the inventory",
            page="model-download",
        )


def _quantisation(config: dict[str, Any]) -> str:
    found = config.get("quantization_config") or {}
    return str(found.get("quant_algo") or found.get("quant_method") or "not quantised")
