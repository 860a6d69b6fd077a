"""What words and numbers may be: nothing that a shell, a file or a package manager would read as something else."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import msgspec
import pytest

from runbooks.inventory.check import check
from runbooks.inventory.shape import Inventory
from runbooks.inventory.source import Document, read
from runbooks.inventory.words import NUMBERS, TEXTS

EXAMPLE = read((Path(__file__).parents[2] / "inventory.yaml").read_text())
PLAIN = json.dumps(EXAMPLE.value)  # the fastest way to a copy
HOSTILE = ("", "-oProxyCommand=id", "a b", "$(id)", "`id`", "a;id", "a\nb", "'", "x\x07")
GATEWAY = {"ssh": {"address": "192.0.2.1"}}


def found(path: tuple[str | int, ...], value: object) -> list[str]:
    """The problems of the example with one value put in."""
    document = Document(json.loads(PLAIN), EXAMPLE.lines)
    whole: Any = document.value
    whole["groups"]["all-glm5"]["gateway"] = {**GATEWAY, "ssh": dict(GATEWAY["ssh"])}
    whole["server"]["host"] = "192.0.2.1"
    place = whole
    for part in path[:-1]:
        place = place.setdefault(part, {}) if isinstance(place, dict) else place[part]
    if isinstance(place, list):
        place[int(path[-1])] = value
    else:
        place[path[-1]] = value
    check(document)
    return [f"{problem.path}: {problem.text}" for problem in document.problems]


RUNTIME = ("runtimes", "sglang-0.5.23")
REFUSES_ALL = [
    ("hosts", "glm5-a", "address"),
    ("hosts", "glm5-a", "user"),
    ("hosts", "glm5-a", "proxy_jump"),
    ("server", "user"),
    ("driver", "packages", 0),
    ("driver", "version"),
    ("driver", "repository", "url"),
    ("driver", "repository", "key_url"),
    ("driver", "repository", "suite"),
    ("cuda", "package"),
    (*RUNTIME, "imports", 0),
    (*RUNTIME, "python"),
    (*RUNTIME, "index", "url"),
    ("flash_attn", "archs"),
    ("apt_mirror",),
    ("proxy",),
    ("groups", "all-glm5", "gateway", "ssh", "user"),
    ("groups", "all-glm5", "gateway", "ssh", "address"),
]


def test_the_example_with_a_gateway_is_right() -> None:
    assert found(("proxy",), "http://proxy.example:3128") == []


@pytest.mark.parametrize("path", REFUSES_ALL, ids=lambda path: ".".join(map(str, path)))
def test_hostile_words_are_refused_where_they_stand(path: tuple[str | int, ...]) -> None:
    quoted_anyway = {("hosts", "glm5-a", "proxy_jump"), (*RUNTIME, "python")}  # words of their own wherever they go
    for value in HOSTILE:
        if path in quoted_anyway and value in ("$(id)", "`id`", "a;id", "'"):
            continue
        problems = found(path, value)
        assert any(str(path[-1]) in problem.split(": ")[0] for problem in problems), f"{value!r} is taken"


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ((*RUNTIME, "packages", 0), "--index-url=http://evil.example", "should be a pip requirement"),
        ((*RUNTIME, "packages", 0), "torch==2\nevil==1", "should be a pip requirement"),
        ((*RUNTIME, "index", "trusted_hosts"), ["-x"], "should be HOST or HOST:PORT"),
        ((*RUNTIME, "index", "trusted_hosts"), ["a b"], "should be HOST or HOST:PORT"),
        ((*RUNTIME, "imports", 0), "os; os.system('id')", "should be the name of a Python module"),
        ((*RUNTIME, "env"), {"A B": "x"}, "the key should be the name of an environment variable"),
        ((*RUNTIME, "env"), {"A": "x\nLD_PRELOAD=/evil"}, "should be one line"),
        (("profiles", "final", "env"), {"A": "x\nB=y"}, "should be one line"),
        (("driver", "module_options"), {"../../etc/x": "options a b=1"}, "the key should be a file's name below"),
        (("driver", "module_options"), {"x": "install nvidia /evil"}, "`options MODULE KEY=VALUE`"),
        (("driver", "repository", "url"), "https://x.example/{0}/", "may hold {os} and {arch}"),
        (("driver", "repository", "key_url"), "https://x.example/{os", "may hold {os} and {arch}"),
        (("gpus", "count"), -1, "should be above 0, found -1"),
        (("gpus", "count"), 10**9, "should be 64 at most"),
        (("models", "glm-5-nvfp4", "shape", "layers"), 0, "should be above 0, found 0"),
        (("models", "glm-5-nvfp4", "shape", "active_params"), -4e10, "should be above 0"),
        (("models", "glm-5-nvfp4", "shape", "experts"), -1, "should be 0 or more"),
        (("models", "glm-5-nvfp4", "size_gb"), 1e12, "should be 1,000,000 at most"),
        (("bench", "window"), 0, "should be above 0, found 0"),
        (("bench", "window"), -5.0, "should be above 0"),
        (("bench", "output_len"), 0, "should be 2 or more"),
        (("bench", "concurrency"), [0], "should be 1 or more"),
        (("bench", "reference"), {"1": 0.0}, "should be above 0"),
        (("bench", "reference"), {"\u00b2": 1.0}, "the key should be a whole number"),
        (("bench", "reference"), {"9" * 5000: 1.0}, "(5,000 characters)"),
        (("bench", "reference"), {"1": float("inf")}, "should be a number that a machine can have"),
        (("gpus", "count"), 10**400, "should be a number that a machine can have"),
        (("bench", "repeats"), 0, "should be 1 or more"),
        (("bench", "precision"), -0.1, "should be 0 or more"),
        (("bench", "concurrency"), [], "should name at least one"),
        (("groups", "all-glm5", "hosts"), [], "should name at least one"),
        ((*RUNTIME, "sglang"), "main", "should be a version of SGLang"),
        (("hosts", "glm5-a", "address"), "192.0.2.10/24", "should be a name or an address"),
        *(
            (("hosts", "glm5-a", "proxy_jump"), jump, "should be [USER@]HOST[:PORT]")
            for jump in ("ops@", "h:abc", "x@y@z z", "[::1", "../../x", "$(id)", "ops@h:123456")
        ),
        (("profiles", "final", "before"), {"newer": {"why": "x"}}, "the key should be a version of SGLang"),
        (("profiles", "a,b"), {"why": "x"}, "a name is up to 63 letters"),
        (("profiles", ".."), {"why": "x"}, "a name is up to 63 letters"),
        (("runtimes", "x" * 64), {"why": "x", "sglang": "0.5.23", "packages": ["a"]}, "a name is up to 63 letters"),
        (("hosts", "glm5-a", "key"), "a\0b", "holds a control character"),
        (("profiles", "final", "args"), {"a\x1b[31m": 1}, "holds a control character"),
        (("server", "port"), "\ud800", "half a letter"),
        (("server", "api_key"), {"file": ""}, "names nothing"),
        (("server", "api_key"), {"command": []}, "names nothing"),
        (("server", "api_key"), {"command": [""]}, "names nothing"),
    ],
)
def test_what_it_should_be_is_said(path: tuple[str | int, ...], value: object, said: str) -> None:
    assert any(said in problem for problem in found(path, value)), found(path, value)


@pytest.mark.parametrize("secret", ["sk-S3cret", 5323, 5.323, True], ids=str)
def test_a_secret_that_stands_in_the_file_is_not_repeated(secret: object) -> None:
    for path in (("server", "api_key"), ("hosts", "glm5-a", "sudo_password"), ("models", "glm-5-nvfp4", "token")):
        problems = found(path, secret)
        assert len(problems) == 1
        assert "found a value" in problems[0]
        assert str(secret).lower() not in problems[0].lower()


def test_a_private_key_that_stands_in_the_file_is_not_repeated() -> None:
    key = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1r\n-----END OPENSSH PRIVATE KEY-----\n"
    paths = (
        ("hosts", "glm5-a", "key"),
        ("server", "api_key", "file"),
        ("models", "glm-5-nvfp4", "ssh_key"),
        ("proxy",),
    )
    for path in paths:
        problems = found(path, key)
        assert len(problems) == 1
        assert "holds a private key" in problems[0]
        assert "b3BlbnNzaC1r" not in problems[0]


def test_a_message_is_a_line() -> None:
    for value in ("x" * 100_000, "a\nb\tc", "\u202eabc", "\x1b[31m"):
        for path in (("gpus", "count"), ("gpus", "arch"), ("hosts", "glm5-a", "sudo"), ("hosts", value)):
            for problem in found(path, value):
                assert problem.isprintable()
                assert len(problem) < 400


def test_what_people_really_write_is_taken() -> None:
    taken: list[tuple[tuple[str | int, ...], object]] = [
        (("hosts", "glm5-a", "user"), "CORP\\ann.b"),
        (("hosts", "glm5-a", "user"), "ann@corp.example"),
        (("hosts", "glm5-a", "address"), "2001:db8::1"),
        (("hosts", "glm5-a", "address"), "glm5_a.example.net"),
        (("hosts", "glm5-a", "proxy_jump"), "ann@jump.example:2222"),
        (("hosts", "glm5-a", "proxy_jump"), "CORP\\ann@[2001:db8::1]:2222"),
        (("hosts", "glm5-a", "proxy_jump"), "alias_of_ssh-config"),
        (("driver", "packages", 0), "libnvidia-gl-580:i386"),
        (("cuda", "package"), "cuda-toolkit-13-0=13.0.*"),
        ((*RUNTIME, "packages", 0), "flash-attn @ git+https://github.com/Dao-AILab/flash-attention@v2.8.3"),
        ((*RUNTIME, "packages", 0), "torch==2.9.1+cu130 ; python_version >= '3.11'"),
        ((*RUNTIME, "imports", 0), "flash_attn.flash_attn_interface"),
        ((*RUNTIME, "index", "find_links"), ["/srv/wheels", "https://x.example/whl/cu130/torch/"]),
        ((*RUNTIME, "index", "trusted_hosts"), ["mirror.example:8443", "10.0.0.1"]),
        (("apt_mirror",), "http://mirror.example:3142/"),
        (("flash_attn", "archs"), "80;90;120"),
    ]
    for path, value in taken:
        assert found(path, value) == [], value


FREE = {
    "why", "evidence.*", "reference_source", "link", "known_hosts", "key", "runtime",
    "model", "extends", "env", "file", "command.*", "sglang", "ca",
}  # fmt: skip
"""Read by people, a path here, or the name of something else in the file (checked as such)."""
ELSEWHERE = (
    *(f"nodes.*.{name}" for name in ("api", "user", "fingerprint", "gpu_ids", "audio_ids")),
    *(f"hosts.*.vm.{name}" for name in ("node", "address", "gateway", "nameservers", "affinity", "machine")),
    *("hosts.*.vm.image.sha256", "hosts.*.vm.image.file", "groups.*.hosts"),
)  # machines.py, check.py


def _places(kind: Any, path: str, of: tuple[type, ...]) -> Iterator[str]:
    if get_origin(kind) in (Union, types.UnionType):
        for part in get_args(kind):
            yield from _places(part, path, of)
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for field in msgspec.structs.fields(kind):
            yield from _places(field.type, f"{path}.{field.name}".lstrip("."), of)
    elif get_origin(kind) in (tuple, Mapping):
        yield from _places(get_args(kind)[get_origin(kind) is Mapping], f"{path}.*", of)
    elif kind in of:
        yield path


def test_no_text_of_the_inventory_is_without_a_rule() -> None:
    """A new field finds its rule here, or is said to be free."""

    def has_rule(path: str) -> bool:
        return any(
            path == rule.place or (rule.place.startswith("**.") and path.endswith(rule.place[2:])) for rule in TEXTS
        )

    paths = set(_places(Inventory, "", (str,)))
    assert len(paths) > 60
    free = {path for path in paths if any(path.endswith(f".{name}") or path == name for name in FREE)}
    left = {path for path in paths - free if not has_rule(path) and not path.startswith(ELSEWHERE)}
    judged = {f"profiles.*.{part}.*" for part in ("args", "expect", "before.*.args", "before.*.expect")}
    assert left == judged  # by the flag table and by the read-back


def test_no_number_of_the_inventory_is_without_an_end() -> None:
    judged = {f"profiles.*.{part}.*" for part in ("args", "expect", "before.*.args", "before.*.expect")}
    ended = {rule.place for rule in NUMBERS if rule.most is not None}
    left = {path for path in set(_places(Inventory, "", (int, float))) - judged - ended if not path.endswith("port")}
    assert left == {"hosts.*.vm.id", "hosts.*.vm.phys_bits"}  # machines.py
