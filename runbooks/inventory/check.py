"""Holds the values of a file against the structs of shape.py, and finds every problem, not just the first."""

from __future__ import annotations

import difflib
import functools
import re
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from runbooks.inventory.arguments import check_arguments
from runbooks.inventory.machines import check_machines
from runbooks.inventory.shape import Inventory, SecretRef
from runbooks.inventory.source import Document, Path, near, shown
from runbooks.inventory.words import check_plain, check_words

_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", type(None): "nothing"}
_MAPPING = "a mapping (`key: value` lines)"


def check(document: Document) -> Inventory | None:
    """The inventory, or None with the reasons in `document.problems`."""
    if document.problems:
        return None
    if document.value is None:
        document.problem((), "is empty")
        return None
    check_plain(document)
    if document.problems:
        return None
    value = _open_server(document)
    _walk(value, Inventory, (), document)
    mistyped = bool(document.problems)
    check_words(document)
    if mistyped:
        return None
    inventory = msgspec.convert(value, Inventory, strict=True, str_keys=True)
    _names(inventory, document)
    _ports(inventory, document)
    check_machines(inventory, document)
    check_arguments(inventory, document)
    return None if document.problems else inventory


def _open_server(document: Document) -> object:
    """The document with `server.api_key: open` as None, which cannot be written: a line left empty opens no server."""
    value, path = document.value, ("server", "api_key")
    server = value.get("server") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(server, dict) or "api_key" not in server:
        return value
    if server["api_key"] == "open":
        return {**value, "server": {**server, "api_key": None}}
    if not isinstance(server["api_key"], dict):
        document.problem(
            path,
            "should be a secret ({file: ...}, {env: ...} or {command: [...]}), or `open`: whoever reaches it may ask; "
            f"found {_kind(server['api_key'])}. Without the line, a key is made",
        )
        return {**value, "server": {name: one for name, one in server.items() if name != "api_key"}}
    return value


def _walk(value: object, kind: Any, path: Path, document: Document) -> None:
    """Descend as deep as the types are structs, mappings and tuples; leave single values to msgspec."""
    kind = _without_none(kind, value)
    if kind is None:
        return
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        _struct(value, kind, path, document)
    elif origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            document.problem(path, f"should be {_MAPPING}, found {_found(value)}")
            return
        for key, item in value.items():
            if inner[0] is int and not re.fullmatch(r"[0-9]{1,9}", key):
                document.problem((*path, key), f"the key should be a whole number, found {shown(key)!r}")
            _walk(item, inner[1], (*path, key), document)
    elif origin is tuple:
        if not isinstance(value, list):
            document.problem(path, f"should be a list (`[a, b]`, or `- a` lines), found {_found(value)}")
            return
        for index, item in enumerate(value):
            _walk(item, inner[0], (*path, index), document)
    else:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError:
            document.problem(path, f"should be {_expected(kind)}, found {_found(value)}{_hint(kind, value)}")


def _struct(value: object, kind: type[msgspec.Struct], path: Path, document: Document) -> None:
    if not isinstance(value, dict):
        what = "a secret's source, {env: NAME}, {file: PATH} or {command: [...]}" if kind is SecretRef else _MAPPING
        document.problem(path, f"should be {what}, found {_kind(value) if kind is SecretRef else _found(value)}")
        return
    fields = _fields(kind)
    unknown = [key for key in value if key not in fields]
    for key in unknown:
        document.problem((*path, key), f"unknown key{near(key, [name for name in fields if name not in value])}")
    missing = [name for name, field in fields.items() if field.required and name not in value]
    for name in missing:
        document.problem(path, f"the key {name!r} is missing")
    for key in value.keys() & fields.keys():
        _walk(value[key], fields[key].type, (*path, key), document)
    if kind is SecretRef and not unknown:
        sources = [name for name in value if name != "generate" and value[name] is not None]
        if len(sources) != 1:
            document.problem(path, "a secret has exactly one source: env, file or command")
        elif value.get("generate") and sources != ["file"]:
            document.problem((*path, "generate"), "only a file can be generated")
        elif value.get("generate") and path != ("server", "api_key"):
            document.problem(
                (*path, "generate"), "only the server's API key can be generated: this one is known elsewhere"
            )
        elif not value[sources[0]] or value[sources[0]] == [""]:
            document.problem((*path, sources[0]), "names nothing")


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> Mapping[str, msgspec.structs.FieldInfo]:
    """By name. Each call of msgspec reads the annotations anew."""
    return {field.name: field for field in msgspec.structs.fields(kind)}


def _without_none(kind: Any, value: object) -> Any:
    """`X | None`: None for a value that is None, X otherwise."""
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    parts = get_args(kind)
    if value is None and type(None) in parts:
        return None
    rest = tuple(part for part in parts if part is not type(None))
    return rest[0] if len(rest) == 1 else Union[rest]  # noqa: UP007  (built at run time)


def _expected(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(str(choice) for choice in get_args(kind))
    return " or ".join(_WORDS.get(part, str(part)) for part in (get_args(kind) or (kind,)))


def _found(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(shown(value)) if isinstance(value, str) else repr(value)


def _kind(value: object) -> str:
    """Where a secret should be named, the secret itself may stand: it is not repeated."""
    return _found(value) if value is None or isinstance(value, dict | list) else "a value"


def _hint(kind: Any, value: object) -> str:
    if kind is str and isinstance(value, int | float) and not isinstance(value, bool):
        return f'; put it in quotes: "{value}"'
    if get_origin(kind) is Literal and isinstance(value, str):
        close = difflib.get_close_matches(value, [str(choice) for choice in get_args(kind)], n=1)
        return f"; did you mean {close[0]}?" if close else ""
    return ""


def _names(inventory: Inventory, document: Document) -> None:
    """Every name that points at something else in the file."""

    def known(path: Path, name: str | None, what: str, among: Iterable[str]) -> None:
        names = list(among)
        if name is not None and name not in names:
            document.problem(path, f"there is no {what} named {shown(name)!r}{near(name, names)}")

    known(("runtime",), inventory.runtime, "runtime", inventory.runtimes)
    known(("model",), inventory.model, "model", inventory.models)
    if not inventory.hosts:
        document.problem(("hosts",), "names no host")
    for what in ("hosts", "groups", "nodes", "runtimes", "models", "profiles"):
        for name in getattr(inventory, what):
            _plain_name((what, name), name, document)
    for name, host in inventory.hosts.items():
        known(("hosts", name, "runtime"), host.runtime, "runtime", inventory.runtimes)
        known(("hosts", name, "model"), host.model, "model", inventory.models)
    for name, group in inventory.groups.items():
        if name in inventory.hosts:
            document.problem(("groups", name), f"{name!r} is the name of a host as well")
        for index, member in enumerate(group.hosts):
            known(("groups", name, "hosts", index), member, "host", inventory.hosts)
    _gateways(inventory, document)
    for name, profile in inventory.profiles.items():
        known(("profiles", name, "extends"), profile.extends, "profile", inventory.profiles)
    _no_circles(inventory, document)


def _gateways(inventory: Inventory, document: Document) -> None:
    behind: dict[str, str] = {}
    for name, group in inventory.groups.items():
        if group.gateway is None:
            continue
        path = ("groups", name, "gateway")
        if inventory.server.host in ("127.0.0.1", "::1", "localhost"):
            document.problem(path, "cannot reach servers on loopback: server.host must be an address of the hosts")
        for host in group.hosts:
            if (first := behind.setdefault(host, name)) != name:
                document.problem(path, f"{host} is behind the gateway of {first} already")
        for key in ("port", "metrics_port"):
            if not 0 < (port := getattr(group.gateway, key)) < 65536:
                document.problem((*path, key), f"should be a port between 1 and 65535, found {port}")


def _plain_name(path: Path, name: str, document: Document) -> None:
    """It goes into names of files, labels of metrics and words of command lines."""
    if not re.fullmatch(r"\w[\w.-]{0,62}", name):
        document.problem(path, "a name is up to 63 letters, digits, '.', '-' and '_', and begins with no '.' or '-'")


def _no_circles(inventory: Inventory, document: Document) -> None:
    for name in inventory.profiles:
        chain = [name]
        while (parent := inventory.profiles[chain[-1]].extends) in inventory.profiles and parent is not None:
            chain.append(parent)
            if parent in chain[:-1]:
                break
        if len(chain) > 1 and chain[-1] == name:
            document.problem(("profiles", name, "extends"), f"goes in a circle: {' -> '.join(chain)}")


def _ports(inventory: Inventory, document: Document) -> None:
    for name, host in inventory.hosts.items():
        if not 0 < host.port < 65536:
            document.problem(("hosts", name, "port"), f"should be a port between 1 and 65535, found {host.port}")
    if not 0 < inventory.server.port < 65536:
        document.problem(("server", "port"), f"should be a port between 1 and 65535, found {inventory.server.port}")
