"""What really runs, read from the server's own log lines and its /server_info, and held against what was expected.

A unit that asks for a kernel proves nothing: SGLang overrides choices by model, card and version, and at least 0.5.23
logs `Set DSA backends ...` with values that it then does not use. So /server_info counts most, the arguments that it
logs next, and the single log lines last; the graphs are read from the line that says which were captured.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runbooks.sglang.flags import Value, canonical

SHOWN = (
    "attention_backend",
    "dsa_prefill_backend",
    "dsa_decode_backend",
    "kv_cache_dtype",
    "page_size",
    "moe_runner_backend",
    "fp4_gemm_runner_backend",
    "cuda_graph_max_bs_decode",
    "max_running_requests",
    "max_total_num_tokens",
    "mem_fraction_static",
    "tp_size",
)

AT_LEAST = ("max_total_num_tokens",)
"""The size of the cache's pool: what is left of the memory, so it is never just as expected; more is no fault."""

# The same thing by another name, here or there.
SAME: Mapping[str, str] = {
    "nsa": "dsa",
    "bf16": "bfloat16",
    "torch.bfloat16": "bfloat16",
    "torch.float16": "float16",
    "torch.float8_e4m3fn": "fp8_e4m3",
    "torch.float8_e5m2": "fp8_e5m2",
}

_CHOICES = re.compile(r"Set [DN]SA backends for .*: prefill=(\w+), decode=(\w+)")
_ATTENTION = re.compile(r"Use ([dn]sa) attention backend")
_PAGES = re.compile(r"Setting page size to (\d+)")
_DTYPE = re.compile(r"(?:Using KV cache dtype: |KV Cache is allocated\. dtype: )(torch\.\w+)")
_POOL = re.compile(r"max_total_num_tokens=(\d+).*?max_running_requests=(\d+)")
_GRAPHS = re.compile(r"Capture (?:target decode )?cuda graph(?: end\.)? bs[ =]\[([\d, ]+)\]", re.IGNORECASE)
_NO_GRAPHS = "Cuda graph is disabled because"
_ARGUMENTS = re.compile(r"server_args=(?:ServerArgs\(|\{)")
_ONE_ARGUMENT = re.compile(r"'?(\w+)'?(?:=|: )('[^']*'|None|True|False|-?[\d.]+)(?=[,)}])")


@dataclass(frozen=True)
class Mismatch:
    name: str
    expected: Value
    found: Value | None

    def __str__(self) -> str:
        runs = "the server does not show it" if self.found is None else f"{self.found} runs"
        return f"{self.name}: {shown(self.name, self.expected)} was expected, {runs}"


def observe(journal: Iterable[str], info: Mapping[str, object] | None = None) -> dict[str, Value]:
    """What runs, under canonical names, from the log lines of this start and the JSON of /server_info."""
    lines = list(journal)
    observed = _from_lines(lines)
    observed |= _from_arguments(lines)
    observed |= _from_info(info or {})
    for line in lines:
        if found := _GRAPHS.search(line):
            observed["cuda_graph_max_bs_decode"] = max(int(size) for size in found[1].split(","))
        elif _NO_GRAPHS in line:
            observed.pop("cuda_graph_max_bs_decode", None)
    return observed


def compare(expected: Mapping[str, Value], observed: Mapping[str, Value]) -> list[Mismatch]:
    """Every expectation that does not hold, or that the server does not let us see."""
    return [
        Mismatch(name, value, observed.get(name))
        for name, value in expected.items()
        if name not in observed or not _holds(name, value, observed[name])
    ]


def shown(name: str, expected: Value | None) -> str:
    """An expectation as people read it; "" for none."""
    return "" if expected is None else f"{'at least ' if name in AT_LEAST else ''}{expected}"


def _holds(name: str, expected: Value, found: Value) -> bool:
    if name in AT_LEAST:
        return float(found) >= float(expected)
    return _plain(found) == _plain(expected)


def _from_lines(lines: Iterable[str]) -> dict[str, Value]:
    observed: dict[str, Value] = {}
    for line in lines:
        if found := _ATTENTION.search(line):
            observed["attention_backend"] = SAME.get(found[1], found[1])
        if found := _CHOICES.search(line):
            observed["dsa_prefill_backend"], observed["dsa_decode_backend"] = found[1], found[2]
        if found := _PAGES.search(line):
            observed["page_size"] = int(found[1])
        if found := _DTYPE.search(line):
            observed["kv_cache_dtype"] = SAME.get(found[1], found[1])
        if found := _POOL.search(line):
            observed["max_total_num_tokens"], observed["max_running_requests"] = int(found[1]), int(found[2])
    return observed


def _from_arguments(lines: Iterable[str]) -> dict[str, Value]:
    """The arguments as SGLang logs them: `ServerArgs(a='b', ...)` in older versions, a dict in newer ones."""
    observed: dict[str, Value] = {}
    for line in lines:
        if start := _ARGUMENTS.search(line):
            for name, text in _ONE_ARGUMENT.findall(line, start.end()):
                _keep(observed, name, ast.literal_eval(text))
    return observed


def _from_info(info: Mapping[str, object]) -> dict[str, Value]:
    observed: dict[str, Value] = {}
    for name, value in info.items():
        _keep(observed, name, value)
    graphs = info.get("cuda_graph_config")
    decode = graphs.get("decode") if isinstance(graphs, dict) else None
    if isinstance(decode, dict) and decode.get("backend") != "disabled":
        _keep(observed, "cuda_graph_max_bs_decode", decode.get("max_bs"))
    return observed


def _keep(observed: dict[str, Value], name: str, value: object) -> None:
    """None and `auto` say that SGLang decides, not what it decided."""
    if isinstance(value, str | int | float) and value not in ("auto", "") and canonical(name) not in SECRET:
        observed[canonical(name)] = SAME.get(value, value) if isinstance(value, str) else value


SECRET = ("api_key", "admin_api_key", "ssl_keyfile_password")


def _plain(value: Value) -> str:
    text = str(value)
    return SAME.get(text, text).lower() if not isinstance(value, float) else f"{value:g}"
