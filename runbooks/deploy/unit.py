"""Renders the files of a release from templates/. Pure; an undefined name in a template is an error."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from runbooks import paths
from runbooks.inventory.shape import Inventory, Model
from runbooks.sglang.argv import Launch

TEMPLATES = Path(__file__).parents[2] / "templates"
DEVICES_UNIT = "sglang-devices.service"
HIDDEN_BY_PROTECT_HOME = ("/home/", "/root/", "/run/user/")


@dataclass(frozen=True)
class Plan:
    """Everything that defines a running server, before it has a number. Same `content`, same server."""

    launch: Launch
    runtime: str
    model: Model
    user: str
    host: str
    port: int
    cuda_home: str
    gpus: int
    has_key: bool

    @cached_property
    def content(self) -> str:
        """12 hex digits over the files of the release as they would be under no number."""
        files = render(self, 0)
        return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:12]


def plan(inventory: Inventory, launch: Launch, *, model: Model, runtime: str) -> Plan:
    return Plan(
        launch=launch,
        runtime=runtime,
        model=model,
        user=inventory.server.user,
        host=inventory.server.host,
        port=inventory.server.port,
        cuda_home=inventory.cuda.home,
        gpus=inventory.gpus.count,
        has_key=inventory.server.api_key is not None,
    )


def stamp(plan: Plan, number: int) -> str:
    """What the running unit carries in its environment, so that a host can be asked what it really runs."""
    return f"{number}:{plan.content}"


def render(plan: Plan, number: int) -> dict[str, str]:
    """The files of release `number`, by name. Number 0 is used for the content hash alone."""
    folder = f"{paths.RELEASES}/{number}"
    names: dict[str, Any] = {
        "number": number,
        "stamp": stamp(plan, number) if number else "",
        "folder": folder,
        "profile": plan.launch.profile,
        "sglang": plan.launch.version,
        "served_name": plan.model.served_name,
        "model_path": plan.model.path,
        "runtime": plan.runtime,
        "cuda_home": plan.cuda_home,
        "user": plan.user,
        "gpus": plan.gpus,
        "has_key": plan.has_key,
        "protect_home": "read-only" if _in_a_home(plan) else "yes",
        "env": plan.launch.env,
    }
    return {
        paths.UNIT_NAME: _template("sglang.service.j2", names),
        DEVICES_UNIT: _template("sglang-devices.service.j2", names),
        "env": _template("sglang.env.j2", names),
        "argv.json": json.dumps(list(plan.launch.argv), indent=0) + "\n",
        "launch.py": (Path(__file__).parent / "launch.py").read_text(),
    }


def environment_value(text: str) -> str:
    """A value as systemd reads it from an environment file: in double quotes, with the four marks escaped."""
    for mark in ("\\", '"', "$", "`"):
        text = text.replace(mark, "\\" + mark)
    return f'"{text}"'


def _template(name: str, names: Mapping[str, Any]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    engine = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=False
    )
    engine.filters["value"] = environment_value
    return engine.get_template(name).render(names).rstrip("\n") + "\n"


def _in_a_home(plan: Plan) -> bool:
    """Weights or a runtime in somebody's home: hiding homes would hide them."""
    return any(path.startswith(HIDDEN_BY_PROTECT_HOME) for path in (plan.model.path, plan.runtime))


def paired(words: Sequence[str]) -> list[str]:
    """An option and its value on one line."""
    lines: list[str] = []
    for word in words:
        if lines and not word.startswith("--") and lines[-1].startswith("--") and " " not in lines[-1]:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines
