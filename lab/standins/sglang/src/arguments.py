"""The command line of one SGLang release, built from its argument table: types, choices, nargs, abbreviations and
error texts are argparse's."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import release
from .log import Log

# Older releases call some destinations otherwise and copy them to these names before use.
MODERN = {
    "tensor_parallel_size": "tp_size",
    "pipeline_parallel_size": "pp_size",
    "data_parallel_size": "dp_size",
    "expert_parallel_size": "ep_size",
    "attention_context_parallel_size": "attn_cp_size",
    "moe_data_parallel_size": "moe_dp_size",
    "nsa_prefill_backend": "dsa_prefill_backend",
    "nsa_decode_backend": "dsa_decode_backend",
    "cuda_graph_max_bs": "cuda_graph_max_bs_decode",
    "cuda_graph_bs": "cuda_graph_bs_decode",
}


def human_readable_int(text: str) -> int:
    """`128k`, `1m`: thousands; `64Ki`: 1024."""
    plain = text.strip().lower()
    for suffix, factor in (("ki", 1024), ("mi", 1024**2), ("gi", 1024**3), ("k", 1000), ("m", 1000**2), ("g", 1000**3)):
        if plain.endswith(suffix):
            return int(float(plain[: -len(suffix)]) * factor)
    return int(plain)


def json_list_type(text: str) -> list[Any]:
    found = json.loads(text)
    if not isinstance(found, list):
        raise ValueError(text)
    return found


TYPES: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "loads": json.loads,
    "human_readable_int": human_readable_int,
    "json_list_type": json_list_type,
    "nullable_str": lambda text: None if text in ("", "None") else text,
}


def parser() -> argparse.ArgumentParser:
    """From 0.5.10 on the parser calls itself `sglang serve`, whatever was typed."""
    found = argparse.ArgumentParser(prog="sglang serve" if release.at_least("0.5.10") else "launch_server.py")
    declare(found)
    return found


def declare(found: argparse.ArgumentParser) -> None:
    """Add every argument of this release."""
    # table.json is in alphabetical order; SGLang's usage begins with the model.
    for line in sorted(release.table()["arguments"], key=lambda one: not one.get("required")):
        found.add_argument(*_options(line), **_declaration(line))


def _options(line: dict[str, Any]) -> list[str]:
    """BooleanOptionalAction makes the --no- forms itself."""
    return [one for one in line["options"] if not (line["kind"] == "bool" and one.startswith("--no-"))]


def _declaration(line: dict[str, Any]) -> dict[str, Any]:
    kind, dest, default = line["kind"], line["dest"], line.get("default")
    if kind == "bool":
        return {"dest": dest, "action": argparse.BooleanOptionalAction, "default": default}
    if kind == "flag":
        action: Any = _Deprecated if line.get("deprecated") else "store_true"
        return {"dest": dest, "action": action, "default": bool(default)}
    if kind == "ignored" or (kind == "const" and not line.get("choices")):
        return {"dest": dest, "action": _Deprecated, "default": argparse.SUPPRESS}
    return {
        "dest": dest,
        "type": TYPES.get(line.get("type", "str"), str),
        "choices": line.get("choices"),
        "nargs": line.get("nargs"),
        "required": bool(line.get("required")),
        "default": argparse.SUPPRESS if line.get("deprecated") else default,
        **({"action": _Alias} if line.get("deprecated") else {}),
    }


def _warn(option: str | None) -> None:
    Log().bare(f"\033[1;33m'{option}' is deprecated and will be removed in a future release.\033[0m")


class _Deprecated(argparse.Action):
    """A flag that still works, with a warning."""

    def __init__(self, option_strings: Sequence[str], dest: str, **rest: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **rest)

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: object, option_string: str | None = None
    ) -> None:
        _warn(option_string)
        setattr(namespace, self.dest, True)


class _Alias(argparse.Action):
    """An old name that keeps its value and moves it to the new one, with a warning."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: object, option_string: str | None = None
    ) -> None:
        _warn(option_string)
        setattr(namespace, self.dest, values)


def parse(argv: Sequence[str]) -> dict[str, Any]:
    """The arguments under today's destination names. Leaves with 2 and argparse's text on a wrong command line."""
    found = vars(parser().parse_args(merge_config(list(argv))))
    found.pop("config", None)
    return {MODERN.get(name, name): value for name, value in found.items()}


def merge_config(argv: list[str]) -> list[str]:
    """`--config FILE`: its settings come before the command line's, so the command line wins."""
    if "--config" not in argv:
        return argv
    at = argv.index("--config")
    if at + 1 >= len(argv):
        return argv
    words: list[str] = []
    for key, value in _yaml(Path(argv[at + 1]).read_text()):
        if value == "true":
            words.append(f"--{key}")
        elif value != "false":
            words += (
                [f"--{key}", *value.strip("[]").replace(",", " ").split()]
                if value.startswith("[")
                else [f"--{key}", value]
            )
    return words + argv[:at] + argv[at + 2 :]


def _yaml(text: str) -> list[tuple[str, str]]:
    """`key: value` lines, all that SGLang's configuration files hold."""
    pairs = []
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and not line.lstrip().startswith("#"):
            pairs.append((key.strip().replace("_", "-"), value.strip().strip("\"'")))
    return pairs
