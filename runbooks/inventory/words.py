"""What words and numbers of an inventory may be, where their type alone does not say it.

They become parts of commands, files and addresses on hosts, as root: what does not look like what it is for is refused
here, with its line, instead of being quoted somewhere and failing there.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from runbooks.inventory.source import Document, Path

_URL = r"https?://[^\s\"'`\\#&$<>|]+"
_HOST = r"[A-Za-z0-9_\[][A-Za-z0-9_.:\[\]%-]*"
_PACKAGE = r"[a-z0-9][a-z0-9+.-]+(:[a-z0-9]+)?"
_PIP = r"[A-Za-z0-9][^\x00-\x1f\x7f]*"
_LOGIN = r"[A-Za-z_][A-Za-z0-9_.@\\-]{0,63}"
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_LINE = r"[^\x00-\x1f\x7f]*"
_SSH = r"ssh://([A-Za-z_][\w.-]*@)?[A-Za-z0-9_\[][\w.:\[\]-]*(:\d+)?/\S+"
_WORD = r"[^\s\x00-\x1f\x7f-][^\s\x00-\x1f\x7f]*"


@dataclass(frozen=True)
class Text:
    """`place` is a dotted path with * for any one part; the end of a path matches too when it begins with `**.`."""

    place: str
    pattern: str
    what: str


@dataclass(frozen=True)
class Number:
    """From `least` to `most`, both allowed; `above`: more than that."""

    place: str
    least: float | None = None
    most: float | None = None
    above: float | None = None


TEXTS = (
    Text("**.address", _HOST + r"(/\d+)?", "a name or an address"),
    Text("**.proxy_jump", _WORD, "[USER@]HOST[:PORT]"),
    Text("**.ssh.user", _LOGIN, "a login name"),
    Text("hosts.*.user", _LOGIN, "a login name"),
    Text("hosts.*.vm.user", r"[a-z_][a-z0-9_-]{0,31}", "a login name"),
    Text("server.user", r"[a-z_][a-z0-9_-]{0,31}", "a login name"),
    Text("server.host", _HOST, "an address to listen on"),
    Text("gpus.arch", r"\d+\.\d+", "a compute capability such as 12.0"),
    Text("gpus.name", r"[^\x00-\x1f\x7f,]+", "the name that nvidia-smi shows"),
    Text("driver.version", r"\d+(\.\d+)+", "a version such as 580.126.20"),
    Text("driver.packages.*", _PACKAGE, "the name of a Debian package"),
    Text("driver.repository.url", _URL, "an http(s) address"),
    Text("driver.repository.key_url", _URL, "an http(s) address"),
    Text("driver.repository.key_sha256", r"[0-9a-f]{64}", "64 hex digits in lower case"),
    Text("driver.repository.suite", r"[A-Za-z0-9./_-]+", "a suite's name, or / for a flat repository"),
    Text("driver.repository.components.*", r"[A-Za-z0-9._/-]+", "the name of a component"),
    Text("driver.module_options.*", r"options [^\x00-\x1f\x7f]+", "one line, `options MODULE KEY=VALUE`"),
    Text("cuda.package", _PACKAGE + r"(=[A-Za-z0-9.+:~*-]+)?", "the name of a Debian package"),
    Text("cuda.home", r"/[^\x00-\x1f\x7f]*", "an absolute path"),
    Text("**.python", _WORD, "an interpreter, such as python3.12"),
    Text("**.index.url", _URL, "an http(s) address"),
    Text("**.index.extra_urls.*", _URL, "an http(s) address"),
    Text("**.index.find_links.*", _WORD, "an http(s) address or a folder"),
    Text("**.index.trusted_hosts.*", _HOST, "HOST or HOST:PORT"),
    Text("runtimes.*.packages.*", _PIP, "a pip requirement, NAME==VERSION"),
    Text("runtimes.*.overrides.*", _PIP, "a pip requirement, NAME==VERSION"),
    Text("runtimes.*.python_archive.url", r"(https?|file)://[^\s\"'`\\#&$<>|]+", "an http(s) or file address"),
    Text("runtimes.*.python_archive.sha256", r"[0-9a-f]{64}", "64 hex digits in lower case"),
    Text("runtimes.*.sources.*.package", r"[A-Za-z0-9][A-Za-z0-9._-]*", "the name of a Python package"),
    Text("runtimes.*.sources.*.git", r"(https?|ssh|file)://[^\s\"'`\\#&$<>|@]+", "the address of a git repository"),
    Text("runtimes.*.sources.*.commit", r"[0-9a-f]{40}", "a whole commit, 40 hex digits"),
    Text("runtimes.*.sources.*.subdirectory", r"[A-Za-z0-9_][A-Za-z0-9_./-]*", "a folder of the repository"),
    Text("runtimes.*.sources.*.env.*", _LINE, "one line"),
    Text("runtimes.*.patches.*", r"(?s)(diff |--- ).*\n", "a unified diff, which ends with a line feed"),
    Text("runtimes.*.imports.*", rf"{_NAME}(\.{_NAME})*", "the name of a Python module"),
    Text("runtimes.*.env.*", _LINE, "one line"),
    Text("groups.*.gateway.packages.*", _PIP, "a pip requirement, NAME==VERSION"),
    Text("flash_attn.version", r"[A-Za-z0-9][A-Za-z0-9.+!-]*", "a version such as 2.8.3"),
    Text("flash_attn.archs", r"\d+[a-z]?(;\d+[a-z]?)*", "architectures such as 120, separated by ;"),
    Text("flash_attn.build_needs.*", _PIP, "a pip requirement"),
    Text("flash_attn.cache", rf"({_SSH}|/[^\x00-\x1f\x7f]*)", "an absolute path or ssh://USER@HOST/PATH"),
    Text(
        "models.*.source",
        rf"(hf:[\w.-]+/[\w.-]+|https?://\S+|/[^\x00-\x1f\x7f]*|{_SSH})",
        "hf:OWNER/NAME, an http(s) folder, ssh://USER@HOST/PATH or an absolute path",
    ),
    Text("models.*.path", r"/[^\x00-\x1f\x7f]*", "an absolute path"),
    Text("models.*.served_name", _WORD, "a name without spaces"),
    Text("models.*.revision", r"[A-Za-z0-9][A-Za-z0-9._/-]*", "a branch, tag or commit"),
    Text("models.*.endpoint", _URL, "an http(s) address"),
    Text("profiles.*.env.*", _LINE, "one line"),
    Text("profiles.*.before.*.env.*", _LINE, "one line"),
    Text("monitoring.alertmanagers.*", _HOST, "HOST:PORT"),
    Text("monitoring.dcgm", _HOST, "HOST:PORT"),
    Text("monitoring.pages", _URL, "an http(s) address"),
    Text("apt_mirror", _URL, "an http(s) address"),
    Text("proxy", _URL, "an http(s) address"),
)
KEYS = (
    Text("runtimes.*.sources.*.env.*", _NAME, "the name of an environment variable"),
    Text("runtimes.*.env.*", _NAME, "the name of an environment variable"),
    Text("profiles.*.env.*", _NAME, "the name of an environment variable"),
    Text("profiles.*.before.*.env.*", _NAME, "the name of an environment variable"),
    Text("profiles.*.before.*", r"\d+\.\d+\.\d+(\.post\d+)?", "a version of SGLang such as 0.5.17"),
    Text("driver.module_options.*", r"[A-Za-z0-9_-]+", "a file's name below /etc/modprobe.d, without .conf"),
)
NUMBERS = (
    Number("gpus.count", above=0, most=64),
    Number("gpus.memory_mib", above=0),
    Number("models.*.size_gb", above=0, most=1e6),
    Number("models.*.context_length", above=0),
    *(
        Number(f"models.*.shape.{name}", above=0)
        for name in ("hidden", "layers", "routed_expert_bytes", "other_weight_bytes", "active_params")
    ),
    *(Number(f"models.*.shape.{name}", above=0) for name in ("kv_bytes_per_token", "index_topk", "activation_bytes")),
    *(Number(f"models.*.shape.{name}", above=0) for name in ("heads", "moe_intermediate")),
    *(Number(f"models.*.shape.{name}", least=0) for name in ("moe_layers", "experts", "experts_per_token")),
    Number("models.*.shape.replicated_bytes", least=0),
    Number("flash_attn.max_jobs", least=1),
    Number("server.ready_budget", above=0),
    Number("groups.*.gateway.drain", least=0),
    Number("bench.concurrency.*", least=1, most=65536),
    Number("bench.input_len", least=1),
    Number("bench.output_len", least=2),  # one token has no gap to a next one
    Number("bench.warmup", least=0, most=86400),
    Number("bench.window", above=0, most=86400),
    Number("bench.reference.*", above=0),
)
PLACES = (  # which may hold {os} and {arch}
    "driver.repository.url",
    "driver.repository.key_url",
    "runtimes.*.python_archive.url",
)


Rule = TypeVar("Rule", bound=Text | Number)


class _Table(Generic[Rule]):
    """Rules by the length of the paths that they fit: a value asks a few of them, not all."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._by_length: dict[int, list[tuple[list[str], Rule]]] = {}

    def fitting(self, path: Path) -> Iterator[Rule]:
        names = [str(part) for part in path]
        if len(names) not in self._by_length:
            self._by_length[len(names)] = list(self._of_length(len(names)))
        for parts, rule in self._by_length[len(names)]:
            if all(part in ("*", name) for part, name in zip(parts, names, strict=True)):
                yield rule

    def _of_length(self, length: int) -> Iterator[tuple[list[str], Rule]]:
        for rule in self._rules:
            parts = rule.place.split(".")
            if parts[0] == "**":
                parts = ["*"] * (length - len(parts) + 1) + parts[1:]
            if len(parts) == length:
                yield parts, rule


_TEXTS, _KEYS, _NUMBERS = _Table(TEXTS), _Table(KEYS), _Table(NUMBERS)
_PLACES = _Table([Text(place, "", "") for place in PLACES])


def check_words(document: Document) -> None:
    """Every value of the file against the tables; what is not in the file is a default, and right."""
    for path, value in _values(document.value, ()):
        if isinstance(value, str):
            _text(path, value, document)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            _number(path, value, document)
        if path and isinstance(path[-1], str):
            for rule in _KEYS.fitting(path):
                if not re.fullmatch(rule.pattern, path[-1]):
                    document.problem(path, f"the key should be {rule.what}, found {path[-1]!r}")


def _text(path: Path, value: str, document: Document) -> None:
    for rule in _TEXTS.fitting(path):
        if not re.fullmatch(rule.pattern, value):
            document.problem(path, f"should be {rule.what}, found {value[:80]!r}")
            return
    if any(True for _ in _PLACES.fitting(path)):
        _placeholders(path, value, document)


def _placeholders(path: Path, value: str, document: Document) -> None:
    try:
        names = {name for _, name, _, _ in string.Formatter().parse(value) if name is not None}
    except ValueError:
        names = {"?"}
    if names - {"os", "arch"}:
        document.problem(path, f"may hold {{os}} and {{arch}}, and no other braces; found {value!r}")


def _number(path: Path, value: float, document: Document) -> None:
    for rule in _NUMBERS.fitting(path):
        if rule.above is not None and not value > rule.above:
            document.problem(path, f"should be above {rule.above:g}, found {value:g}")
        elif rule.least is not None and not value >= rule.least:
            document.problem(path, f"should be {rule.least:g} or more, found {value:g}")
        elif rule.most is not None and not value <= rule.most:
            document.problem(path, f"should be {rule.most:,.0f} at most, found {value:g}")


def _values(value: object, path: Path) -> Iterator[tuple[Path, object]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _values(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _values(item, (*path, index))
    else:
        yield path, value
