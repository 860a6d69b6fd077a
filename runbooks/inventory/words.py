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

from runbooks.inventory.source import Document, Path, shown

_URL = r"https?://[^\s\"'`\\#&$<>|]+"
_HOST = r"[A-Za-z0-9_\[][A-Za-z0-9_.:\[\]%-]*"
_BARE = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_PACKAGE = r"[a-z0-9][a-z0-9+.-]+(:[a-z0-9]+)?"
_PIP = r"[A-Za-z0-9][^\x00-\x1f\x7f]*"
_LOGIN = r"[A-Za-z_][A-Za-z0-9_.@\\-]{0,63}"
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_LINE = r"[^\x00-\x1f\x7f]*"
_SSH = r"ssh://([A-Za-z_][\w.-]*@)?[A-Za-z0-9_\[][\w.:\[\]-]*(:\d+)?/\S+"
_ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
_WORD = r"[^\s\x00-\x1f\x7f-][^\s\x00-\x1f\x7f]*"

MOST = 1e18
_UNFIT = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\ud800-\udfff]")


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
    Text("hosts.*.address", _HOST, "a name or an address"),
    Text("**.ssh.address", _HOST, "a name or an address"),
    Text("hosts.*.vm.address", _HOST + r"(/\d+)?", "an address in CIDR form"),
    Text("**.proxy_jump", rf"({_LOGIN}@)?({_BARE}|\[[0-9A-Fa-f:.%\w]+\])(:[0-9]{{1,5}})?", "[USER@]HOST[:PORT]"),
    Text("**.ssh.user", _LOGIN, "a login name"),
    Text("hosts.*.user", _LOGIN, "a login name"),
    Text("hosts.*.vm.user", r"[a-z_][a-z0-9_-]{0,31}", "a login name"),
    Text("hosts.*.vm.storage", _ID, "the name of a storage"),
    Text("hosts.*.vm.image.url", _URL, "an http(s) address"),
    Text("hosts.*.vm.image.storage", _ID, "the name of a storage"),
    Text("hosts.*.vm.search_domain", r"[A-Za-z0-9][A-Za-z0-9.-]*", "a domain"),
    Text("hosts.*.vm.bridge", _ID, "the name of a bridge"),
    Text("hosts.*.vm.mapping", _ID, "the name of a PCI mapping"),
    Text("hosts.*.vm.ssh_keys.*", r"[^\s\x00-\x1f\x7f-][^\x00-\x1f\x7f]*", "a public key, or the path of its file"),
    Text("nodes.*.name", _ID, "the node's name in its cluster"),
    Text("nodes.*.kernel_options.*", r"[A-Za-z0-9][^\s\"'`$\\&;|<>\x00-\x1f\x7f]*", "one word, such as pcie_aspm=off"),
    Text("groups.*.gateway.host", _HOST, "an address to listen on"),
    Text("runtimes.*.sglang", r"\d+\.\d+\.\d+(\.post\d+)?(\+.*)?", "a version of SGLang such as 0.5.23"),
    Text("known_hosts", r".+", "the path of a file"),
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
    Number("gpus.memory_mib", above=0, most=1e9),
    Number("models.*.size_gb", above=0, most=1e6),
    Number("models.*.context_length", above=0, most=1e9),
    *(
        Number(f"models.*.shape.{name}", above=0, most=1e7)
        for name in ("hidden", "layers", "heads", "moe_intermediate")
    ),
    *(Number(f"models.*.shape.{name}", least=0, most=1e6) for name in ("moe_layers", "experts", "experts_per_token")),
    *(Number(f"models.*.shape.{name}", above=0, most=1e15) for name in ("routed_expert_bytes", "other_weight_bytes")),
    Number("models.*.shape.active_params", above=0, most=1e15),
    Number("models.*.shape.replicated_bytes", least=0, most=1e15),
    *(Number(f"models.*.shape.{name}", above=0, most=1e9) for name in ("kv_bytes_per_token", "index_topk")),
    Number("models.*.shape.activation_bytes", above=0, most=16),
    Number("flash_attn.max_jobs", least=1, most=4096),
    Number("server.ready_budget", above=0, most=86400),
    Number("groups.*.gateway.drain", least=0, most=86400),
    Number("bench.concurrency.*", least=1, most=4096),
    Number("bench.input_len", least=1, most=1e7),
    Number("bench.output_len", least=2, most=1e7),  # one token has no gap to a next one
    Number("bench.warmup", least=0, most=86400),
    Number("bench.window", above=0, most=86400),
    Number("bench.precision", least=0, most=0.5),
    Number("bench.repeats", least=1, most=9),
    Number("bench.reference.*", above=0, least=0.001, most=1e9),
    *(Number(f"hosts.*.vm.{name}", least=1, most=1e6) for name in ("cores", "memory_gib", "disk_gib")),
    Number("hosts.*.vm.vlan", least=1, most=4094),
    Number("hosts.*.vm.numa_nodes.*", least=0, most=1023),
    Number("nodes.*.hugepages_gib", least=0, most=1e6),
)
SOME = (  # lists that mean nothing when they are empty
    "driver.packages",
    "runtimes.*.packages",
    "groups.*.hosts",
    "groups.*.gateway.packages",
    "bench.concurrency",
    "nodes.*.gpu_ids",
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
_SOME = _Table([Text(place, "", "") for place in SOME])
_PLACES = _Table([Text(place, "", "") for place in PLACES])


def check_plain(document: Document) -> None:
    """What nothing can take, wherever it stands: half a letter, a control character, a number without an end."""
    for path, value in _values(document.value, ()):
        words = [part for part in path[-1:] if isinstance(part, str)] + ([value] if isinstance(value, str) else [])
        if any(_UNFIT.search(word) for word in words):
            document.problem(path, "holds a control character, or half a letter")
        elif any("PRIVATE KEY-----" in word for word in words):
            document.problem(path, "holds a private key: its file is named here, never the key itself")
        elif isinstance(value, int | float) and not -MOST <= value <= MOST:
            document.problem(path, f"should be a number that a machine can have, {MOST:g} at most")


def check_words(document: Document) -> None:
    """Every value of the file against the tables; what is not in the file is a default, and right."""
    for path, value in _values(document.value, ()):
        if isinstance(value, str):
            _text(path, value, document)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            _number(path, value, document)
        elif value == [] and any(True for _ in _SOME.fitting(path)):
            document.problem(path, "should name at least one, found none")
        if path and isinstance(path[-1], str):
            for rule in _KEYS.fitting(path):
                if not re.fullmatch(rule.pattern, path[-1]):
                    document.problem(path, f"the key should be {rule.what}, found {shown(path[-1])!r}")


def _text(path: Path, value: str, document: Document) -> None:
    for rule in _TEXTS.fitting(path):
        if not re.fullmatch(rule.pattern, value):
            document.problem(path, f"should be {rule.what}, found {shown(value)!r}")
            return
    if any(True for _ in _PLACES.fitting(path)):
        _placeholders(path, value, document)


def _placeholders(path: Path, value: str, document: Document) -> None:
    try:
        names = {name for _, name, _, _ in string.Formatter().parse(value) if name is not None}
    except ValueError:
        names = {"?"}
    if names - {"os", "arch"}:
        document.problem(path, f"may hold {{os}} and {{arch}}, and no other braces; found {shown(value)!r}")


def _number(path: Path, value: float, document: Document) -> None:
    for rule in _NUMBERS.fitting(path):
        if rule.above is not None and not value > rule.above:
            document.problem(path, f"should be above {rule.above:g}, found {value:,.15g}")
        elif rule.least is not None and not value >= rule.least:
            document.problem(path, f"should be {rule.least:g} or more, found {value:,.15g}")
        elif rule.most is not None and not value <= rule.most:
            document.problem(path, f"should be {rule.most:,.0f} at most, found {value:,.15g}")


def _values(value: object, path: Path) -> Iterator[tuple[Path, object]]:
    """Mappings and lists as well: their keys are words, too."""
    yield path, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _values(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _values(item, (*path, index))
