"""The questions of the steps. Each kind asks for all its keys with a constant number of processes.

Replies are told apart by the order of the keys, never by name, so that a path with spaces, quotes or a newline in it
cannot be taken for anything else. What comes back in free text comes back as base64.
"""

from __future__ import annotations

import base64
import stat
from collections.abc import Iterator, Mapping, Sequence

from runbooks.engine.step import NO_ANSWER, Kind, Question, State, Value, quote

TEXT_LIMIT = 64 * 1024  # bytes of a file that are sent back for a diff


def path(name: str, *, wanted: str = "-") -> Question:
    """What is at a path: type, mode, owner, size, and target (of a link), sha256 and text (of a file).

    `wanted` is the SHA-256 that the file should have: only another content is sent back, for the diff.
    "-": nothing is read. "=": the hash only (secrets, large files). "*": the text in any case.
    """
    return Question(PATHS, f"{wanted} {name}")


_PATHS = """\
look() {
  n=$#
  while [ "$n" -gt 0 ]; do
    if [ -L "$2" ]; then printf 'link '; readlink -n -- "$2" | base64 -w0; echo; set -- "$@" "$2"
    elif [ -e "$2" ]; then echo there; set -- "$@" "$2"
    else echo absent; fi
    shift 2; n=$((n - 2))
  done
  [ $# -eq 0 ] || stat -c '%f %U:%G %s' -- "$@"
}
sums() {
  wants=; n=$#
  while [ "$n" -gt 0 ]; do
    if [ "$1" != - ] && [ -f "$2" ] && [ ! -L "$2" ]; then set -- "$@" "$2"; wants="$wants$1 "; fi
    shift 2; n=$((n - 2))
  done
  [ $# -eq 0 ] || sha256sum -- "$@" | while read -r sum rest; do
    sum=${sum#\\\\}; want=${wants%% *}; wants=${wants#* }
    printf '%s ' "$sum"
    case $want in "$sum"|=) ;; *) head -c LIMIT -- "$1" | base64 -w0 ;; esac
    echo; shift
  done
}
"""


def _paths_script(keys: Sequence[str]) -> str:
    """One `stat` and one `sha256sum` for all; only a link, and a file that differs, cost processes of their own."""
    pairs = " ".join(f"{quote(wanted)} {quote(name)}" for wanted, _, name in (key.partition(" ") for key in keys))
    return f'{_PATHS.replace("LIMIT", str(TEXT_LIMIT))}set -- {pairs}\nlook "$@"; sums "$@"'


_TYPES = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}


def _paths_parse(output: str, keys: Sequence[str]) -> Mapping[str, State]:
    lines = iter(output.splitlines())
    try:
        return _read_paths(lines, keys)
    except (StopIteration, ValueError):  # something vanished between two of our processes: no honest answer
        return dict.fromkeys(keys, NO_ANSWER)


def _read_paths(lines: Iterator[str], keys: Sequence[str]) -> dict[str, State]:
    there = {key: line for key in keys if (line := next(lines)) != "absent"}
    states: dict[str, dict[str, Value]] = {}
    for key, line in there.items():
        raw, owner, size = next(lines).split(" ")
        mode = int(raw, 16)
        kind = _TYPES.get(stat.S_IFMT(mode), "other")
        states[key] = {"type": kind, "mode": stat.S_IMODE(mode), "owner": owner, "size": int(size)}
        if kind == "symlink":
            states[key]["target"] = base64.b64decode(line.removeprefix("link ")).decode("utf-8", "replace")
    for key, state in states.items():
        if state["type"] == "file" and not key.startswith("- "):
            state["sha256"], _, body = next(lines).partition(" ")
            state["text"] = _text(base64.b64decode(body)) if body or not state["size"] else None
    return dict(states)


def _text(data: bytes) -> str | None:
    try:
        return data.decode() if len(data) < TEXT_LIMIT else None
    except UnicodeDecodeError:
        return None


PATHS = Kind("paths", _paths_script, _paths_parse)


def package(name: str) -> Question:
    """A Debian package: status ("installed", "config-files", ...), version, held."""
    return Question(PACKAGES, name)


def _packages_script(keys: Sequence[str]) -> str:
    names = " ".join(map(quote, keys))
    form = "${Package} ${db:Status-Status} ${db:Status-Want} ${Version}\\n"
    return f"dpkg-query -W -f '{form}' -- {names} 2>/dev/null || true"


def _packages_parse(output: str, keys: Sequence[str]) -> Mapping[str, State]:
    states: dict[str, State] = {}
    for line in output.splitlines():
        name, status, want, version = (*line.split(" "), "", "")[:4]
        if states.get(name, {}).get("status") != "installed":  # a foreign architecture's entry does not hide our own
            states[name] = {"status": status, "version": version, "held": want == "hold"}
    return {key: states[key] for key in keys if key in states}


PACKAGES = Kind("packages", _packages_script, _packages_parse)


def unit(name: str) -> Question:
    """A systemd unit: load, active, enabled, reload (its file changed on disk). Empty where systemd is not PID 1."""
    return Question(UNITS, name)


_UNIT_FIELDS = {"LoadState": "load", "ActiveState": "active", "UnitFileState": "enabled", "NeedDaemonReload": "reload"}


def _units_script(keys: Sequence[str]) -> str:
    names = " ".join(map(quote, keys))
    return f"[ ! -d /run/systemd/system ] || systemctl show -p {','.join(_UNIT_FIELDS)} -- {names}"


def _units_parse(output: str, keys: Sequence[str]) -> Mapping[str, State]:
    blocks = [block for block in output.split("\n\n") if block.strip()]
    if len(blocks) != len(keys):
        return {}
    said = [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in blocks]
    return {
        key: {short: fields.get(long, "") for long, short in _UNIT_FIELDS.items()}
        for key, fields in zip(keys, said, strict=True)
    }


UNITS = Kind("units", _units_script, _units_parse)


def user(name: str) -> Question:
    """An account: uid, home, shell, and its groups as one sorted, comma-separated text."""
    return Question(USERS, name)


def _users_script(keys: Sequence[str]) -> str:
    names = " ".join(map(quote, keys))
    return f"getent passwd {names}; echo; getent group"


def _users_parse(output: str, keys: Sequence[str]) -> Mapping[str, State]:
    accounts, _, groups = output.partition("\n\n") if not output.startswith("\n") else ("", "", output)
    member_of: dict[str, list[str]] = {}
    for line in groups.splitlines():
        group, _, _, members = (*line.split(":"), "", "", "")[:4]
        for member in members.split(","):
            member_of.setdefault(member, []).append(group)
    states: dict[str, State] = {}
    for line in accounts.splitlines():
        name, _, uid, _, _, home, shell = (*line.split(":"), *[""] * 7)[:7]
        states[name] = {"uid": uid, "home": home, "shell": shell, "groups": ",".join(sorted(member_of.get(name, [])))}
    return {key: states[key] for key in keys if key in states}


USERS = Kind("users", _users_script, _users_parse)


def sysctl(name: str) -> Question:
    """A kernel setting: value, with single spaces."""
    return Question(SYSCTLS, name)


_SYSCTLS = """\
for key; do
  shift
  if [ -r "$key" ]; then echo there; set -- "$@" "$key"; else echo absent; fi
done
[ $# -eq 0 ] || head -qn 1 -- "$@"
"""


def _sysctls_script(keys: Sequence[str]) -> str:
    """Not by the shell's own `read`: dash reads byte by byte, and /proc/sys gives only the first read anything."""
    return "set -- " + " ".join(quote("/proc/sys/" + key.replace(".", "/")) for key in keys) + "\n" + _SYSCTLS


def _sysctls_parse(output: str, keys: Sequence[str]) -> Mapping[str, State]:
    lines = output.splitlines()
    there = [key for key, line in zip(keys, lines, strict=False) if line == "there"]
    return {key: {"value": " ".join(line.split())} for key, line in zip(there, lines[len(keys) :], strict=False)}


SYSCTLS = Kind("sysctls", _sysctls_script, _sysctls_parse)
